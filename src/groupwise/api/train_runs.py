"""Train from Python: load a recipe or build one from keywords, start a run, resume it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise import config
from groupwise.config import ConfigError, Recipe, find_recipe, make_recipe, set_key, to_table
from groupwise.config.build import shown
from groupwise.runs import layout
from groupwise.runs.reader import Run
from groupwise.runs.sinks import Sink
from groupwise.tasks.functions import LOCAL, Reward, name_of
from groupwise.tasks.rows import share_of
from groupwise.tasks.task import Task

if TYPE_CHECKING:
    from groupwise.training.setup import RunRequest

MAX_HELD_OUT = 200
"""Rows in memory: a tenth is held out, at least one row and at most this many."""

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Given:
    """What a recipe cannot say: functions and a task that cannot be imported, and rows in memory."""

    rewards: Mapping[str, Reward] = field(default_factory=dict)
    task: Task | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """File name → text, for the data folder of the run directory."""


def load_recipe(name: str | Path, settings: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe that ships with groupwise, or a TOML file.

    `settings` overrides keys by their dotted names, as in `{"seed": 1, "stages.0.steps": 50}`.
    """
    return config.load_recipe(find_recipe(str(name)), settings=settings)


def train(
    recipe_or_model: Recipe | str | Path | Mapping[str, Any],
    run_dir: str | Path | None = None,
    *,
    data: str | Path | Rows | None = None,
    held_out: str | Path | Rows | float | None = None,
    reward: Any = None,
    task: Any = None,
    task_options: Mapping[str, Any] | None = None,
    algorithm: str = "grpo",
    steps: int = 100,
    problems_per_step: int = 16,
    rollouts_per_problem: int = 8,
    max_new_tokens: int = 256,
    learning_rate: float | None = None,
    seed: int = 0,
    name: str = "run",
    settings: Mapping[str, Any] | None = None,
    memory_gib: float | None = None,
    progress: bool = True,
    sinks: Sequence[Sink] = (),
) -> Run:
    """Train a model and return its run.

    Give a recipe, by name, path or object, and nothing else; or a model with `data` or `task`:

    - `data`: a .jsonl file, a name on the Hugging Face hub, a `datasets.Dataset`, or a list of dicts. Each row has a
      `prompt` (a text or a list of messages) and, unless there is a reward function, an `answer`. `held_out` is the
      same for held-out rows, or the share to hold out; by default a tenth.
    - `task`: the name of a task (`groupwise tasks`), with `task_options`, or a task object of your own.
    - `reward`: a function `(completion, row) -> number or Score`, "module:function", or a dict of several to their
      weights. The first one decides what is correct (see `groupwise.tasks.functions`).

    `settings` sets any other key of a recipe by its dotted name, as in `{"stages.0.kl.coefficient": 0.0}`. The run
    directory is `run_dir`, or `runs/NAME-HASH`. A run that is interrupted is saved; continue it with `resume`.
    """
    from groupwise.training.setup import RunRequest, default_run_dir

    given_data: dict[str, Any] = {
        "data": as_rows(data, "data"),
        "held_out": as_rows(held_out, "held_out"),
        "reward": reward,
        "task": task,
        "task_options": task_options,
    }
    if isinstance(recipe_or_model, Recipe) or (data is None and task is None):
        recipe, given = _whole_recipe(recipe_or_model, settings, given_data), Given()
        directory = default_run_dir(recipe) if run_dir is None else Path(run_dir)
    else:
        stage = {
            "algorithm": algorithm,
            "steps": steps,
            "problems_per_step": problems_per_step,
            "rollouts_per_problem": rollouts_per_problem,
            "sampling": {"max_new_tokens": max_new_tokens},
            "optimizer": {} if learning_rate is None else {"learning_rate": learning_rate},
        }
        model = recipe_or_model if isinstance(recipe_or_model, Mapping) else {"path": str(recipe_or_model)}
        table = {"name": name, "seed": seed, "model": model, "stages": [stage]}
        build = partial(recipe_of_keywords, table, settings or {})
        if run_dir is None:
            # The recipe names files in the run directory, and the directory is named after the recipe.
            recipe, given = build(Path("RUN") / layout.DATA, **given_data)
            content = json.dumps([to_table(recipe), sorted(given.files.items())], sort_keys=True, default=str)
            run_dir = Path("runs") / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
        directory = Path(run_dir)
        recipe, given = build(directory / layout.DATA, **given_data)
        _write_data(directory, given.files)
    request = RunRequest(recipe, directory, memory_gib=memory_gib, rewards=given.rewards, task=given.task, sinks=sinks)
    carry_out_watched(request, progress=progress)
    return Run(directory)


