"""Plain text for people: paragraphs wrapped at words, tables with aligned columns, durations and shares."""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence

_UNBREAKABLE = re.compile(r"`[^`]*`|[\w.]+ = (?:\"[^\"]*\"|\{[^}]*\}|\S+)|\d %")
"""Commands in backticks, recipe keys with their values, and percentages."""
_KEPT_SPACE = "\x00"


def wrapped(text: str, indent: str = "", width: int | None = None, *, first: str = "") -> str:
    """Wrap a paragraph at spaces. Words, `commands` and key = value are never split, even where they are too long.

    `first` starts the first line and `indent` the others; `width` is the terminal's by default.
    """
    kept = _UNBREAKABLE.sub(lambda match: match[0].replace(" ", _KEPT_SPACE), text)
    lines = textwrap.wrap(
        kept,
        max(width or shutil.get_terminal_size().columns, 20),
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines or [first]).replace(_KEPT_SPACE, " ")


def shortened(text: str, max_chars: int) -> str:
    """Return the text on one line, with "…" at its end if it was cut."""
    line = " ".join(text.split())
    return line if len(line) <= max_chars else line[: max_chars - 1] + "…"


def aligned(rows: Iterable[Sequence[str]], *, has_notes: bool = False) -> list[str]:
    """Return one line per row: the first column is aligned to the left, all others to the right.

    `has_notes`: the last column is text, and aligned to the left as well.
    """
    rows = list(rows)
    columns = []
    for index, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        is_left = index == 0 or (has_notes and index == len(rows[0]) - 1)
        columns.append([cell.ljust(width) if is_left else cell.rjust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its type if there is no message."""
    return _message_lines(error)[0]


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message; its type if there is no message."""
    return _message_lines(error)[-1].strip()


def _message_lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]


def duration(seconds: float) -> str:
    """Return `seconds` in its two largest units: 45s, 3m20s, 2h05m, 3d04h; "?" when it is not finite."""
    if not seconds < float("inf"):
        return "?"
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def percent(share: float, digits: int = 1) -> str:
    """Return a share as a percentage: "38.5 %"; "–" when it is not a number."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def points(share: float) -> str:
    """Return a difference of shares in percentage points, with its sign: "+4.1"."""
    return f"{round(100 * share, 1) + 0.0:+.1f}".replace("-", "\u2212")  # + 0.0: never −0.0
