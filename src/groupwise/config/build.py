"""Builds frozen dataclasses from tables of plain values; every error names the key, the value and the fix.

`build` knows the types that recipes use: str, int, float, bool, Literal, unions of these, tuples, mappings and nested
dataclasses. A dataclass may raise a `ConfigError` in `__post_init__`; a `Config` does so for numbers outside of their
limits. The same function builds tasks: a task is a dataclass, and its fields are the keys of `[task.options]`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from groupwise.base.text_layout import shortened
from groupwise.config.synonyms import SYNONYMS

T = TypeVar("T")
type_hints: Callable[..., dict[str, Any]] = functools.cache(typing.get_type_hints)


class ConfigError(ValueError):
    """A recipe that cannot be run. The message names the key, the value and what to write instead."""


class UnknownKey(ConfigError):
    """A key that its table does not have."""

    def __init__(self, where: str, key: str, hint: str) -> None:
        super().__init__(f"{_join(where, shortened(key, 80))}: unknown key; {hint}")
        self.where, self.key = where, key


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclasses.dataclass(frozen=True)
class Within:
    """The values that a number in a recipe may have: `x: Annotated[float, Within("[0, 1)")]`."""

    interval: str
    """As in mathematics: "[0, 1)" includes 0 but not 1."""
    hint: str = ""
    """What to write instead, for the message."""
    also: float | None = None
    """One more value, which turns something off."""

    @property
    def words(self) -> str:
        """The interval in words."""
        low, high = (f"{float(end):,.16g}" for end in self.interval[1:-1].split(","))
        has_low, has_high = self.interval[0] == "[", self.interval[-1] == "]"
        both = f"{'at least' if has_low else 'above'} {low} and {'at most' if has_high else 'below'} {high}"
        also = "" if self.also is None else f", or {self.also:g} (off)"
        return (f"from {low} to {high}" if has_low and has_high else both) + also

    def check(self, key: str, value: float) -> None:
        low, high = map(float, self.interval[1:-1].split(","))
        is_end = (self.interval[0] == "[" and value == low) or (self.interval[-1] == "]" and value == high)
        is_inside = low < value < high or is_end or value == self.also
        require(is_inside, f"{key} = {shown(value)}: must be {self.words}{self.hint and f'; {self.hint}'}")


@dataclasses.dataclass(frozen=True)
class Like:
    """The form of a text in a recipe: `x: Annotated[str, Like("[a-z]+", "use lower-case letters")]`."""

    pattern: str
    hint: str

    def check(self, key: str, value: str) -> None:
        require(re.fullmatch(self.pattern, value, re.DOTALL) is not None, f"{key} = {shown(value)}: {self.hint}")


MAX_SEED = 2**53
"""Integers up to this are exact in any JSON."""
Amount = Annotated[float, Within("[-1e6, 1e6]")]
Share = Annotated[float, Within("[0, 1]")]
Seconds = Annotated[float, Within("(0, 1e7]")]
Count = Annotated[int, Within("[1, 1e9]")]
CountOrZero = Annotated[int, Within("[0, 1e9]")]
Seed = Annotated[int, Within(f"[0, {MAX_SEED}]")]
NAME_HINT = "use 1 to 48 letters, digits, '.', '_' or '-', and no '.' at the start"
Name = Annotated[str, Like(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,47}", NAME_HINT)]


class Config:
    """The base of frozen dataclasses whose annotations limit their numbers: the tables of a recipe, and tasks."""

    __slots__ = ()

    def __post_init__(self) -> None:
        hints: dict[str, Any] = {}
        for cls in reversed(type(self).__mro__):
            with contextlib.suppress(NameError):  # your own task may be in a function, and name types found only there
                hints |= type_hints(cls, include_extras=True)
        for key, hint in hints.items():
            _check_limits(hint, key, getattr(self, key, None))
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together. Each value alone is known to be within its limits."""


