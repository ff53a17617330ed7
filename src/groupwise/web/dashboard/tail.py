"""Reading of growing JSON Lines files: the lines after a cursor, and the last few lines.

Contract: reads only. A line counts once its newline is there; until then it is left for the next call. A cursor holds
the file's inode, the position, and a checksum of the bytes just before it: a file that was rewritten, or truncated and
grown again, is detected and read from its beginning. A damaged line gives one warning, and the rest is read.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from groupwise.runs.files import parse_object, read_end
from groupwise.web.dashboard.parameters import ParameterError

MAX_BYTES = 4 * 2**20
"""Maximum size of an answer. A longer file takes several."""
CHECKED_BYTES = 512
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


class News(NamedTuple):
    cursor: Cursor
    is_reset: bool
    """Whether all lines read before are obsolete."""
    has_more: bool
    lines: tuple[Mapping[str, Any], ...]
    warnings: tuple[str, ...]


def read_since(path: Path, cursor: Cursor | None, max_bytes: int = MAX_BYTES) -> News:
    """Return the complete lines after `cursor`; all of them without a cursor or if the file was replaced."""
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed by the with below; only opening it may fail like this)
    except FileNotFoundError:
        return News(Cursor(), cursor is None or cursor.offset > 0, False, (), ())
    with file:
        status = os.fstat(file.fileno())
        is_reset = cursor is None or not _continues(file, status, cursor)
        start = Cursor() if cursor is None or is_reset else cursor
        data = _complete_lines(file, start.offset, max_bytes)
        lines, warnings = _parse_lines(data, path.name, start.num_lines)
        offset = start.offset + len(data)
        after = Cursor(status.st_ino, offset, start.num_lines + data.count(b"\n"), _checksum(file, offset))
        has_more = len(data) >= max_bytes and offset < status.st_size
    return News(after, is_reset, has_more, lines, warnings)


def last_lines(path: Path, max_bytes: int) -> list[Mapping[str, Any]]:
    """Return the objects in about the last `max_bytes`, oldest first, without damaged lines; [] without a file."""
    data = read_end(path, max_bytes)
    return list(_parse_lines(data[: data.rfind(b"\n") + 1], path.name, 0)[0])


def _continues(file: IO[bytes], status: os.stat_result, cursor: Cursor) -> bool:
    if cursor.offset == 0:
        return True
    is_same = status.st_ino == cursor.inode and status.st_size >= cursor.offset
    return is_same and _checksum(file, cursor.offset) == cursor.checksum


def _checksum(file: IO[bytes], offset: int) -> int:
    """Return the checksum of the bytes just before `offset`."""
    start = max(0, offset - CHECKED_BYTES)
    file.seek(start)
    return zlib.crc32(file.read(offset - start))


def _complete_lines(file: IO[bytes], offset: int, max_bytes: int) -> bytes:
    """Return complete lines: at least one if there is one, however long it is."""
    file.seek(offset)
    data = file.read(max_bytes)
    while data and b"\n" not in data:
        more = file.read(max_bytes)
        if not more:
            return b""
        data += more
    end = data.rfind(b"\n") + 1
    if end >= max_bytes or len(data) < max_bytes:
        return data[:end]
    # The limit cut a line: finish it, so that the length tells a full answer from the end of the file.
    rest = file.readline()
    return data + rest if rest.endswith(b"\n") else data[:end]


def _parse_lines(data: bytes, name: str, num_before: int) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    lines, warnings = [], []
    for number, line in enumerate(data.split(b"\n")[:-1], start=num_before + 1):
        if not line.strip():
            continue
        value = parse_object(line)
        if value is None:
            warnings.append(f"{name}, line {number} is damaged (not a JSON object) and was left out")
        else:
            lines.append(value)
    return tuple(lines), tuple(warnings)
