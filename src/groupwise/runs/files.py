"""Files that survive a kill: a whole file appears at once or not at all; a line file loses at most its last line.

Contract: `write_atomic` and `append_line` raise the plain OSError and leave the file as it was before the call;
`read_lines` tells a line that is still being written (no newline yet: left out) from a damaged one (an error naming
file and line). JSON here is strict: ASCII only, so NUL, lone surrogates and control codes travel as escapes, and no
NaN. It knows nothing of what the lines mean.

One thing cannot survive JSON: a high and a low surrogate side by side, as two code points of one Python string, come
back as the one character that they encode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import numbers
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TEMPORARY_SUFFIX = ".tmp"


class RunLogError(RuntimeError):
    """The run directory could not be written. The message names the file and the way out."""


class RunReadError(ValueError):
    """The run directory holds something that cannot be read. The message names the file and, where known, the line."""


def write_failure(path: Path, error: OSError) -> RunLogError:
    """What to tell people when `path` could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "the disk is full. Make room, then resume the run: it goes on from its last checkpoint"
    else:
        advice = f"{error.strerror or error}. Once that is mended, resume the run: it goes on from its last checkpoint"
    return RunLogError(f"could not write {path}: {advice}")


def encode_line(value: Mapping[str, Any]) -> bytes:
    """One JSON object and a newline. Floats are written with as many digits as it takes to read them back exactly."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN and no infinity: both become null."""
    value = float(value)
    return value if math.isfinite(value) else None


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it.

    Dataclasses become objects of their fields, mappings and sequences are copied, non-finite floats become null, and
    anything else becomes its text.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return finite_or_none(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


def write_atomic(path: Path, chunks: Iterable[bytes], fsync: bool = True) -> None:
    """Write beside `path`, then rename over it. On any failure the old file is still there and the new one is not."""
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
    except BaseException:  # a stop signal is no Exception, and leaves no half file either
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
    """Append `line`; if it does not fit, take its first half out again, so that the next line does not stick to it."""
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
    """The last bytes of a file, from the beginning of a line on; nothing where there is no file."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            data = file.read(max_bytes)
    except FileNotFoundError:
        return b""
    return data[data.find(b"\n") + 1 :] if size > max_bytes else data


def repair_tail(path: Path) -> None:
    """Drop the half line that a kill left at the end of `path`. For the one process that may write it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    if not data or data.endswith(b"\n"):
        return
    start = data.rfind(b"\n") + 1
    if _parse(data[start:]) is None:
        os.truncate(path, start)
    else:
        append_line(path, b"\n", fsync=False)


def read_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects in `path` with their line numbers from 1; [] when there is no such file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    # Split at "\n" alone: str.splitlines would also cut at characters that may stand inside a JSON string.
    *complete, last = data.split(b"\n")
    objects = []
    for number, line in enumerate(complete, start=1):
        if not line.strip():
            continue
        value = _parse(line)
        if value is None:
            raise RunReadError(f"{path}, line {number}: not a JSON object; delete that line to read the rest")
        objects.append((number, value))
    unfinished = _parse(last) if last.strip() else None
    if unfinished is not None:
        objects.append((len(complete) + 1, unfinished))
    return objects


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
