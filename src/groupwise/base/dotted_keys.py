"""Nested tables as pairs of dotted key and value, the form that `--set` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def dotted_items(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("stages.0.steps", 3) for {"stages": {"0": {"steps": 3}}}. An empty table is a value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from dotted_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
