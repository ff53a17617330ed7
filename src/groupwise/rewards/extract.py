"""Finds the answer in a completion: the last `\\boxed{}`, `####` line, `FINAL:` line, `<answer>` element or number.

Each function is linear and returns text exactly as the model wrote it; what the text means is for
`numbers`, `math` and `countdown` to say. Where a completion gives several answers, the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from groupwise.config.build import ConfigError

# Possessive `*+`: a run of spaces without a brace after it must not be tried again from every length.
_BOX_TOKEN = re.compile(
    r"(?P<box>\\(?:boxed|fbox)\s*+\{)|\\boxed\s*+(?P<digit>[0-9])(?![0-9])|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL
)
_NUMBER = re.compile(
    r"(?:(?<![0-9A-Za-z)\]}.])[-−])?"  # a sign, but not the minus of a subtraction
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"(?:/[0-9]+(?![.0-9]))?"
)


_FINAL = re.compile(r"^[ \t*_>#]*+final(?: answer)?[ \t*_]*+:[ \t*_]*+([^\n]*+)", re.IGNORECASE | re.MULTILINE)

AnswerMark = Literal["boxed", "hashes", "final", "tag", "number"]
MAX_TRIES_FROM_THE_END = 4


class FoundAnswer(NamedTuple):
    start: int
    """Where it begins in the completion: to tell which of two answers comes later."""
    text: str


def last_boxed(completion: str) -> FoundAnswer | None:
    """The content of the `\\boxed{}` that opens last among those whose braces balance; `\\boxed 9` is one too."""
    # From the end: nearly always the last box balances. Of many that do not, each would be read to the end again.
    end = len(completion)
    for _ in range(MAX_TRIES_FROM_THE_END):
        end = max(completion.rfind("\\boxed", 0, end), completion.rfind("\\fbox", 0, end))
        if end < 0:
            return None
        found = _box_at(completion, end)
        if found is not None:
            return found
    return _last_boxed_in_one_pass(completion)


def _box_at(completion: str, start: int) -> FoundAnswer | None:
    """The box that begins exactly here; None where there is none or it stays open."""
    if start and completion[start - 1] == "\\":
        num_backslashes = start - len(completion[:start].rstrip("\\"))
        if num_backslashes % 2:  # `\\\\boxed` is a line break and a word
            return None
    depth, content_start = 0, 0
    for token in _BOX_TOKEN.finditer(completion, start):
        if not depth:
            if token.start() != start:
                return None
            if token["digit"]:
                return FoundAnswer(start, token["digit"])
            if not token["box"]:
                return None
            depth, content_start = 1, token.end()
        elif token["box"] or token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
            if depth == 0:
                return FoundAnswer(start, completion[content_start : token.start()])
    return None


def _last_boxed_in_one_pass(completion: str) -> FoundAnswer | None:
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
    return FoundAnswer(best[0], completion[best[1] : best[2]])


def after_hashes(completion: str) -> FoundAnswer | None:
    """The rest of the line after the last `####`, as GSM8K marks its answers."""
    start = completion.rfind("####")
    if start < 0:
        return None
    end = completion.find("\n", start)
    return FoundAnswer(start, completion[start + 4 : None if end < 0 else end].strip())


def last_tag(completion: str, tag: str = "answer") -> FoundAnswer | None:
    """The content of the last complete `<tag>…</tag>`; an element that was cut off does not count."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = completion.rfind(opening, 0, max(0, completion.rfind(closing)))
    if start < 0:
        return None
    content = start + len(opening)
    return FoundAnswer(start, completion[content : completion.find(closing, content)])


def after_final(completion: str) -> FoundAnswer | None:
    """The rest of the last line that begins with `FINAL:` or `Final answer:`, in capitals or not."""
    last = None
    for match in _FINAL.finditer(completion):
        last = match
    return None if last is None else FoundAnswer(last.start(), last[1].rstrip(" \t\r*_"))


def last_number(completion: str) -> str | None:
    """The last number written in digits, with its sign, thousands separators, decimals or `/denominator`."""
    found = _last_number(completion)
    return None if found is None else found.text


def _last_number(completion: str) -> FoundAnswer | None:
    # A number is found from its first character on, so the search begins where no number can be under way.
    size = 64
    while size < len(completion):
        start = completion.rfind(" ", 0, len(completion) - size)
        if start >= 0 and (found := _last_number_from(completion, start)):
            return found
        size *= 8
    return _last_number_from(completion, 0)


def _last_number_from(completion: str, start: int) -> FoundAnswer | None:
    last = None
    for match in _NUMBER.finditer(completion, start):
        last = match
    return None if last is None else FoundAnswer(last.start(), last[0])


def final_answer(
    completion: str, marks: Sequence[AnswerMark] = ("boxed", "hashes"), *, opens_boxes: bool = True
) -> FoundAnswer | None:
    """What the first of these marks that is in the completion marks; a box inside of what is marked is opened."""
    for mark in marks:
        found = _FINDERS[mark](completion)
        if found is None:
            continue
        boxed = last_boxed(found.text) if opens_boxes and mark in ("hashes", "final", "tag") else None
        return found if boxed is None else FoundAnswer(found.start, boxed.text)
    return None


def mark_answer(mark: AnswerMark, answer: str) -> str:
    """A completion that gives this answer, as `final_answer` finds it."""
    return _FORMS[mark].format(answer)


def describe_missing(marks: Sequence[AnswerMark]) -> str:
    """For `Score.detail`: what was looked for."""
    return "no " + " and no ".join(_MARK_NAMES[mark] for mark in marks)


def check_marks(marks: Sequence[AnswerMark], *, key: str = "answer_marks") -> None:
    """For a task's options: at least one mark, and none twice."""
    if not marks or len(set(marks)) < len(marks) or not set(marks) <= set(_FINDERS):
        raise ConfigError(f"{key} = {list(marks)}: expected one or more of {', '.join(_FINDERS)}, each once")


_FINDERS: dict[AnswerMark, Callable[[str], FoundAnswer | None]] = {
    "boxed": last_boxed,
    "hashes": after_hashes,
    "final": after_final,
    "tag": last_tag,
    "number": _last_number,
}
_FORMS: dict[AnswerMark, str] = {
    "boxed": "\\boxed{{{}}}",
    "hashes": "#### {}",
    "final": "FINAL: {}",
    "tag": "<answer>{}</answer>",
    "number": "{}",
}
_MARK_NAMES: dict[AnswerMark, str] = {
    "boxed": "\\boxed{}",
    "hashes": "####",
    "final": "FINAL:",
    "tag": "<answer> element",
    "number": "number",
}
