"""How far a log has come: its length and a checksum of all of it, which a checkpoint keeps and a resumed run compares.

A log is a file of lines, or a folder of numbered files that are read one after the other. Each byte is read once: an
extent continues where it ended. A log that was cut or changed in between gets a checksum that fits no file.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from groupwise.base.outside import open_file
from groupwise.runs import layout
from groupwise.runs.files import fsync_path

_CHUNK_BYTES = 1 << 20


class Extent:
    def __init__(self) -> None:
        self.size_bytes = 0
        self._digest = hashlib.sha256()

    def read(self, log: Path, end: int | None = None) -> None:
        """Continue to byte `end`. A log that does not exist is empty.

        Without `end`, continue to the end of the log and force what is new to the disk: a power failure must not leave
        a checkpoint without the logs that it notes.
        """
        first = 0
        for path in _files(log):
            if self.size_bytes == end:
                return
            size = path.stat().st_size
            if self.size_bytes < first + size:
                with open_file(path, sys.maxsize) as file:  # of any size, because it is read in pieces
                    file.seek(self.size_bytes - first)
                    while data := file.read(_CHUNK_BYTES if end is None else min(_CHUNK_BYTES, end - self.size_bytes)):
                        self.size_bytes += len(data)
                        self._digest.update(data)
                    if end is None:
                        os.fsync(file.fileno())
            first += size
        if end is None and first and log.is_dir():
            fsync_path(log)

    def note(self) -> dict[str, Any]:
        """Return the extent as JSON values."""
        return {"size_bytes": self.size_bytes, "sha256": self._digest.hexdigest()}


def _files(log: Path) -> list[Path]:
    if not log.is_dir():
        return [log] if log.exists() else []
    steps = {path: layout.rollout_step(path.name) for path in log.iterdir()}
    return [path for _, path in sorted((step, path) for path, step in steps.items() if step is not None)]
