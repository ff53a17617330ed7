"""Runs the jobs of a sweep in parallel, each as `groupwise train` in its own process.

Contract: finished runs are skipped, started ones continue with `train --resume`, all others are started. A run that
fails is recorded in failures.jsonl and does not stop the others. When asked to stop (SIGTERM, Ctrl-C, or time is up),
the runner starts no more runs, sends SIGTERM to the running ones, which makes them save, and waits for them; asked
twice, it kills them. If this process dies, the kernel sends SIGTERM to the children (PDEATHSIG), so none remains.

All children are started from the main thread: PDEATHSIG refers to the thread that forked.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from groupwise.base.signals import handling_stops, signal_name
from groupwise.runs import layout
from groupwise.runs.files import writing
from groupwise.sweeps.folder import SweepJob, recipe_file, record_failure
from groupwise.workers import num_cores

if TYPE_CHECKING:
    from groupwise.sweeps.display import Display

TRAIN = (sys.executable, "-m", "groupwise", "train")
WAIT_S = 0.5
"""Interval between progress checks. A child that ends is noticed at once."""
_PR_SET_PDEATHSIG = 1

Status = Literal["waiting", "running", "finished", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class JobProgress:
    """State of a run in the sweep."""

    job: SweepJob
    status: Status = "waiting"
    step: int = 0
    score: float | None = None
    """Held-out pass@1 at its last evaluation."""
    error: str = ""
    """The last line that a failed run printed."""


class StopSwitch:
    """Stops the start of further runs, after a signal or a time limit."""

    def __init__(self, limit_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deadline = None if limit_s is None else clock() + limit_s
        self.signal: int | None = None
        self.is_urgent = False
        """The signal came a second time."""

    @property
    def is_time_up(self) -> bool:
        return self._deadline is not None and self._clock() >= self._deadline

    @property
    def is_on(self) -> bool:
        return self.signal is not None or self.is_time_up

    def turn_on(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.is_urgent = self.signal is not None
        self.signal = number


@dataclass(frozen=True, slots=True)
class Placement:
    """How runs share the machine."""

    at_once: int = 1
    devices: tuple[str, ...] = ()
    """GPUs to use in turn, as in CUDA_VISIBLE_DEVICES; () leaves the choice to the run."""
    overrides: Callable[[SweepJob], Sequence[str]] = field(default=lambda job: ())
    """Overrides that do not affect results, such as a share of memory."""

    def environment(self, slot: int) -> dict[str, str]:
        environment = dict(os.environ)
        if self.at_once > 1:
            threads = max(1, num_cores() // self.at_once)
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        return environment


@dataclass(slots=True)
class _Child:
    job: SweepJob
    slot: int
    process: subprocess.Popen[bytes]
    descriptor: int
    is_told: bool = False
    """It was asked to stop."""


class JobRunner:
    def __init__(
        self,
        folder: Path,
        *,
        placement: Placement | None = None,
        stop: StopSwitch | None = None,
        watcher: Display | None = None,
        train: Sequence[str] | None = None,
        keeps_checkpoints: bool = True,
    ) -> None:
        self._folder = folder
        self._placement = placement or Placement()
        self._stop = stop or StopSwitch()
        self._watcher = watcher
        self._train = TRAIN if train is None else tuple(train)
        self._keeps_checkpoints = keeps_checkpoints
        self._children: list[_Child] = []
        self._runs: dict[Path, JobProgress] = {}
        self._selector = selectors.DefaultSelector()

    def run(self, jobs: Sequence[SweepJob]) -> list[JobProgress]:
        """Run the jobs. Return their states when all have ended, or the sweep was asked to stop."""
        waiting = []
        for job in jobs:
            if job.state == "finished":
                self._note(JobProgress(job, "finished", job.step, job.score))
            else:
                self._runs[job.run_dir] = JobProgress(job)
                waiting.append(job)
        with handling_stops(self._stop.turn_on):
            try:
                while (waiting and not self._stop.is_on) or self._children:
                    while waiting and not self._stop.is_on and len(self._children) < self._placement.at_once:
                        self._start(waiting.pop(0))
                    if self._stop.is_on:
                        self._tell_all()
                    self._wait()
                    runs = self._look()
                    if self._watcher is not None:
                        self._watcher.passed(runs)
            finally:
                self._kill_all()
        return [self._runs[job.run_dir] for job in jobs]

    def _start(self, job: SweepJob) -> None:
        taken = {child.slot for child in self._children}
        slot = next(slot for slot in range(self._placement.at_once) if slot not in taken)
        command = self._command(job)
        with writing(job.log):
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with open(job.log, "ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._placement.environment(slot),
                    start_new_session=True,  # Ctrl-C goes only to the sweep, which stops the runs
                    preexec_fn=_end_with(os.getpid()),
                )
        descriptor = os.pidfd_open(process.pid)
        self._children.append(_Child(job, slot, process, descriptor))
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._note(JobProgress(job, "running", job.step, job.score))

    def _command(self, job: SweepJob) -> list[str]:
        if job.state == "begun":
            return [*self._train, "--resume", str(job.run_dir)]
        settings = [*job.arm.overrides, *self._placement.overrides(job), f"seed={job.seed}"]
        named = [word for setting in settings for word in ("--set", setting)]
        return [*self._train, str(self._folder / recipe_file(job.arm)), "--run-dir", str(job.run_dir), *named]

    def _wait(self) -> None:
        self._selector.select(WAIT_S)
        for child in list(self._children):
            code = child.process.poll()
            if code is not None:
                self._forget(child)
                self._note(self._ending(child, code))

    def _forget(self, child: _Child) -> None:
        self._selector.unregister(child.descriptor)
        os.close(child.descriptor)
        self._children.remove(child)

    def _ending(self, child: _Child, code: int) -> JobProgress:
        job = child.job
        now = JobProgress(job, "finished", job.step, job.score)
        if code == 0 and job.state == "finished":
            if not self._keeps_checkpoints:
                shutil.rmtree(job.run_dir / layout.CHECKPOINTS, ignore_errors=True)
            return now
        if child.is_told:
            return replace(now, status="stopped")
        lines = job.last_lines()
        record_failure(self._folder, job, code, lines)
        return replace(now, status="failed", error=lines[-1] if lines else _said(code))

    def _tell_all(self) -> None:
        for child in self._children:
            if self._stop.is_urgent:
                _kill(child.process)
            elif not child.is_told:
                child.process.terminate()
            child.is_told = True

    def _kill_all(self) -> None:
        """Kill the remaining children. There are some only after an error in the sweep itself."""
        for child in list(self._children):
            _kill(child.process)
            child.process.wait()
            self._forget(child)

    def _look(self) -> list[JobProgress]:
        for child in self._children:
            key = child.job.run_dir
            self._runs[key] = replace(self._runs[key], step=child.job.step)
        return list(self._runs.values())

    def _note(self, now: JobProgress) -> None:
        self._runs[now.job.run_dir] = now
        if self._watcher is not None:
            self._watcher.changed(now)


def _end_with(parent: int) -> Callable[[], None]:
    """Return a function for the child, before exec: receive SIGTERM if the sweep dies."""
    prctl = ctypes.CDLL(None).prctl  # looked up here: nothing may take a lock after a fork

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return ask


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _said(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"ended by {signal_name(-code)}"


def summary_of(runs: Sequence[JobProgress]) -> Mapping[str, int]:
    """Count the runs in each state."""
    statuses = [run.status for run in runs]
    return {status: statuses.count(status) for status in ("finished", "failed", "stopped", "running", "waiting")}