def resume(
    run: Run | str | Path,
    *,
    reward: Any = None,
    task: Any = None,
    accept_verifier: bool = False,
    accept_logs: bool = False,
    start_over: bool = False,
    progress: bool = True,
    sinks: Sequence[Sink] = (),
) -> Run:
    """Resume a run from its newest valid checkpoint, and return it.

    Pass `reward` and `task` again where they were functions or a task of a notebook or script. Their source must be
    unchanged, unless `accept_verifier`. Logs that are missing or were changed are refused, unless `accept_logs`.
    `start_over` starts at step 1 and moves logs and checkpoints to RUN/old-N.
    """
    from groupwise.training.setup import RunRequest, memory_limit_of, recipe_of

    directory = run.path if isinstance(run, Run) else Path(run)
    _, rewards = named_rewards(reward, "resume")
    recipe = recipe_of(directory)
    request = RunRequest(
        recipe,
        directory,
        is_resumed=True,
        accept_verifier=accept_verifier,
        accept_logs=accept_logs,
        start_over=start_over,
        memory_gib=memory_limit_of(directory),
        rewards=rewards,
        task=task,
        sinks=sinks,
    )
    carry_out_watched(request, progress=progress)
    return Run(directory)


def carry_out_watched(request: RunRequest, *, progress: bool = True) -> bool:
    """Run this process's part of a request, as one rank or as all, with the progress display, the live doctor, and the
    comparison of training reward with held-out scores. Return True if the run finished."""
    from groupwise.audit.held_out_gain import HeldOutWatch
    from groupwise.distributed.world import join_world
    from groupwise.doctor import LiveDoctor
    from groupwise.runs.progress import Progress
    from groupwise.training.pipeline import carry_out

    world = join_world()
    shown = [Progress(request.recipe.total_steps)] if progress else []
    try:
        return carry_out(replace(request, sinks=[*shown, *request.sinks, LiveDoctor(), HeldOutWatch()], world=world))
    finally:
        world.close()


