"""Reading what may come from outside: files that may be anything, and JSON and TOML of any depth.

Contract: nothing here waits, and nothing raises but OSError (the file) and ValueError (what it contains). Only regular
files up to a size are read: a FIFO would block, a device may never end. JSON and TOML are refused beyond a depth at
which code that walks them would exhaust the stack, and so are integers that no float can hold.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

MAX_SMALL_BYTES = 16 << 20
"""For files that describe: recipes, run.json, manifests, settings."""
MAX_LOG_BYTES = 4 << 30
"""For files that grow: logs, rollouts, problems."""
MAX_LINE_BYTES = 256 << 20
MAX_DEPTH = 100
MAX_DIGITS = 308

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NEITHER_QUOTE_NOR_BRACKET = bytes(byte for byte in range(256) if byte not in _STEPS and byte != ord('"'))
_SAME_DIGITS = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else byte for byte in range(256))
_TOML_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*+"')
_DEEP_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){100}""")
_folders: ContextVar[tuple[Path, ...] | None] = ContextVar("folders", default=None)


class UnreadableFile(OSError):
    """A path that is not a regular file, or one that is too large. The message names it and says which."""


@contextlib.contextmanager
def links_stay_in(folders: Sequence[Path] | None) -> Iterator[None]:
    """Refuse, inside, to open files of these folders that are links to elsewhere. None: any link is followed."""
    token = _folders.set(None if folders is None else tuple(Path(os.path.realpath(folder)) for folder in folders))
    try:
        yield
    finally:
        _folders.reset(token)


def leads_out(path: str | os.PathLike[str]) -> bool:
    """Return whether links lead from a path to outside the folders of `links_stay_in`."""
    folders = _folders.get()
    return folders is not None and not any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in folders)


def open_file(path: str | os.PathLike[str], max_bytes: int = MAX_LOG_BYTES) -> BinaryIO:
    """Open a regular file of at most `max_bytes` for reading; anything else raises an `UnreadableFile`."""
    if leads_out(path):
        raise UnreadableFile(f"{Path(path)} is a link to outside of the folder; --follow-links follows it")
    _check(os.stat(path), path, max_bytes)  # before opening: to open a device can have effects
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check(os.fstat(descriptor), path, max_bytes)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def local_path(given: str) -> Path:
    """Return the path that a person wrote, with "~" resolved. It never fails: the path may be of nothing."""
    return Path(os.path.expanduser(given))


def file_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_LOG_BYTES) -> bytes:
    """Return what a regular file of at most `max_bytes` contains."""
    with open_file(path, max_bytes) as file:
        return file.read(max_bytes)


def file_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of an open file; a ValueError for one that is too long to be meant."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES:,} bytes")
        yield line


def file_text(path: str | os.PathLike[str], errors: str = "strict", max_bytes: int = MAX_SMALL_BYTES) -> str:
    """Return the text of a small UTF-8 file, without a byte order mark."""
    return file_bytes(path, max_bytes).decode("utf-8", errors).removeprefix("\ufeff")


def json_value(text: str | bytes, max_digits: int = MAX_DIGITS, **hooks: Any) -> Any:
    """Return what JSON in UTF-8 says; a ValueError for anything that is not JSON or that goes beyond the limits.

    The hooks are those of `json.loads`.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    text = data.decode("utf-8", "surrogatepass")
    if _depth(data) > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    # Calling Python for each integer is slow, so only where long runs of digits are, which may be inside a string.
    if b"0" * (MAX_DIGITS + 1) not in data.translate(_SAME_DIGITS):
        return json.loads(text, **hooks)
    return json.loads(text, **hooks, parse_int=lambda digits: _parse_int(digits, max_digits))


def file_json(path: str | os.PathLike[str]) -> Any:
    """Return what a small JSON file says."""
    return json_value(file_bytes(path, MAX_SMALL_BYTES))


def toml_table(text: str) -> dict[str, Any]:
    """Return the table that TOML says; a ValueError for anything that is not TOML or that goes beyond the limits."""
    if _DEEP_KEY.search(_TOML_STRING.sub('""', text)):  # tomllib takes time quadratic in the depth of a key
        raise ValueError(f"a key of more than {MAX_DEPTH} parts")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's, about thousands of digits
        raise ValueError(f"an integer of more than {MAX_DIGITS} digits") from None
    level: list[Any] = [table]
    for _ in range(MAX_DEPTH):
        level = [item for value in level for item in (value.values() if isinstance(value, dict) else value)]
        if any(isinstance(item, int) and abs(item) > 10**MAX_DIGITS for item in level):
            raise ValueError(f"an integer of more than {MAX_DIGITS} digits")
        level = [item for item in level if isinstance(item, (dict, list))]
    if level:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return table


def _check(status: os.stat_result, path: str | os.PathLike[str], max_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFile(
            f"{Path(path)} is {_KINDS.get(stat.S_IFMT(status.st_mode), 'no file')}, not a regular file"
        )
    if status.st_size > max_bytes:
        raise UnreadableFile(f"{Path(path)} has {status.st_size:,} bytes; at most {max_bytes:,} are read")


def _depth(data: bytes) -> int:
    """The depth of the brackets outside strings; 0 where there are too few to matter."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return 0
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"")
    outside_strings = unescaped.translate(None, _NEITHER_QUOTE_NOR_BRACKET).split(b'"')[::2]
    return max(accumulate(map(_STEPS.__getitem__, b"".join(outside_strings))), default=0)


def _parse_int(digits: str, max_digits: int) -> int:
    if len(digits.lstrip("-")) > max_digits:
        raise ValueError(f"an integer of {len(digits):,} digits")
    return int(digits)
