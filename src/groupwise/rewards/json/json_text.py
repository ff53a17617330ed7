"""JSON in a completion, found and parsed more strictly than by `json`.

Refused although Python's `json` accepts it: repeated keys, NaN and Infinity, numbers that overflow or have more than 64
characters, half a surrogate pair, more than 64 KB of text or 64 levels. Length and depth are checked before anything is
parsed. Every function is linear in the text.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any, NoReturn

from groupwise.rewards.extract import last_fenced, last_tag

MAX_JSON_CHARS = 65_536
MAX_DEPTH = 64
MAX_NUMBER_CHARS = 64

_LANGUAGES = frozenset(("json",))
_OPENING = {"}": "{", "]": "["}
# To the next bracket outside strings. An unclosed string extends to the end of its line, so that no character is
# scanned twice.
_NEXT_BRACKET = re.compile(r'(?:[^"{}\[\]]++|"(?:[^"\\\n]|\\.)*+"?)*+([{}\[\]])')
_OPEN_BRACKET = re.compile(r"[{\[]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class NotJsonError(ValueError):
    """The text is not accepted as JSON; the message says why."""


def find_json(completion: str) -> str | None:
    """Return the last ```` ```json ```` block, else the last block, else `<answer>`, else the last outer {…} or […]."""
    text = last_fenced(completion, _LANGUAGES, skip_strings=True)
    if text is None:
        tag = last_tag(completion)
        text = last_brackets(completion) if tag is None else tag.text
    return text if text and text.strip() else None


def last_brackets(text: str) -> str | None:
    """Return the last outermost {…} or […] that is closed. Brackets in its strings do not count."""
    span: tuple[int, int] | None = None
    opening = _OPEN_BRACKET.search(text)
    while opening is not None:
        closing = _closing(text, opening.start())
        if closing is None:
            break  # cut off: everything after it is inside
        end, is_closed = closing
        if is_closed:
            span = (opening.start(), end)
        opening = _OPEN_BRACKET.search(text, end)
    return None if span is None else text[span[0] : span[1]]


def _closing(text: str, start: int) -> tuple[int, bool] | None:
    """Return where the bracket at `start` is closed, or (False) meets a wrong one; None at the end of the text."""
    open_brackets: list[str] = []
    position = start
    while token := _NEXT_BRACKET.match(text, position):
        position, bracket = token.end(), token[1]
        if bracket in "{[":
            open_brackets.append(bracket)
        elif open_brackets.pop() != _OPENING[bracket]:
            return position, False
        elif not open_brackets:
            return position, True
    return None


def parse_json(text: str) -> Any:
    """Return the value of a text that is only JSON; raise `NotJsonError` otherwise."""
    if len(text) > MAX_JSON_CHARS:
        raise NotJsonError(f"longer than {MAX_JSON_CHARS} characters")
    # Most texts have too few brackets to be deep.
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise NotJsonError(f"nested more than {MAX_DEPTH} deep")
    try:
        value = _DECODER.decode(text)
        if not text.isascii():
            text.encode()
        if "\\u" in text and _SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise NotJsonError("half a surrogate pair") from None
    except NotJsonError:
        raise
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    return value


def _depth(text: str) -> int:
    depth = deepest = position = 0
    while token := _NEXT_BRACKET.match(text, position):
        position = token.end()
        depth += 1 if token[1] in "{[" else -1
        deepest = max(deepest, depth)
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotJsonError("a key is repeated in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER_CHARS:
        raise NotJsonError(f"a number of more than {MAX_NUMBER_CHARS} characters")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits) if len(digits) <= MAX_NUMBER_CHARS else math.inf
    if not math.isfinite(value):
        raise NotJsonError(f"a number that is too large or has more than {MAX_NUMBER_CHARS} characters")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise NotJsonError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_real, parse_constant=_refuse_constant
)


def is_same_json(one: Any, other: Any) -> bool:
    """Compare as JSON: keys in any order, items in order; 1 equals 1.0, but true does not equal 1."""
    if isinstance(one, dict):
        if not isinstance(other, dict) or one.keys() != other.keys():
            return False
        return all(is_same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        if not isinstance(other, list) or len(one) != len(other):
            return False
        return all(map(is_same_json, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


@functools.lru_cache(maxsize=1024)
def parse_trusted(text: str) -> Any:
    """Parse a text that is needed repeatedly, once. The value is shared: do not change it."""
    return parse_json(text)