def _whole_recipe(given: Any, settings: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> Recipe:
    for keyword, value in keywords.items():
        if value is not None:
            raise ConfigError(f"train: {keyword}= needs a model with data= or task=; a recipe has its own")
    if isinstance(given, Recipe):
        if settings:
            raise ConfigError(
                "train: settings= needs a recipe by name; change a Recipe with load_recipe(name, settings)"
            )
        return given
    if isinstance(given, Mapping):
        raise ConfigError("train: a model needs data= (rows with a prompt) or task= (a task's name)")
    try:
        path = find_recipe(str(given))
    except ConfigError as error:
        raise ConfigError(
            f"train: {error}. If {str(given)!r} is a model, give it data= (rows with a prompt) or task= (a task's name)"
        ) from None
    return load_recipe(path, settings)


def _write_data(directory: Path, files: Mapping[str, str]) -> None:
    """Write rows in memory where the recipe expects them, unless there is a run already."""
    if files and (directory / layout.RECIPE).exists():
        raise ConfigError(
            f"{directory} has a run already; continue it with groupwise.resume({str(directory)!r}), read it with "
            f"groupwise.Run({str(directory)!r}), or give another run_dir"
        )
    for file, text in files.items():
        path = directory / layout.DATA / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


# ---- a recipe from keywords ----


def named_rewards(reward: Any, where: str = "train") -> tuple[str | dict[str, float] | None, dict[str, Reward]]:
    """Return reward functions as a recipe names them, and those that cannot be imported by their name.

    `reward` is a function, "module:function", or a dict of these to their weights.
    """
    if reward is None:
        return None, {}
    weights = reward if isinstance(reward, Mapping) else {reward: 1.0}
    names: dict[str, float] = {}
    given: dict[str, Reward] = {}
    for function, weight in weights.items():
        name = function if isinstance(function, str) else name_of(function)
        if not isinstance(function, str) and not callable(function):
            raise ConfigError(f"{where}: reward = {function!r:.60}: expected a function, or 'module:function'")
        module, _, short = name.partition(":")
        if module == LOCAL:
            if short in given and given[short] is not function:
                raise ConfigError(f"{where}: two reward functions are called {short!r}; rename one")
            given[short] = function
        names[name] = float(weight)
    is_single = len(names) == 1 and not isinstance(reward, Mapping)
    return (next(iter(names)) if is_single else names), given


def named_task(task: Any, options: Mapping[str, Any] | None) -> tuple[str, dict[str, Any], Task | None]:
    """Return a task's name and options as in a recipe, and the task itself if it cannot be imported."""
    if isinstance(task, str):
        return task, dict(options or {}), None
    if options:
        raise ConfigError("task_options: need the name of a task; a task object has its own")
    name = name_of(type(task))
    return name, to_table(task), (task if name.startswith(f"{LOCAL}:") else None)


def recipe_of_keywords(
    table: Mapping[str, Any],
    settings: Mapping[str, Any],
    folder: Path,
    *,
    data: str | Path | Rows | None,
    held_out: str | Path | Rows | float | None,
    reward: Any,
    task: Any,
    task_options: Mapping[str, Any] | None,
) -> tuple[Recipe, Given]:
    """Return the recipe, and what it needs besides. `table` is the recipe without its task; rows in memory are read
    from `folder` when it runs."""
    reward_names, rewards = named_rewards(reward)
    given_task: Task | None = None
    files: dict[str, str] = {}
    if data is None:
        name, options, given_task = named_task(task, task_options)
    elif task is not None and task != "jsonl":
        raise ConfigError("train: give either data= (rows with a prompt) or task=, not both")
    else:
        options, files = _data_options(data, held_out, folder)
        name, options = "jsonl", {**options, **(task_options or {})}
    made = copy.deepcopy(dict(table))
    made["task"] = {"name": name, "options": options} | ({"reward": reward_names} if reward_names else {})
    for key, value in settings.items():
        set_key(made, key, value)
    return make_recipe(made), Given(rewards, given_task, files)


def as_rows(data: Any, where: str) -> Any:
    """Return the rows of a list of dicts, a `datasets.Dataset` or a pandas frame as a list; all else unchanged."""
    if data is None or isinstance(data, (str, Path, float)):
        return data
    if hasattr(data, "to_dict") and hasattr(data, "columns") and not hasattr(data, "to_list"):
        data = data.to_dict("records")
    rows = list(data)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise ConfigError(f"{where}, row {number}: expected a dict such as {{'prompt': …}}, got {shown(row)}")
        _line(row, f"{where}, row {number}")
    return rows


def _data_options(data: Any, held_out: Any, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options of the task `jsonl`, and the text of the files in `folder` that it will read."""
    if held_out is None or isinstance(held_out, float):
        if isinstance(data, (str, Path)):
            return {"train": str(data), "held_out_share": 0.1 if held_out is None else held_out}, {}
        data, held_out = _split(data, held_out)
    options: dict[str, Any] = {}
    files: dict[str, str] = {}
    for part, rows in (("train", data), ("held_out", held_out)):
        if isinstance(rows, (str, Path)):
            options[part] = str(rows)
        else:
            options[part] = str(folder / f"{part}.jsonl")
            files[f"{part}.jsonl"] = "".join(f"{_line(row, part)}\n" for row in rows)
    return options, files


def _split(rows: Sequence[Mapping[str, Any]], share: float | None) -> tuple[list[Any], list[Any]]:
    """Hold out some rows, chosen by a hash of their content, whatever their order."""
    wanted = min(MAX_HELD_OUT, max(1, len(rows) // 10)) if share is None else max(1, round(share * len(rows)))
    if wanted >= len(rows):
        raise ConfigError(
            f"data: {len(rows)} rows are too few to hold out {wanted} of them; pass more rows, or held_out="
        )
    chosen = {id(row) for row in sorted(rows, key=lambda row: share_of(_line(row, "data")))[:wanted]}
    return [row for row in rows if id(row) not in chosen], [row for row in rows if id(row) in chosen]


def _line(row: Mapping[str, Any], where: str) -> str:
    try:
        line = json.dumps(dict(row), ensure_ascii=False, allow_nan=False)
        line.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: has a value that JSON cannot represent ({error})") from None
    return line
