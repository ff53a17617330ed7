"""The recipe and the info of a watched run, and the differences between two recipes, key by key.

Keys are flat, as `--set` takes them, with the names of stages. Values that JSON lacks become text: "inf", a date.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise.base.json_values import dotted_items, plain
from groupwise.runs import Run, RunReadError


def read_recipe(run_dir: Path) -> dict[str, Any]:
    """Return the recipe's table; {} if it is missing or damaged."""
    try:
        return Run(run_dir).recipe
    except RunReadError:
        return {}


def read_info(run_dir: Path) -> dict[str, Any]:
    """Return the content of run.json; {} if it is missing or damaged."""
    try:
        return Run(run_dir).info
    except RunReadError:
        return {}


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return {key: [value in one, value in the other]} of differing keys; None if a recipe does not set the key."""
    ours, theirs = flatten(one), flatten(other)
    keys = dict.fromkeys([*ours, *theirs])
    return {key: [ours.get(key), theirs.get(key)] for key in keys if ours.get(key) != theirs.get(key)}


def flatten(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"stages.grpo.sampling.temperature": 1.0, …}; "stages" is the list of stage names."""
    stages = stage_tables(recipe)
    items = [*dotted_items({key: value for key, value in recipe.items() if key != "stages"})]
    if stages:
        items += [("stages", list(stages)), *dotted_items(stages, "stages.")]
    return {key: plain(value, number=str) for key, value in items}


def stage_tables(recipe: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the stages by name; a repeated name gets its number."""
    named: dict[str, Mapping[str, Any]] = {}
    stages = recipe.get("stages")
    tables = [table for table in stages if isinstance(table, Mapping)] if isinstance(stages, list) else []
    for number, table in enumerate(tables):
        name = str(table.get("name") or table.get("algorithm") or number)
        named[f"{name}-{number}" if name in named else name] = table
    return named
