"""Files that survive a kill: a whole file appears at once or not at all; a line file loses at most its last line.

Contract: `write_atomic` and `append_line` raise the plain OSError and leave the file unchanged. `read_lines` leaves out
a line that is still being written (no newline yet) and raises an error with file and line for a damaged one. JSON here
is strict: ASCII only, so NUL, lone surrogates and control codes are escaped, and no NaN. A high and a low surrogate
side by side, as two code points of one Python string, come back as the one character that they encode.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from groupwise.base.json_values import finite_or_none as finite_or_none
from groupwise.base.json_values import plain as plain
from groupwise.base.outside import UnreadableFile, file_bytes, file_lines, json_value, open_file

T = TypeVar("T")

TEMPORARY_SUFFIX = ".tmp"


class RunLogError(RuntimeError):
    """The run directory could not be written. The message names the file and the fix."""


class RunReadError(ValueError):
    """A file of a run cannot be read. The message names it and, where known, the line."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside into the RunLogError that names `path` and the fix."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "the disk is full. Make room" if is_full else f"{error.strerror or error}. Fix that"
        raise RunLogError(
            f"could not write {path}: {advice}, then resume the run: it continues from its last checkpoint"
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError or ValueError inside into the RunReadError that names `path`."""
    try:
        yield
    except (RunReadError, UnreadableFile) as error:  # they name it
        raise RunReadError(str(error)) from error
    except OSError as error:
        raise RunReadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        what = f"not JSON ({error})" if isinstance(error, json.JSONDecodeError) else error
        raise RunReadError(f"{path}: {what}") from error


def encode_line(value: Mapping[str, Any]) -> bytes:
    """Return one JSON object and a newline. Floats have as many digits as it takes to read them back exactly."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def write_atomic(path: Path, chunks: Iterable[bytes], fsync: bool = True) -> None:
    """Write beside `path`, then rename over it. On any failure the old file stays and the new one is removed."""
    temporary = path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            if fsync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if fsync:
            fsync_path(path.parent)
    except BaseException:  # a stop signal is not an Exception, and must not leave half a file either
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def fsync_path(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: bytes, fsync: bool) -> None:
    """Append `line` or nothing: a half that was written before the disk was full is removed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size_before = os.fstat(descriptor).st_size
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if fsync:
                os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size_before)
            raise
    finally:
        os.close(descriptor)


def read_end(path: Path, max_bytes: int) -> bytes:
    """Return the last bytes of a file, from the start of a line; b"" when there is no file."""
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            data = file.read(max_bytes)
    except FileNotFoundError:
        return b""
    return data[data.find(b"\n") + 1 :] if size > max_bytes else data


def repair_tail(path: Path) -> None:
    """Drop the half line that a kill left at the end of `path`. Only for the process that may write it."""
    try:
        data = file_bytes(path)
    except FileNotFoundError:
        return
    if not data or data.endswith(b"\n"):
        return
    start = data.rfind(b"\n") + 1
    if parse_object(data[start:]) is None:
        os.truncate(path, start)
    else:
        append_line(path, b"\n", fsync=False)


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects in `path` with their line numbers from 1; nothing when there is no such file."""
    with reading(path):
        try:
            file = open_file(path)
        except FileNotFoundError:
            return
        with file:
            for number, line in enumerate(file_lines(file), start=1):
                try:
                    value = object_of(line)
                except ValueError as error:
                    if line.strip() and line.endswith(b"\n"):
                        what = f"{path}, line {number}: {error}; delete that line to read the rest"
                        raise RunReadError(what) from error
                else:
                    yield number, value


def read_records(path: Path, make: Callable[[Mapping[str, Any]], T], max_count: int | None = None) -> list[T]:
    """Return `make` of the objects in `path`, or of the first; one that it cannot use is an error with its line."""
    records = []
    for number, table in islice(read_lines(path), max_count):
        try:
            records.append(make(table))
        except ValueError as error:
            raise RunReadError(f"{path}, line {number}: not a valid record ({error})") from error
    return records


def object_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line; a ValueError says why there is none."""
    try:
        value = json_value(line)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None for anything else."""
    try:
        return object_of(line)
    except ValueError:
        return None
