"""Plain values: what JSON holds instead of NaN, infinities and other types, and nested tables by dotted keys."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def finite_or_none(value: float) -> float | None:
    """Return `value` as a float, or None (JSON's null) for NaN and the infinities, which JSON lacks."""
    value = float(value)
    return value if math.isfinite(value) else None


def finite_or_name(value: float) -> float | str:
    """Return `value`, or "NaN", "Infinity" or "-Infinity", which `float` reads back."""
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain(value: Any, number: Callable[[float], Any] = finite_or_none) -> Any:
    """Return a copy that JSON can hold: dataclasses as objects, sets as lists, unknown types as their text.

    `number` converts floats that are not finite: to null by default, and with `str` to what TOML writes ("inf", "nan").
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(float(value)) else number(float(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), number) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, number) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, number) for item in value]
    return str(value)


def dotted_items(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield pairs as `--set` takes them: ("a.b", 3) for {"a": {"b": 3}}. An empty table is a value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from dotted_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