def _check_limits(hint: Any, key: str, value: Any) -> None:
    """Check a value, and what is in a list or table, against the limits in its annotation."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        for limit in hint.__metadata__:
            limit.check(key, value)
    elif origin in (typing.Union, types.UnionType):
        for option in options:
            kind = getattr(option, "__origin__", None)
            if isinstance(kind, type) and isinstance(value, kind):
                _check_limits(option, key, value)
    elif origin is tuple:
        for index, entry in enumerate(value):
            _check_limits(options[0], f"{key}.{index}", entry)
    elif isinstance(value, Mapping) and options:
        for name, entry in value.items():
            _check_limits(options[1], f"{key}.{name}", entry)


def shown(value: Any, max_chars: int = 80) -> str:
    """Return a value as messages show it: on one line, and not all of a long one."""
    if isinstance(value, int) and abs(value) >= 10**max_chars:  # Python refuses to write thousands of digits
        return f"an integer of about {round(value.bit_length() * math.log10(2)):,} digits"
    return shortened(repr(value), max_chars)


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return "did you mean 'x'?", or the list of candidates when none is close."""
    candidates = sorted(candidates)
    meant = [candidate for candidate in candidates if candidate == SYNONYMS.get(word.lower())]
    swapped = [candidate for candidate in candidates if sorted(candidate) == sorted(word)]
    begun = [
        one for one in candidates if min(len(one), len(word)) > 2 and (one.startswith(word) or word.startswith(one))
    ]
    close = meant or swapped or difflib.get_close_matches(word, candidates, n=1, cutoff=0.75)
    if close or len(begun) == 1:
        return f"did you mean {(close or begun)[0]!r}?"
    return "known: " + (", ".join(candidates) or "none")


def build(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """Make `cls` from `table`. `where` is the dotted name of the table, for messages ("" for the whole recipe)."""
    if not isinstance(table, Mapping):
        known = ", ".join(f.name for f in dataclasses.fields(cls) if f.init)
        raise ConfigError(f"{where or 'recipe'}: expected a table, got {shown(table)}; its keys: {known}")
    hints = type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise UnknownKey(where, key, nearest(key, fields))
    values = {}
    for name, spec in fields.items():
        if name in table:
            values[name] = _convert(hints[name], table[name], _join(where, name))
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{_join(where, name)}: missing; set it to {_describe(hints[name])}")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(str(error) if not where else f"{where}: {error}") from None


def to_table(value: Any) -> Any:
    """Return the plain values from which `build` makes `value` again; keys whose value is None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init)
        return {name: to_table(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {key: to_table(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_table(item) for item in value]
    return value


def key_paths(cls: type[Any], where: str) -> Iterator[str]:
    """Yield the dotted name of every key of a dataclass and of those nested in it."""
    for name, hint in type_hints(cls).items():
        yield _join(where, name)
        for option in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(option):
                yield from key_paths(typing.cast(type, option), _join(where, name))


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = tuple(option for option in options if option is not type(None))
        if value is None:
            return None
        if len(options) == 1:
            return _convert(options[0], value, where)
        for option in options:
            if type(value) is option or (typing.get_origin(option) is Literal and value in typing.get_args(option)):
                return value
            if isinstance(value, Mapping) and isinstance(typing.get_origin(option), type):
                return _convert(option, value, where)
    elif origin is Literal:
        if value not in options:
            raise ConfigError(f"{where} = {shown(value)}: {nearest(str(value), map(str, options))}")
        return value
    elif origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(options[0], entry, f"{where}.{index}") for index, entry in enumerate(value))
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {str(key): _convert(options[1], entry, f"{where}.{key}") for key, entry in value.items()}
    elif dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where)
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise ConfigError(f"{where}: too large for a number")
        return float(value)
    elif hint is Any or type(value) is hint:
        return value
    raise ConfigError(f"{where} = {shown(value)}: expected {_describe(hint)}, got {type(value).__name__}")


def _describe(hint: Any) -> str:
    """Return the name of a type for people who write TOML."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(option) for option in typing.get_args(hint) if option is not type(None))
    if origin is tuple:
        return f"a list of {_describe(typing.get_args(hint)[0])}"
    if dataclasses.is_dataclass(hint) or (origin is not None and issubclass(origin, Mapping)):
        return "a table"
    plain = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    return plain.get(hint, str(hint))
