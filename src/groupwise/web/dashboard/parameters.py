"""The parameters of a request: untrusted text as checked values.

Contract: a parameter that is unknown, repeated where a single one is expected, or has an invalid value is a
`ParameterError` that names it, its value and the fix. An empty value counts as missing.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import parse_qsl

from groupwise.base.text_layout import shortened

MAX_FIELDS = 64
SHOWN_CHARS = 60
MAX_CHARACTERS = 1000
MAX_WHOLE = 10**9


class ParameterError(ValueError):
    """A request with an invalid parameter."""

    def __init__(self, parameter: str | None, message: str) -> None:
        super().__init__(message if parameter is None else f"parameter {parameter}: {message}")
        self.parameter = parameter


class NotServed(LookupError):
    """There is no such address, run or group."""


def parse_parameters(query: str) -> Parameters:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        raise ParameterError(None, f"the query is not UTF-8, or has over {MAX_FIELDS} parameters") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if value:
            values.setdefault(name, []).append(value)
    return Parameters(values)


class Parameters:
    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self._values = values

    def allow(self, *names: str) -> None:
        for name in self._values:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                known = f"did you mean {close[0]}?" if close else f"known parameters: {', '.join(names) or 'none'}"
                raise ParameterError(shortened(name, SHOWN_CHARS), f"is unknown; {known}")

    def text(self, name: str) -> str:
        """Return the value, or "" if it is not given."""
        return "".join(self.texts(name, max_count=1))

    def texts(self, name: str, max_count: int = MAX_FIELDS) -> tuple[str, ...]:
        values = tuple(self._values.get(name, ()))
        if len(values) > max_count:
            raise ParameterError(name, f"is given {len(values)} times; give it once")
        for value in values:
            if len(value) > MAX_CHARACTERS:
                raise ParameterError(
                    name, f"{shortened(value, SHOWN_CHARS)!r} is too long; at most {MAX_CHARACTERS} characters"
                )
        return values

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        return "".join(self.choices(name, choices, max_count=1)) or default

    def choices(self, name: str, choices: Collection[str], max_count: int = MAX_FIELDS) -> tuple[str, ...]:
        values = self.texts(name, max_count)
        for value in values:
            if value not in choices:
                raise ParameterError(name, f"{shortened(value, SHOWN_CHARS)!r} is not one of {', '.join(choices)}")
        return values

    def whole(self, name: str, largest: int = MAX_WHOLE) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) > largest:
            raise ParameterError(name, f"{shortened(text, SHOWN_CHARS)!r} is not an integer from 0 to {largest}")
        return int(text)

    def required_whole(self, name: str) -> int:
        value = self.whole(name)
        if value is None:
            raise ParameterError(name, f"is missing; give an integer from 0 to {MAX_WHOLE}")
        return value

    def number(self, name: str) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ParameterError(name, f"{shortened(text, SHOWN_CHARS)!r} is not a finite number, such as 0.5")
        return value
