"""Limits of a program, its outcome, and the failures of the sandbox itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ProgramStatus(StrEnum):
    """How a program ended. A failure of the sandbox is an exception instead."""

    OK = "ok"
    """It exited with code 0, which says nothing about its answer: so does `os._exit(0)`."""
    FAILED = "failed"
    """An uncaught exception, or an exit code other than 0."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"
    """Killed by a signal: a segmentation fault, a system call of a foreign architecture, or `Session.close`."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Limits of one program from start to end; for a session, over all of its messages."""

    seconds: float = 2.0
    """CPU time, so that the outcome does not depend on the machine's load."""
    wall_seconds: float = 0.0
    """Wall-clock time. 0: 4 × seconds + 2, far above what computing needs."""
    sleep_seconds: float = 2.0
    """Time in which its owner waits for it and it computes nothing: it sleeps, or waits for what never comes."""
    memory_mb: int = 256
    """Address space on top of the bare interpreter's, in MiB."""
    output_bytes: int = 65536
    """Maximum bytes of stdout, and of stderr. A program that writes more is killed."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("seconds", 0.001, 86400),
            ("wall_seconds", 0, 864000),
            ("sleep_seconds", 0, 864000),
            ("memory_mb", 1, 1 << 20),
            ("output_bytes", 0, 1 << 30),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"Limits.{name} = {value!r}: give a number from {low} to {high}")

    @property
    def wall(self) -> float:
        """The wall limit in seconds, with the default resolved."""
        return self.wall_seconds or 4 * self.seconds + 2


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """The outcome of one program. The program may have forged everything but seconds and exceeded limits."""

    status: ProgramStatus
    stdout: str
    """At most `output_bytes`, decoded as UTF-8 with U+FFFD for invalid bytes. Hostile text."""
    stderr: str
    seconds: float
    """CPU time used."""
    exit_code: int | None
    """None when it did not exit by itself."""
    detail: str
    """Which limit or signal, in words."""


class SandboxUnavailable(RuntimeError):
    """This machine offers no isolation. The message lists what was tried and what to do."""


class SandboxBroken(RuntimeError):
    """The sandbox itself failed, not the program. The next call starts a new one."""


class SessionEnded(Exception):
    """The program of a session has ended, by itself or by a limit; not an error of the caller."""

    def __init__(self, outcome: ProgramOutcome) -> None:
        super().__init__(f"{outcome.status}: {outcome.detail}")
        self.outcome = outcome
