"""What a program may use up, how it ended, and how the sandbox itself can fail."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ProgramStatus(StrEnum):
    """How a program ended. Each of them is the program's own doing; a failure of the sandbox is an exception."""

    OK = "ok"
    """It ended by itself with exit code 0. That says nothing of its answer: `os._exit(0)` ends so, too."""
    FAILED = "failed"
    """An uncaught exception, or an exit code other than 0."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"
    """By a signal: a segmentation fault, a system call of a foreign architecture, or `Session.close`."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one program may use, from its start to its end; for a session, over all of its messages."""

    seconds: float = 2.0
    """CPU time, so that the outcome does not depend on how busy the machine is."""
    wall_seconds: float = 0.0
    """Time by the clock: catches what sleeps. 0 is 4 × seconds + 2, far from what a program that computes needs."""
    memory_mb: int = 256
    """Address space on top of what the bare interpreter has, in MiB."""
    output_bytes: int = 65536
    """Of stdout, and again of stderr. A program that writes more is ended."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("seconds", 0.001, 86400),
            ("wall_seconds", 0, 864000),
            ("memory_mb", 1, 1 << 20),
            ("output_bytes", 0, 1 << 30),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"Limits.{name} = {value!r}: give a number from {low} to {high}")

    @property
    def wall(self) -> float:
        """The wall limit in seconds, with the default worked out."""
        return self.wall_seconds or 4 * self.seconds + 2


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """What became of one program. All of it may have been forged by the program, save status limits and seconds."""

    status: ProgramStatus
    stdout: str
    """At most `output_bytes`, decoded as UTF-8; bytes that are not become U+FFFD. Hostile text."""
    stderr: str
    seconds: float
    """CPU time it used."""
    exit_code: int | None
    """None when it did not end by itself."""
    detail: str
    """For people: which limit, which signal."""


class SandboxUnavailable(RuntimeError):
    """This machine offers no isolation. The message lists what was tried, what failed, and what to do."""


class SandboxBroken(RuntimeError):
    """The sandbox itself failed: says nothing of the program. The next call starts afresh."""


class SessionEnded(Exception):
    """The program of a session has ended, by itself or by a limit. News of the program, not an error of the caller."""

    def __init__(self, outcome: ProgramOutcome) -> None:
        super().__init__(f"{outcome.status}: {outcome.detail}")
        self.outcome = outcome
