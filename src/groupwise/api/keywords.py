"""Build a recipe from the keywords of `train(model, data=…, reward=function)`, and what these may be."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.config import ConfigError, Recipe, make_recipe, set_key, to_table
from groupwise.tasks.functions import LOCAL, Reward, name_of
from groupwise.tasks.rows import share_of
from groupwise.tasks.task import Task

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
            raise ConfigError(f"{where}, row {number}: expected a dict such as {{'prompt': …}}, got {row!r:.60}")
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
            files[f"{part}.jsonl"] = "".join(f"{_line(row)}\n" for row in rows)
    return options, files


def _split(rows: Sequence[Mapping[str, Any]], share: float | None) -> tuple[list[Any], list[Any]]:
    """Hold out some rows, chosen by a hash of their content, whatever their order."""
    wanted = min(MAX_HELD_OUT, max(1, len(rows) // 10)) if share is None else max(1, round(share * len(rows)))
    if wanted >= len(rows):
        raise ConfigError(
            f"data: {len(rows)} rows are too few to hold out {wanted} of them; pass more rows, or held_out="
        )
    chosen = {id(row) for row in sorted(rows, key=lambda row: share_of(_line(row)))[:wanted]}
    return [row for row in rows if id(row) not in chosen], [row for row in rows if id(row) in chosen]


def _line(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(row), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"data: a row has a value that JSON cannot represent ({error}): {row!r:.80}") from None
