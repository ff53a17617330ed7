"""The watched runs: those found below the given folders, each with an id.

Contract: nothing outside those folders, or more than `MAX_DEPTH` below them, is ever read; links that lead out of them
are followed only if `follow_links` says so. An id is made from the path
of a run and is the only name that a client can use. Runs that appear later are found; runs that disappear are dropped.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from groupwise.base.outside import leads_out, links_stay_in
from groupwise.runs import layout, read_holder
from groupwise.runs.results import RESULT
from groupwise.web.dashboard.index import RunIndex
from groupwise.web.dashboard.state import EXAMINED_EVERY_S, CachedReading, describe, examine_run, read_summary
from groupwise.web.dashboard.text_search import Searches

MAX_DEPTH = 4
MAX_FOLDERS = 20_000
"""Maximum number of folders to search, in case somebody watches a whole disk."""
LOOK_EVERY_S = 2.0
SIGNS_OF_A_RUN = (layout.RECIPE, layout.METRICS, layout.EVALS)
SIGNS_OF_OTHERS = (layout.SWEEP, RESULT)
"""Files of other folders with a recipe or a lock: a sweep, whose runs are below it, and an evaluation result."""


class WatchedRun:
    """A run with its cached index, searches, findings and summary."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.id = run_id(path)
        self.index = RunIndex(path)
        self.searches = Searches()
        self.findings = CachedReading(path, examine_run, EXAMINED_EVERY_S)
        self._summary = CachedReading(path, read_summary)

    def describe(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "path": str(self.path), **describe(self.path, self._summary.get())}


class Library:
    def __init__(self, roots: Sequence[Path], follow_links: bool = False) -> None:
        self._roots = tuple(roots)
        self._follow_links = follow_links
        self._lock = threading.Lock()
        self._runs: dict[str, WatchedRun] = {}
        self._looked_at: float | None = None
        self._warnings: tuple[str, ...] = ()

    def reading(self) -> AbstractContextManager[None]:
        """Return the context in which files of the runs are read."""
        return links_stay_in(None if self._follow_links else self._roots)

    def look(self) -> tuple[list[WatchedRun], tuple[str, ...]]:
        """Return all current runs, and warnings about folders that could not be searched."""
        with self._lock:
            if self._looked_at is None or time.monotonic() - self._looked_at >= LOOK_EVERY_S:
                with self.reading():
                    self._look_again()
                self._looked_at = time.monotonic()
            return list(self._runs.values()), self._warnings

    def get(self, identity: str) -> WatchedRun | None:
        # Without the lock, which is held during a search; the table is replaced as a whole.
        known = self._runs.get(identity)
        if known is not None:
            return known
        return next((run for run in self.look()[0] if run.id == identity), None)

    def close(self) -> None:
        for run in self._runs.values():
            run.index.close()

    def _look_again(self) -> None:
        found: dict[Path, str] = {}
        warnings = []
        for root in self._roots:
            if not root.is_dir():
                warnings.append(f"{root} does not exist (yet)")
                continue
            seen: set[Path] = set()
            left_out: list[Path] = []
            for path in _runs_below(root, seen, left_out):
                found.setdefault(path, _name(path, root, len(self._roots)))
            if left_out:
                more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
                warnings.append(f"{left_out[0]}{more}: a link to outside of {root}; --follow-links follows it")
            if len(seen) > MAX_FOLDERS:
                warnings.append(f"{root} has over {MAX_FOLDERS:,} folders: only some were searched; give one below it")
        counts = Counter(found.values())
        runs = {}
        for path, name in found.items():
            known = self._runs.get(run_id(path)) or WatchedRun(path, name)
            known.name = f"{name} ({known.id[:4]})" if counts[name] > 1 else name
            runs[known.id] = known
        for gone in self._runs.keys() - runs.keys():
            self._runs[gone].index.close()
        self._runs, self._warnings = runs, tuple(warnings)


def _runs_below(folder: Path, seen: set[Path], left_out: list[Path], depth: int = 0) -> Iterator[Path]:
    """Yield the runs in and below a folder. `seen` collects the folders: each is searched once, even if links lead to
    it, and the search ends when there are more than MAX_FOLDERS. `left_out` collects links that are not followed."""
    if leads_out(folder):
        left_out.append(folder)
        return
    real = folder.resolve()
    if real in seen or len(seen) > MAX_FOLDERS:
        return
    seen.add(real)
    if len(seen) > MAX_FOLDERS:
        return
    try:
        with os.scandir(folder) as entries:
            names = {entry.name: os.path.isdir(entry) for entry in entries}
    except OSError:
        return
    if _is_run(folder, names):
        yield real
    elif depth < MAX_DEPTH:
        for name in sorted(names):
            if names[name] and not name.startswith("."):
                yield from _runs_below(folder / name, seen, left_out, depth + 1)


def _is_run(folder: Path, names: Mapping[str, bool]) -> bool:
    """Return whether a folder is a run; `names` says of each entry whether it is a folder.

    A run that is being set up has only its lock. A released lock is empty; alone, it is left by a refused recipe.
    """
    files = {name for name, is_folder in names.items() if not is_folder}
    if files & set(SIGNS_OF_OTHERS):
        return False
    is_locked = layout.LOCK in files and read_holder(folder) is not None
    return is_locked or bool(files & set(SIGNS_OF_A_RUN))


def run_id(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _name(path: Path, root: Path, num_roots: int) -> str:
    """Return the name of a run for people: its path below the root, after the root's name if there are several."""
    base = root.resolve()
    if path == base or not path.is_relative_to(base):
        return path.name
    relative = path.relative_to(base).as_posix()
    return relative if num_roots == 1 else f"{base.name}/{relative}"
