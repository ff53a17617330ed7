"""Train from Python: load a recipe or build one from keywords, start a run, resume it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise import config
from groupwise.api.keywords import Given, Rows, as_rows, named_rewards, recipe_of_keywords
from groupwise.config import ConfigError, Recipe, find_recipe, to_table
from groupwise.runs import layout
from groupwise.runs.reader import Run
from groupwise.runs.sinks import Sink

if TYPE_CHECKING:
    from groupwise.training.pipeline import RunRequest


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
    from groupwise.training.pipeline import RunRequest, default_run_dir

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
    progress: bool = True,
    sinks: Sequence[Sink] = (),
) -> Run:
    """Resume a run from its newest valid checkpoint, and return it.

    Pass `reward` and `task` again where they were functions or a task of a notebook or script. Their source must be
    unchanged, unless `accept_verifier`.
    """
    from groupwise.training.pipeline import RunRequest, memory_limit_of, recipe_of

    directory = run.path if isinstance(run, Run) else Path(run)
    _, rewards = named_rewards(reward, "resume")
    recipe = recipe_of(directory)
    request = RunRequest(
        recipe,
        directory,
        is_resumed=True,
        accept_verifier=accept_verifier,
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
