"""JSON as the types that records declare, so that what reads a record can rely on them.

Contract: `typed` returns a value of the type, or raises a ValueError that names the field, what it is and what is
expected. Integers are from 0 to `MAX_WHOLE`. Keys that a type does not declare are ignored.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import reprlib
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

MAX_WHOLE = 2**53
"""Every integer up to here is a float too, in JavaScript as well."""
_FLOAT_NAMES = ("NaN", "Infinity", "-Infinity")
_WORDS = {
    str: "a string",
    bool: "true or false",
    int: f"an integer from 0 to {MAX_WHOLE}",
    float: "a number",
    tuple: "a list",
    Mapping: "an object",
}


def typed(kind: Any, value: Any, name: str = "") -> Any:
    """Return `value`, which JSON said, as a `kind`.

    Kinds are dataclasses, enums, str, bool, int, float, `tuple[T, ...]`, `Mapping[str, T]`, unions of one of them with
    None, and Any. A float may be given by its name, and null is NaN. Of a table that has other keys too, a mapping of
    keys to kinds says which are checked where they are set; `[kind]` is a list. Both are returned as they are.
    """
    if kind is Any:
        return value
    if isinstance(kind, Mapping):
        _require(isinstance(value, Mapping), Mapping, value, name)
        _fields(kind, value, name)
        return value
    if isinstance(kind, list):
        _require(isinstance(value, list), tuple, value, name)
        _items(kind[0], value, name)
        return value
    origin = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        (part,) = (each for each in get_args(kind) if each is not type(None))
        return None if value is None else typed(part, value, name)
    if origin is float:
        return _float(value, name)
    if origin in (str, bool, int):
        _require(type(value) is origin and (origin is not int or 0 <= value <= MAX_WHOLE), origin, value, name)
        return value
    if origin is tuple:
        _require(isinstance(value, list), tuple, value, name)
        return _items(get_args(kind)[0], value, name)
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        _require(value in list(origin), origin, value, name)
        return origin(value)
    _require(isinstance(value, Mapping), Mapping, value, name)
    if origin is Mapping:
        return dict(zip(value, _items(get_args(kind)[1], list(value.values()), name), strict=True))
    optional, hints = _declared(kind)
    missing = [key for key in hints if key not in value and key not in optional]
    _require(not missing, Mapping, value, name, f" with {missing[0]!r}" if missing else "")
    return kind(**_fields(hints, value, name))


def _float(value: Any, name: str) -> float:
    if value is None:
        return math.nan
    is_number = type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)
    _require(is_number or (type(value) is str and value in _FLOAT_NAMES), float, value, name)
    return float(value)


def _items(kind: Any, values: list[Any], name: str) -> tuple[Any, ...]:
    found = set(map(type, values))
    # Thousands of numbers in each rollout: one look at all their types.
    is_right = kind in (str, float) and found <= {kind}
    is_whole = kind is int and found == {int} and min(values) >= 0 and max(values) <= MAX_WHOLE
    if kind is Any or is_right or is_whole:
        return tuple(values)
    return tuple(typed(kind, value, f"{name}[{number}]") for number, value in enumerate(values))


def _fields(hints: Mapping[str, Any], table: Mapping[str, Any], name: str) -> dict[str, Any]:
    prefix = f"{name}." if name else ""
    return {key: typed(hint, table[key], prefix + key) for key, hint in hints.items() if key in table}


@cache
def _declared(kind: Any) -> tuple[frozenset[str], dict[str, Any]]:
    """The fields of a dataclass that may be missing, and the types of all."""
    fields = dataclasses.fields(kind)
    required = {field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING}
    return frozenset({field.name for field in fields} - required), get_type_hints(kind)


def _require(is_right: bool, kind: Any, value: Any, name: str, more: str = "") -> None:
    if not is_right:
        expected = _WORDS.get(kind) or f"one of {', '.join(map(str, kind))}"
        raise ValueError(f"{name or 'it'} is {reprlib.repr(value)}, expected {expected}{more}")
