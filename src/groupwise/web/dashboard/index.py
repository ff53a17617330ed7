"""An index in memory of a run's groups and their places in the files; it grows with them.

Contract: a thread builds and updates the index and ends when it is done; readers get what is there. New and changed
files (by inode, size, time) are read; deleted ones are forgotten. Nothing is written. A damaged line keeps its number,
so that lines of other files still belong to it, and is reported in the file's warnings.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from groupwise.base.outside import file_lines, open_file
from groupwise.runs import RunReadError, layout
from groupwise.runs.files import reading
from groupwise.web.dashboard.group_outline import GroupOutline, outline_of
from groupwise.web.dashboard.tail import Identity, few, identity_of

Kind = Literal["train", "eval"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FIRST_FILE_S = 5.0
"""Maximum wait for the first file, even if the wait for all files is shorter."""
_FOLDERS: dict[Kind, str] = {"train": layout.ROLLOUTS, "eval": layout.EVAL_ROLLOUTS}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    line: int
    """Line of the step's file, from 0, without empty lines."""
    offset: int
    num_bytes: int
    outline: GroupOutline


@dataclass(frozen=True, slots=True)
class FileIndex:
    kind: Kind
    step: int
    path: Path
    identity: Identity
    entries: tuple[IndexEntry, ...]
    num_rollouts: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexProgress:
    is_begun: bool
    is_complete: bool
    share: float
    """Share of the bytes of all files."""
    num_groups: int
    num_rollouts: int


class RunIndex:
    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._lock = threading.Condition()
        self._files: dict[tuple[Kind, int], FileIndex] = {}
        self._thread: threading.Thread | None = None
        self._is_asked = False
        """Whether a refresh was requested since the thread last listed the files."""
        self._is_whole = False
        """Whether all files have been read once."""
        self._done_bytes = 0
        self._total_bytes = 0
        self._is_closed = False

    def refresh(self, wait_s: float) -> None:
        """Start to update the index, and wait at most `wait_s` for it.

        If nothing has been read yet and `wait_s` is not 0, also wait for the first file.
        """
        start = time.monotonic()
        patience_s = max(wait_s, FIRST_FILE_S) if wait_s else 0.0
        with self._lock:
            self._is_asked = True
            if self._thread is None and not self._is_closed:
                run = copy_context().run  # the request's context says whether links are followed
                self._thread = threading.Thread(target=run, args=(self._bring_up_to_date,), daemon=True)
                self._thread.start()
            while self._thread is not None:
                left = start + (wait_s if self._files else patience_s) - time.monotonic()
                if left <= 0:
                    break
                self._lock.wait(left)

    def files(self, kind: Kind) -> list[FileIndex]:
        """Return the files read so far, newest step first."""
        with self._lock:
            found = [file for file in self._files.values() if file.kind == kind]
        return sorted(found, key=lambda file: file.step, reverse=True)

    @property
    def progress(self) -> IndexProgress:
        with self._lock:
            files = list(self._files.values())
            is_begun = self._is_whole or self._thread is not None
            is_complete = self._is_whole and self._thread is None
            share = 1.0 if is_complete else self._done_bytes / max(1, self._total_bytes)
        num_groups, num_rollouts = sum(len(file.entries) for file in files), sum(file.num_rollouts for file in files)
        return IndexProgress(is_begun, is_complete, share, num_groups, num_rollouts)

    def file_of(self, kind: Kind, step: int) -> FileIndex | None:
        """Return the current file of a step, read at once if the index is behind; None without a file."""
        path = rollout_files(self._run_dir / _FOLDERS[kind]).get(step)
        if path is None:
            return None
        with self._lock:
            known = self._files.get((kind, step))
        if known is not None and known.identity == identity_of(path):
            return known
        read = read_file(kind, step, path)
        if read is not None:
            with self._lock:
                self._files[kind, step] = read
        return read

    def close(self) -> None:
        """End the thread; the index remains usable."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _bring_up_to_date(self) -> None:
        while True:
            with self._lock:
                if self._is_closed or not self._is_asked:
                    self._thread = None
                    self._lock.notify_all()
                    return
                self._is_asked = False
            self._read_what_changed()

    def _read_what_changed(self) -> None:
        there = {
            (kind, step): path for kind in KINDS for step, path in rollout_files(self._run_dir / _FOLDERS[kind]).items()
        }
        identities = {key: identity for key, path in there.items() if (identity := identity_of(path)) is not None}
        with self._lock:
            self._files = {key: file for key, file in self._files.items() if key in identities}
            changed = [
                key
                for key, identity in identities.items()
                if key not in self._files or self._files[key].identity != identity
            ]
            self._total_bytes = sum(identity.size_bytes for identity in identities.values())
            self._done_bytes = self._total_bytes - sum(identities[key].size_bytes for key in changed)
        # Newest steps first: they are looked at most.
        for key in sorted(changed, key=lambda key: (key[1], key[0]), reverse=True):
            if self._is_closed:
                return
            file = read_file(*key, there[key])
            with self._lock:
                if file is not None:
                    self._files[key] = file
                self._done_bytes += identities[key].size_bytes
                self._lock.notify_all()
        self._is_whole = True


def rollout_files(folder: Path) -> dict[int, Path]:
    """Return the files of a folder of steps, by step."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    return {step: folder / name for name in names if (step := layout.rollout_step(name)) is not None}


def read_file(kind: Kind, step: int, path: Path) -> FileIndex | None:
    """Return the index of a file, empty if it cannot be read; None if it is gone."""
    entries, warnings = [], []
    name = f"{path.parent.name}/{path.name}"
    try:
        with reading(path), open_file(path) as file:
            identity = Identity.by(os.fstat(file.fileno()))
            for number, offset, line in _lines(file):
                outline = outline_of(line)
                if outline is not None:
                    entries.append(IndexEntry(number, offset, len(line), outline))
                elif line.endswith(b"\n"):
                    warnings.append(f"{name}, group {number} is damaged and was left out")
    except RunReadError as error:
        there = identity_of(path)
        return None if there is None else FileIndex(kind, step, path, there, (), 0, (str(error),))
    num_rollouts = sum(len(entry.outline.verdicts) for entry in entries)
    return FileIndex(
        kind, step, path, identity, tuple(entries), num_rollouts, few(warnings, f"damaged groups in {name}")
    )


def read_line(file_index: FileIndex, entry: IndexEntry) -> bytes:
    """Return the line of a group. Raises a RunReadError if the file has changed."""
    with open_as_indexed(file_index) as file:
        file.seek(entry.offset)
        return file.read(entry.num_bytes)


def open_as_indexed(file_index: FileIndex) -> BinaryIO:
    with reading(file_index.path):
        file = open_file(file_index.path)
    if Identity.by(os.fstat(file.fileno())) != file_index.identity:
        file.close()
        raise RunReadError(f"{file_index.path} has just been rewritten; try again")
    return file


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number among the non-empty lines, offset, line)."""
    offset, index = 0, 0
    for line in file_lines(file):
        if not line.isspace():
            yield index, offset, line
            index += 1
        offset += len(line)


def nth_line(path: Path, index: int) -> bytes | None:
    """Return the non-empty line of that number; None if there are fewer lines."""
    with reading(path), open_file(path) as file:
        return next((line for number, _, line in _lines(file) if number == index), None)
