"""Groups of runs of one experiment: the same recipe with different seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

_MAY_DIFFER = ("seed", "name", "description", "logging", "checkpoints")
"""Keys of a recipe that may differ within one experiment."""


class HasRecipe(Protocol):
    @property
    def recipe(self) -> Mapping[str, Any]: ...


R = TypeVar("R", bound=HasRecipe)


def by_experiment(runs: Iterable[R]) -> list[list[R]]:
    """Group the runs that differ only in seed, name, logging and checkpoints; the order given is kept."""
    alike: dict[str, list[R]] = {}
    for run in runs:
        kept = {key: value for key, value in run.recipe.items() if key not in _MAY_DIFFER}
        mark = json.dumps(_without_empty_tables(kept), sort_keys=True, default=str)
        alike.setdefault(mark, []).append(run)
    return list(alike.values())


def _without_empty_tables(value: Any) -> Any:
    """Drop empty tables: they set nothing, and an older groupwise may not have written them."""
    if isinstance(value, Mapping):
        kept = {key: _without_empty_tables(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item != {}}
    return [_without_empty_tables(item) for item in value] if isinstance(value, list) else value
