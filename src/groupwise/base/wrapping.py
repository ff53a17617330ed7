"""Text wrapped at words for a terminal; what a person may copy is never split."""

from __future__ import annotations

import re
import textwrap

_JOINER = "\0"
"""Stands for a space at which no line may break. Printable text has none."""


def wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> str:
    """Break `text` into lines of at most `width` characters, at spaces alone; a longer word keeps its length.

    `first` starts the first line and `rest` the others (by default spaces of the same length). A command in
    `backticks` stays on one line.
    """
    joined = re.sub(r"`[^`]*`", lambda match: match[0].replace(" ", _JOINER), text)
    lines = textwrap.wrap(
        joined,
        max(width, 20),
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines or [first]).replace(_JOINER, " ")
