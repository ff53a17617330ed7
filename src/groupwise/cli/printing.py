"""How commands print: sentences, lists, tables, JSON, and commands to copy.

Text that may come from a model, a file or a recipe loses its control codes here.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

from groupwise.base.harmless import printable
from groupwise.base.text_layout import wrapped

if TYPE_CHECKING:
    from rich.table import Column
    from rich.text import Text


def say(text: str, *, indent: str = "", to: TextIO | None = None) -> None:
    """Print text. A terminal gets it wrapped at spaces, with `indent` before continuation lines."""
    stream = to or sys.stdout
    width = _width(stream)
    for line in printable(text, keep_newlines=True).splitlines():
        words = line.lstrip()
        print(wrapped(words, indent, width, first=line.removesuffix(words)), file=stream)
    stream.flush()


def _width(stream: TextIO) -> int:
    return shutil.get_terminal_size().columns if stream.isatty() else sys.maxsize


def say_unread(errors: Iterable[str]) -> int:
    """Print why some of what was asked for could not be read; return the exit status, 2 if there is anything."""
    errors = list(errors)
    for error in errors:
        say(f"groupwise: {error}", to=sys.stderr)
    return 2 if errors else 0


def say_commands(*commands: str) -> None:
    """Print commands to copy: one per line, never wrapped."""
    print("\n".join(commands), flush=True)


def say_list(rows: Iterable[tuple[str, str]], width: int) -> None:
    """Print names and their meanings in two columns, the first `width` characters wide.

    Where that is more than half of the terminal, each meaning goes below its name.
    """
    is_wide = 2 * width > _width(sys.stdout)
    for name, meaning in rows:
        if is_wide:
            say(f"{name}\n  {meaning}", indent="  ")
        else:
            say(f"{name:{width}} {meaning}", indent=" " * (width + 1))


def print_json(value: Any) -> None:
    import json

    print(json.dumps(value), flush=True)


def print_table(
    columns: Iterable[str | Column], sections: Iterable[Iterable[Iterable[str | Text]]], title: str | None = None
) -> None:
    """Print a table with a rule between its sections; cells wrap at spaces where they have to."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left")
    for rows in sections:
        table.add_section()
        for row in rows:
            # Text, not a string: rich would read [brackets] as markup.
            table.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    Console(highlight=False).print(table)


def counted(number: int, noun: str) -> str:
    """Return "1 run" or "3 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
