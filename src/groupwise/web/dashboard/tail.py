"""Reading of growing JSON Lines files: the lines after a cursor, and the last few lines.

Contract: reads only. A line counts once its newline is there; until then it is left for the next call. A cursor holds
the file's inode, the position, and a checksum of the bytes just before it: a file that was rewritten, or truncated and
grown again, is detected and read from its beginning. A damaged line, or one that is not a valid record, gives one
warning, and the rest is read.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

from groupwise.base.outside import file_lines, open_file
from groupwise.runs.files import object_of, read_end, reading
from groupwise.web.dashboard.parameters import ParameterError

T = TypeVar("T")

MAX_BYTES = 4 * 2**20
"""Maximum size of an answer. A longer file takes several."""
CHECKED_BYTES = 512
MAX_WARNINGS = 3
"""Damaged lines of one file that are named."""
_CURSOR = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{1,16})\.([0-9a-f]{1,16})\.([0-9a-f]{1,8})")


class Identity(NamedTuple):
    """Distinguishes a file from an earlier file of the same name."""

    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def by(cls, status: os.stat_result) -> Identity:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


def identity_of(path: Path) -> Identity | None:
    """Return the identity of a file; None if it does not exist."""
    try:
        return Identity.by(os.stat(path))
    except OSError:
        return None


class Cursor(NamedTuple):
    inode: int = 0
    offset: int = 0
    num_lines: int = 0
    """Number of lines before the offset, to name a damaged line."""
    checksum: int = 0

    def __str__(self) -> str:
        return ".".join(f"{part:x}" for part in self)


def parse_cursor(text: str) -> Cursor:
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise ParameterError("cursor", f"{text!r} is not a cursor; omit it to read from the beginning")
    return Cursor(*(int(part, 16) for part in match.groups()))


class News(NamedTuple, Generic[T]):
    cursor: Cursor
    is_reset: bool
    """Whether all lines read before are obsolete."""
    has_more: bool
    lines: tuple[T, ...]
    warnings: tuple[str, ...]


def read_since(
    path: Path, cursor: Cursor | None, make: Callable[[Mapping[str, Any]], T], max_bytes: int = MAX_BYTES
) -> News[T]:
    """Return `make` of the complete lines after `cursor`; of all without a cursor or if the file was replaced."""
    with reading(path):
        try:
            file = open_file(path)
        except FileNotFoundError:
            return News(Cursor(), cursor is None or cursor.offset > 0, False, (), ())
        with file:
            status = os.fstat(file.fileno())
            is_reset = cursor is None or not _continues(file, status, cursor)
            start = Cursor() if cursor is None or is_reset else cursor
            data = _complete_lines(file, start.offset, max_bytes)
            offset = start.offset + len(data)
            after = Cursor(status.st_ino, offset, start.num_lines + data.count(b"\n"), _checksum(file, offset))
    lines, warnings = _parse_lines(data, path.name, make, start.num_lines)
    has_more = len(data) >= max_bytes and offset < status.st_size
    return News(after, is_reset, has_more, lines, warnings)


def last_records(path: Path, make: Callable[[Mapping[str, Any]], T], max_bytes: int) -> tuple[tuple[T, ...], bool]:
    """Return `make` of the lines in about the last `max_bytes`, oldest first, and whether others are damaged."""
    with reading(path):
        data = read_end(path, max_bytes)
    lines, warnings = _parse_lines(data[: data.rfind(b"\n") + 1], path.name, make)
    return lines, bool(warnings)


def _continues(file: BinaryIO, status: os.stat_result, cursor: Cursor) -> bool:
    if cursor.offset == 0:
        return True
    is_same = status.st_ino == cursor.inode and status.st_size >= cursor.offset
    return is_same and _checksum(file, cursor.offset) == cursor.checksum


def _checksum(file: BinaryIO, offset: int) -> int:
    """Return the checksum of the bytes just before `offset`."""
    start = max(0, offset - CHECKED_BYTES)
    file.seek(start)
    return zlib.crc32(file.read(offset - start))


def _complete_lines(file: BinaryIO, offset: int, max_bytes: int) -> bytes:
    """Return complete lines: at least one if there is one, however long it is."""
    file.seek(offset)
    data = file.read(max_bytes)
    if len(data) == max_bytes and b"\n" not in data:
        data += next(file_lines(file), b"")
    end = data.rfind(b"\n") + 1
    if end >= max_bytes or len(data) < max_bytes:
        return data[:end]
    # The limit cut a line: finish it, so that the length tells a full answer from the end of the file.
    rest = next(file_lines(file), b"")
    return data + rest if rest.endswith(b"\n") else data[:end]


def few(warnings: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the first warnings, and how many more there are of `what`."""
    more = len(warnings) - MAX_WARNINGS
    return (*warnings[:MAX_WARNINGS], f"{more:,} more {what}") if more > 0 else tuple(warnings)


def _parse_lines(
    data: bytes, name: str, make: Callable[[Mapping[str, Any]], T], num_before: int = 0
) -> tuple[tuple[T, ...], tuple[str, ...]]:
    lines: list[T] = []
    warnings: list[str] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=num_before + 1):
        if not line.strip():
            continue
        try:
            lines.append(make(object_of(line)))
        except ValueError as error:
            warnings.append(f"{name}, line {number} is damaged ({error}) and was left out")
    return tuple(lines), few(warnings, f"damaged lines in {name}")
