"""Finds the answer in a completion: the last `\\boxed{}`, `####` line, `<answer>` element or number.

Each function is one linear pass and returns text exactly as the model wrote it; what the text means is for
`numbers`, `math` and `countdown` to say. Where a completion gives several answers, the last one counts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Possessive `*+`: a run of spaces without a brace after it must not be tried again from every length.
_BOX_TOKEN = re.compile(
    r"(?P<box>\\(?:boxed|fbox)\s*+\{)|\\boxed\s*+(?P<digit>[0-9])(?![0-9])|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL
)
_NUMBER = re.compile(
    r"(?:(?<![0-9A-Za-z)\]}.])[-−])?"  # a sign, but not the minus of a subtraction
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"(?:/[0-9]+(?![.0-9]))?"
)


class Found(NamedTuple):
    start: int
    """Where it begins in the completion: to tell which of two answers comes later."""
    text: str


def last_boxed(completion: str) -> Found | None:
    """The content of the `\\boxed{}` that opens last among those whose braces balance; `\\boxed 9` is one too."""
    if "\\boxed" not in completion and "\\fbox" not in completion:
        return None
    # One stack for all braces; entries are (start of the box or -1 for a plain brace, start of its content).
    open_braces: list[tuple[int, int]] = []
    best: tuple[int, int, int] | None = None
    for token in _BOX_TOKEN.finditer(completion):
        if token["box"]:
            open_braces.append((token.start(), token.end()))
        elif token["digit"]:
            best = (token.start(), token.start("digit"), token.end())
        elif token["open"]:
            open_braces.append((-1, token.end()))
        elif token["close"] and open_braces:
            box_start, content_start = open_braces.pop()
            if box_start >= 0 and (best is None or box_start > best[0]):
                best = (box_start, content_start, token.start())
    if best is None:
        return None
    return Found(best[0], completion[best[1] : best[2]])


def after_hashes(completion: str) -> Found | None:
    """The rest of the line after the last `####`, as GSM8K marks its answers."""
    start = completion.rfind("####")
    if start < 0:
        return None
    end = completion.find("\n", start)
    return Found(start, completion[start + 4 : None if end < 0 else end].strip())


def last_tag(completion: str, tag: str = "answer") -> Found | None:
    """The content of the last complete `<tag>…</tag>`; an element that was cut off does not count."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = completion.rfind(opening, 0, max(0, completion.rfind(closing)))
    if start < 0:
        return None
    content = start + len(opening)
    return Found(start, completion[content : completion.find(closing, content)])


def last_number(completion: str) -> str | None:
    """The last number written in digits, with its sign, thousands separators, decimals or `/denominator`."""
    last = None
    for match in _NUMBER.finditer(completion):
        last = match
    return None if last is None else last[0]


def final_answer(completion: str) -> Found | None:
    """Whichever of the last `\\boxed{}` and the last `####` comes later."""
    found = [candidate for candidate in (last_boxed(completion), after_hashes(completion)) if candidate]
    return max(found, key=lambda candidate: candidate.start, default=None)
