"""Answers in a completion: the last `\\boxed{}`, `####` or `FINAL:` line, `<answer>` element, number or fenced block.

Each function is linear and returns text exactly as the model wrote it. Of several answers the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from groupwise.config.build import ConfigError
from groupwise.rewards.numbers import MAX_NUMBER_CHARS, NUMBER

# Possessive `*+`: a run of spaces without a brace must not be retried from every length.
_BOX_TOKEN = re.compile(
    r"(?P<box>\\(?:boxed|fbox)\s*+\{)|\\boxed\s*+(?P<digit>[0-9])(?![0-9])|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL
)
# Between two boxes of a list: a comma, a semicolon or a word for them, among spaces and signs of mathematics.
_BLANK = r"(?:[\s$.]|\\[,;:! ()\[\]]|\\q?quad(?![A-Za-z]))*+"
_AND = re.compile(rf"{_BLANK}(?:[,;]|(?:[,;]{_BLANK})?(?:and|or|\\text\{{\s*+(?:and|or)\s*+\}})){_BLANK}")
_FINAL = re.compile(r"^[ \t*_>#]*+final(?: answer)?[ \t*_]*+:[ \t*_]*+([^\n]*+)", re.IGNORECASE | re.MULTILINE)
_FENCE = re.compile(r"(?P<ticks>```+)(?P<word>[\w+#.-]*)(?P<alone>(?=[ \t\r]*+$))?", re.MULTILINE)
# An unclosed string extends to the end of its line, so that no character is scanned twice.
_STRINGS = r'(?:[^"`]++|"(?:[^"\\\n]++|\\.)*+"?|`{1,2}+(?!`))*+'
_STRINGS_AND_FENCE = re.compile(_STRINGS + _FENCE.pattern, re.MULTILINE)

AnswerMark = Literal["boxed", "hashes", "final", "tag", "number"]
MAX_TRIES_FROM_THE_END = 4
MAX_LISTED_CHARS = 200
"""The most from one box of a list to the next."""


class FoundAnswer(NamedTuple):
    start: int
    """Position in the completion, to compare which of two answers comes later."""
    text: str
    listed: str = ""
    """With the boxes before it, where they end in a list: `1, 2` for `\\boxed{1}, \\boxed{2}` or `… and …`."""

    @property
    def readings(self) -> tuple[str, ...]:
        """What the answer may be."""
        return (self.text, self.listed) if self.listed else (self.text,)


def last_boxed(completion: str) -> FoundAnswer | None:
    """Return the content of the balanced `\\boxed{}` that opens last; `\\boxed 9` counts too."""
    # From the end, since the last box is nearly always balanced. Each unbalanced one costs a pass to the end.
    start = len(completion)
    for _ in range(MAX_TRIES_FROM_THE_END):
        start = max(completion.rfind("\\boxed", 0, start), completion.rfind("\\fbox", 0, start))
        if start < 0:
            return None
        num_backslashes = start - len(completion[:start].rstrip("\\"))
        # `\\\\boxed` is a line break and a word.
        if num_backslashes % 2 == 0 and (found := _last_box(completion, start)):
            return found
    return _last_box(completion, 0)


def _last_box(completion: str, start: int) -> FoundAnswer | None:
    box = max(find_boxes(completion, start), default=None)
    if box is None:
        return None
    last, contents = FoundAnswer(box[0], completion[box[1] : box[2]]), [completion[box[1] : box[2]]]
    start = last.start
    while (before := completion.rfind("\\boxed", max(0, start - MAX_LISTED_CHARS), start)) >= 0:
        listed = completion[before:start]
        box = min(find_boxes(listed), default=None)
        if box is None or box[0] > 0 or not _AND.fullmatch(listed, box[2] + 1):
            break
        start = before
        contents.append(listed[box[1] : box[2]])
    return last._replace(listed=", ".join(reversed(contents)) if len(contents) > 1 else "")


def find_boxes(completion: str, start: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield (start, start of the content, end of the content) of each balanced box, in the order of their ends."""
    if "\\boxed" not in completion and "\\fbox" not in completion:
        return
    # One stack for all braces; entries are (start of the box or -1 for a plain brace, start of its content).
    open_braces: list[tuple[int, int]] = []
    for token in _BOX_TOKEN.finditer(completion, start):
        if token["box"]:
            open_braces.append(token.span())
        elif token["digit"]:
            yield token.start(), token.start("digit"), token.end()
        elif token["open"]:
            open_braces.append((-1, token.end()))
        elif token["close"] and open_braces:
            box_start, content_start = open_braces.pop()
            if box_start >= 0:
                yield box_start, content_start, token.start()


def after_hashes(completion: str) -> FoundAnswer | None:
    """Return the rest of the line after the last `####`, which marks answers in GSM8K."""
    start = completion.rfind("####")
    return None if start < 0 else FoundAnswer(start, completion[start + 4 :].partition("\n")[0].strip())


