"""Which runs are one experiment: the same recipe with another seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MAY_DIFFER = ("seed", "name", "description", "logging", "checkpoints")
"""Keys of a recipe that do not make it another experiment."""


def experiment_of(recipe: Mapping[str, Any]) -> str:
    """The same text for recipes that differ in nothing but their seed and what is written down of the run."""
    kept = {key: value for key, value in recipe.items() if key not in _MAY_DIFFER}
    return json.dumps(_without_empty_tables(kept), sort_keys=True, default=str)


def _without_empty_tables(value: Any) -> Any:
    """An empty table says nothing, and an older groupwise may not have had its name."""
    if isinstance(value, Mapping):
        kept = {key: _without_empty_tables(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item != {}}
    return [_without_empty_tables(item) for item in value] if isinstance(value, list) else value
