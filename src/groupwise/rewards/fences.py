"""Fenced code in a completion: the last ```` ```sql ```` or ```` ```json ```` block.

One pass, linear in the text. A fence may be inside a line (small models write `SELECT 1;```` at the end of one).
Unclosed blocks do not count, and of several blocks the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_FENCE_PATTERN = r"(?P<indent>^[ \t]*+)?```+(?P<word>[\w+#.-]*)(?P<alone>(?=[ \t\r]*+$))?"
_FENCE = re.compile(_FENCE_PATTERN, re.MULTILINE)
# An unclosed string extends to the end of its line, so that no character is scanned twice.
_FENCE_OR_STRING = re.compile(rf'"(?:[^"\\\n]|\\.)*+"?|{_FENCE_PATTERN}', re.MULTILINE)


def last_fenced(completion: str, languages: Collection[str], *, skip_strings: bool = False) -> str | None:
    """Return the content of the last block in one of the (lower-case) languages, else of the last block.

    `skip_strings`: a fence inside a "string" of an open block is part of the string, as in JSON with Markdown in it.
    """
    first = completion.find("```")
    if first < 0:
        return None
    only = _only_block(completion, first)
    return last_block(completion, languages, skip_strings=skip_strings) if only is None else only


def _only_block(completion: str, first: int) -> str | None:
    """Return the block of a completion with exactly two fences, each at the start of its own line; else None.

    No string spans lines, so the second fence is not in one, and whatever the language, there is no other block.
    """
    second = completion.find("\n```", first) + 1
    if not second or completion.find("```", first + 3) != second or completion.find("```", second + 3) >= 0:
        return None
    header = completion[first + 3 : completion.find("\n", first)]
    after = completion[second + 3 : second + 4]
    is_plain = (not header or (header.isascii() and header.isalnum())) and not after.strip()
    return completion[first + 3 + len(header) : second] if is_plain else None


def last_block(completion: str, languages: Collection[str], *, skip_strings: bool) -> str | None:
    """Do the same as `last_fenced` for completions of any form."""
    inside = _FENCE_OR_STRING if skip_strings else _FENCE
    wanted: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    opened: tuple[str, int] | None = None
    position = 0
    while token := (_FENCE if opened is None else inside).search(completion, position):
        position = token.end()
        word = token["word"]
        if word is None:
            continue  # a string
        # A word is a language if it is a wanted one or ends the line; in "```SELECT 1```" it is content.
        is_language = word.lower() in languages or (word != "" and token["alone"] is not None)
        # A fence with a language at the start of a line opens a block, even if another is open.
        if opened is None or (is_language and token["indent"] is not None):
            opened = (word.lower(), position if is_language else token.start("word"))
            continue
        last = (opened[1], token.start())
        if opened[0] in languages:
            wanted = last
        opened, position = None, token.start("word")
    span = wanted or last
    return None if span is None else completion[span[0] : span[1]]
