"""Build a recipe from keywords: `train(model, data=…, reward=function)` and what its arguments may be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.config import ConfigError, Recipe, make_recipe, set_key, to_table
from groupwise.tasks.functions import LOCAL, Reward, name_of
from groupwise.tasks.rows import share_of
from groupwise.tasks.task import Task

MAX_HELD_OUT = 200
"""The most rows that are held out of rows passed as objects; otherwise a tenth, and at least one."""

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Given:
    """What cannot stand in a recipe: functions and a task that cannot be imported, and rows that are in memory."""

    rewards: Mapping[str, Reward] = field(default_factory=dict)
    task: Task | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """File name → text, for the run directory's folder of data."""


def named_rewards(reward: Any, where: str = "train") -> tuple[str | dict[str, float] | None, dict[str, Reward]]:
    """Reward functions as a recipe names them, and those that cannot be imported by their name.

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
    """A task's name and options as a recipe has them, and the task itself where it cannot be imported."""
    if isinstance(task, str):
        return task, dict(options or {}), None
    if options:
        raise ConfigError("task_options: go with the name of a task; a task object has its options already")
    name = name_of(type(task))
    return name, to_table(task), (task if name.startswith(f"{LOCAL}:") else None)


def recipe_of_keywords(
    model: str | Path | Mapping[str, Any],
    *,
    data: str | Path | Rows | None,
    held_out: str | Path | Rows | float | None,
    reward: Any,
    task: Any,
    task_options: Mapping[str, Any] | None,
    name: str,
    seed: int,
    stage: Mapping[str, Any],
    settings: Mapping[str, Any],
    data_folder: Callable[[str], Path],
) -> tuple[Recipe, Given]:
    """The recipe, and what it takes besides. `data_folder` says where rows in memory will be, from their hash."""
    reward_names, rewards = named_rewards(reward)
    given_task: Task | None = None
    files: dict[str, str] = {}
    if data is not None:
        if task is not None and task != "jsonl":
            raise ConfigError("train: give either data= (rows with a prompt) or task=, not both")
        options, files = _data_options(data, held_out, data_folder)
        task_name, options = "jsonl", {**options, **(task_options or {})}
    else:
        task_name, options, given_task = named_task(task, task_options)
    table: dict[str, Any] = {
        "name": name,
        "seed": seed,
        "model": dict(model) if isinstance(model, Mapping) else {"path": str(model)},
        "task": {"name": task_name, "options": options} | ({"reward": reward_names} if reward_names else {}),
        "stages": [dict(stage)],
    }
    for key, value in settings.items():
        set_key(table, key, value)
    return make_recipe(table), Given(rewards, given_task, files)


def _data_options(
    data: str | Path | Rows, held_out: str | Path | Rows | float | None, data_folder: Callable[[str], Path]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The options of the task `jsonl`, and the files that it will read."""
    if isinstance(data, (str, Path)):
        if held_out is None or isinstance(held_out, float):
            return {"train": str(data), "held_out_share": 0.1 if held_out is None else held_out}, {}
        if isinstance(held_out, (str, Path)):
            return {"train": str(data), "held_out": str(held_out)}, {}
        rows = _as_rows(held_out, "held_out")
        files = {"held_out.jsonl": _as_jsonl(rows)}
        return {"train": str(data), "held_out": str(data_folder(_hash(files)) / "held_out.jsonl")}, files
    rows = _as_rows(data, "data")
    if held_out is None or isinstance(held_out, float):
        rows, kept = _split(rows, held_out)
        files = {"train.jsonl": _as_jsonl(rows), "held_out.jsonl": _as_jsonl(kept)}
    elif isinstance(held_out, (str, Path)):
        files = {"train.jsonl": _as_jsonl(rows)}
        return {"train": str(data_folder(_hash(files)) / "train.jsonl"), "held_out": str(held_out)}, files
    else:
        files = {"train.jsonl": _as_jsonl(rows), "held_out.jsonl": _as_jsonl(_as_rows(held_out, "held_out"))}
    folder = data_folder(_hash(files))
    return {"train": str(folder / "train.jsonl"), "held_out": str(folder / "held_out.jsonl")}, files


def _as_rows(data: Any, where: str) -> list[Mapping[str, Any]]:
    """Rows of a list of dicts, a `datasets.Dataset`, or a pandas frame."""
    if hasattr(data, "to_dict") and hasattr(data, "columns") and not hasattr(data, "to_list"):
        data = data.to_dict("records")
    rows = list(data)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise ConfigError(f"{where}, row {number}: expected a dict such as {{'prompt': …}}, got {row!r:.60}")
    return rows


def _split(rows: Sequence[Mapping[str, Any]], share: float | None) -> tuple[list[Any], list[Any]]:
    """Hold out some rows, chosen by a hash of their content, so that the order of the rows does not matter."""
    wanted = min(MAX_HELD_OUT, max(1, len(rows) // 10)) if share is None else max(1, round(share * len(rows)))
    if wanted >= len(rows):
        raise ConfigError(
            f"data: {len(rows)} rows are too few to hold out {wanted} of them; pass more rows, or held_out="
        )
    chosen = {id(row) for row in sorted(rows, key=lambda row: share_of(_line(row)))[:wanted]}
    return [row for row in rows if id(row) not in chosen], [row for row in rows if id(row) in chosen]


def _as_jsonl(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"{_line(row)}\n" for row in rows)


def _line(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(row), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"data: a row holds a value that JSON has no form for ({error}): {row!r:.80}") from None


def _hash(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:8]
