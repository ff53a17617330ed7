"""Numbers with commas between them, as several options take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from groupwise.config import ConfigError

Number = TypeVar("Number", int, float)


def parse_numbers(text: str, option: str, example: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected numbers, as in {example}") from None
