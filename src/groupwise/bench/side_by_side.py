"""Comparisons with other libraries: how work is handed over, and how its result comes back.

    work ──▶ WORK.json ──▶ other_library.py, in the Python of --against-python ──▶ RESULT.json ──▶ result

The model is handed over as a Hugging Face folder. Each side runs in a process of its own, one after the other, so
neither takes memory or time from the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from groupwise.base.outside import file_json
from groupwise.bench import other_library
from groupwise.config import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
Tell = Callable[[str], None]
"""Receives a sentence about what is measured next."""
SHOWN_LINES = 5
"""Last lines of what a library printed before it failed."""
INSTALL_S = 60.0
"""Time to find out whether a library is installed."""


class OtherFailed(RuntimeError):
    """One side of a comparison failed, or did other work than the other. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Other:
    """A library to compare with."""

    library: str
    """A name in `other_library.LIBRARIES`."""
    python: str = sys.executable
    """Python of an environment that has the library."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for the library that replace those that would be tried."""

    def check(self) -> None:
        """Refuse an environment without the library, before anything is measured."""
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({self.library!r}) is None)"
        if self._run("-c", code, timeout=INSTALL_S).returncode:
            raise ConfigError(
                f"--against {self.library}: {self.python} has no {self.library}; pip install {self.library}, or name "
                "the Python of an environment that has it with --against-python"
            )

    def measure(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of work: a model, prompts, arguments, and the settings among them that were chosen."""
        with tempfile.TemporaryDirectory(prefix="groupwise-against-") as name:
            folder = Path(name)
            work_path, result_path = folder / "work.json", folder / "result.json"
            work_path.write_text(json.dumps({**work, "library": self.library, "folder": str(folder / "out")}))
            done = self._run(other_library.__file__, str(work_path), str(result_path))
            if done.returncode:
                lines = [line for line in done.stdout.splitlines() if line.strip()][-SHOWN_LINES:]
                raise OtherFailed(
                    f"--against {self.library}: failed with {told(work['settings'])} (exit status {done.returncode}). "
                    "Its last lines:\n  " + "\n  ".join(lines)
                )
            result: dict[str, Any] = file_json(result_path)
        return result

    def measure_each(self, works: Iterable[Mapping[str, Any]], tell: Tell) -> list[tuple[Mapping[str, Any], Any]]:
        """Return each work with its result. What fails, as bfloat16 may on some CPUs, is left out unless all does."""
        measured, failures = [], []
        for work in works:
            tell(f"measuring {self.library} with {told(work['settings'])}")
            try:
                measured.append((work, self.measure(work)))
            except OtherFailed as error:
                tell(str(error))
                failures.append(error)
        if not measured:
            raise failures[-1]
        return measured

    def _run(self, *arguments: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self.python, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(
                f"--against-python {self.python!r}: cannot be run ({error}); give the path of a Python interpreter, "
                "such as ~/other/bin/python"
            ) from None


def apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a process of its own, whose peak memory is that of the call."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, *args, **kwargs).result()
        except BrokenProcessPool as error:
            raise OtherFailed("the process of groupwise was killed, probably because memory ran out") from error


def candidates(settings: Mapping[str, Any], tried: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the distinct settings to try, with those that are given in place of theirs."""
    distinct: list[dict[str, Any]] = []
    for one in tried:
        if (merged := {**one, **settings}) not in distinct:
            distinct.append(merged)
    return distinct


def told(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