def last_tag(completion: str, tag: str = "answer") -> FoundAnswer | None:
    """Return the content of the last complete `<tag>…</tag>`."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = completion.rfind(opening, 0, max(0, completion.rfind(closing)))
    if start < 0:
        return None
    content = start + len(opening)
    return FoundAnswer(start, completion[content : completion.find(closing, content)])


def after_final(completion: str) -> FoundAnswer | None:
    """Return the rest of the last line that begins with `FINAL:` or `Final answer:`, in any case."""
    last = _last(_FINAL.finditer(completion))
    return None if last is None else FoundAnswer(last.start(), last[1].rstrip(" \t\r*_"))


def last_number(completion: str) -> FoundAnswer | None:
    """Return the last `NUMBER` that is no date, version or ratio."""
    last, size, start = None, 4 * MAX_NUMBER_CHARS, len(completion)
    while start > 0 and (last is None or last.start() - start < MAX_NUMBER_CHARS):
        # Search from a space near the end. A number close to it may have been cut in two, as `2 1/2`.
        start = max(0, completion.rfind(" ", 0, max(0, len(completion) - size)))
        last = _last(match for match in NUMBER.finditer(completion, start) if not match["chain"])
        size *= 8
    return None if last is None else FoundAnswer(last.start(), last[0])


def _last(matches: Iterable[re.Match[str]]) -> re.Match[str] | None:
    last = None
    for match in matches:
        last = match
    return last


def last_fenced(completion: str, languages: Collection[str], *, skip_strings: bool = False) -> str | None:
    """Return the content of the last closed block in one of the (lower-case) languages, else of the last closed block.

    A fence may be inside a line, since small models write `SELECT 1;```` at the end of one. `skip_strings`: a fence
    inside a "string" of an open block is part of the string, as in JSON with Markdown in it.
    """
    wanted: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    opened: tuple[str, int] | None = None
    position = 0
    while token := (_STRINGS_AND_FENCE.match if opened and skip_strings else _FENCE.search)(completion, position):
        word, start = token["word"], token.start("ticks")
        between = completion[position:start]
        indent = between[between.rfind("\n") + 1 :]
        starts_line = not indent.strip(" \t") and (position == 0 or "\n" in between)
        # A word is a language if it is a wanted one or ends the line; in "```SELECT 1```" it is content.
        is_language = word.lower() in languages or (word != "" and token["alone"] is not None)
        # A fence with a language at the start of a line opens a block, even if another is open.
        if opened is None or (is_language and starts_line):
            position = token.end()
            opened = (word.lower(), position if is_language else token.start("word"))
            continue
        last = (opened[1], start - len(indent) if starts_line else start)
        if opened[0] in languages:
            wanted = last
        opened, position = None, token.start("word")
    span = wanted or last
    return None if span is None else completion[span[0] : span[1]]


def fenced_or_tagged(completion: str, languages: Collection[str], *, skip_strings: bool = False) -> str | None:
    """Return the content of `last_fenced`; without a closed block, that of the last `<answer>`."""
    text = last_fenced(completion, languages, skip_strings=skip_strings)
    tag = last_tag(completion) if text is None else None
    return text if tag is None else tag.text


def final_answer(
    completion: str, marks: Sequence[AnswerMark] = ("boxed", "hashes"), *, opens_boxes: bool = True
) -> FoundAnswer | None:
    """Return the answer of the first of these marks that is in the completion; a box inside it is opened."""
    for mark in marks:
        found = _MARKS[mark].find(completion)
        if found is not None:
            boxed = last_boxed(found.text) if opens_boxes and mark in ("hashes", "final", "tag") else None
            return found if boxed is None else boxed._replace(start=found.start)
    return None


def mark_answer(mark: AnswerMark, answer: str) -> str:
    """Return a completion from which `final_answer` extracts this answer."""
    return _MARKS[mark].form.format(answer)


def describe_missing(marks: Sequence[AnswerMark]) -> str:
    """Describe the missing marks for `Score.detail`."""
    return "no " + " and no ".join(_MARKS[mark].name for mark in marks)


def check_marks(marks: Sequence[AnswerMark], *, key: str = "answer_marks") -> None:
    """Raise ConfigError unless there is at least one mark and none twice."""
    if not marks or len(set(marks)) < len(marks) or not set(marks) <= set(_MARKS):
        raise ConfigError(f"{key} = {list(marks)}: expected one or more of {', '.join(_MARKS)}, each once")


class _Mark(NamedTuple):
    find: Callable[[str], FoundAnswer | None]
    form: str
    name: str


_MARKS: dict[AnswerMark, _Mark] = {
    "boxed": _Mark(last_boxed, "\\boxed{{{}}}", "\\boxed{}"),
    "hashes": _Mark(after_hashes, "#### {}", "####"),
    "final": _Mark(after_final, "FINAL: {}", "FINAL:"),
    "tag": _Mark(last_tag, "<answer>{}</answer>", "<answer> element"),
    "number": _Mark(last_number, "{}", "number"),
}
