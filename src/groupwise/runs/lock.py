"""One trainer per run directory.

Contract: `with RunLock(run_dir):` holds an flock on run.lock. A second trainer is refused at once with `RunInUse`,
which names the process that holds it. The kernel frees the lock when that process ends, so nothing needs cleaning up
after a SIGKILL. The lock is never inherited: a forked verifier worker that outlives a killed trainer must not block a
resume. The holder calls `confirm` before each write: a run.lock that was deleted is made again, and one that another
trainer has made since ends the run. Folders that the lock created are removed again if an error leaves nothing in them.
Readers need no lock. Network file systems without flock are not covered; they raise `RunLogError`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from groupwise.base.outside import file_json
from groupwise.runs import layout
from groupwise.runs.files import RunLogError, writing
from groupwise.runs.typed import typed

_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _close_inherited() -> None:
    # An flock belongs to the open file, which a fork shares: the child closes its copy without unlocking.
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited)


class RunInUse(RunLogError):
    """Another trainer is writing this run."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that wrote run.lock last."""

    pid: int
    host: str

    @property
    def is_alive(self) -> bool:
        """True if that process exists; assumed for a process on another host."""
        if self.host != socket.gethostname():
            return True
        try:
            with contextlib.suppress(PermissionError):  # it belongs to another user
                os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):  # no such process, or no number that a process can have
            return False
        return True


def read_holder(run_dir: Path) -> Holder | None:
    """Return the trainer that holds the lock, or was killed while it did. Takes no lock."""
    try:
        return cast(Holder, typed(Holder, file_json(Path(run_dir) / layout.LOCK)))
    except (OSError, ValueError):
        return None


class RunLock:
    def __init__(self, run_dir: Path, kind: str = "run") -> None:
        """`kind`: what the folder contains, for the message."""
        self.run_dir = Path(run_dir)
        self._kind = kind
        self._descriptor: int | None = None
        self._made: list[Path] = []
        """The folders that were not there, from the run's upwards."""

    def __enter__(self) -> RunLock:
        path = self.run_dir / layout.LOCK
        self._made = [folder for folder in (self.run_dir, *self.run_dir.parents) if not folder.exists()]
        with writing(path):
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._take(path, os.O_CREAT)
        return self

    def _take(self, path: Path, create: int) -> None:
        """Open and lock the file, and hold it instead of the one held before."""
        descriptor = os.open(path, os.O_RDWR | create, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink == 0:
                raise BlockingIOError  # its last holder has just removed the folder
            content = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode() + b"\n"
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise RunInUse(self._refusal()) from None
            raise
        if self._descriptor is not None:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = descriptor
        _held.add(descriptor)

    def confirm(self) -> None:
        """Raise `RunInUse` if another trainer may hold the run by now."""
        assert self._descriptor is not None
        path = self.run_dir / layout.LOCK
        with writing(path):
            try:
                is_ours = os.path.samestat(os.stat(path), os.fstat(self._descriptor))
                # Some network file systems give a file another number after a while.
                is_ours = is_ours or read_holder(self.run_dir) == Holder(os.getpid(), socket.gethostname())
            except FileNotFoundError:
                # Whoever makes it first has the run; making it fails if another trainer was faster.
                with contextlib.suppress(FileExistsError):
                    return self._take(path, os.O_CREAT | os.O_EXCL)
                is_ours = False
        if not is_ours:
            raise RunInUse(f"{path} was replaced while this process trained, which stops here: {self._refusal()}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        descriptor, self._descriptor = self._descriptor, None
        # Not in the set: this is a forked child; its copy is closed, and the number may belong to another file by now.
        if descriptor is None or descriptor not in _held:
            return
        _held.discard(descriptor)
        # The file stays: unlinking it would let a third trainer lock a new file while a second one holds the old one.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            if kind is not None and self._made and not self._has_content():
                shutil.rmtree(self.run_dir)
                for folder in self._made[1:]:
                    folder.rmdir()  # unless another run is in it
        os.close(descriptor)

    def _has_content(self) -> bool:
        return any(path.name != layout.LOCK and not path.is_dir() for path in self.run_dir.rglob("*"))

    def _refusal(self) -> str:
        holder = read_holder(self.run_dir)
        who = f"process {holder.pid} on {holder.host}" if holder else "another process"
        fix = f"stop it (kill {holder.pid})" if holder else "stop it"
        return f"{self._kind} {self.run_dir} is being written by {who}; {fix}, or choose another {self._kind} directory"
