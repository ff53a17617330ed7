"""Sandbox and Session, the interface for the rest of the project.

One zygote serves all programs of a sandbox. The owner polls everything that its open programs write, so an idle session
does not stall. The zygote enforces limits; if it does not answer, the owner kills it with its programs and the caller
gets `SandboxBroken`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import select
import sys
import threading
import time
import weakref

from groupwise.sandbox import kernel, wire
from groupwise.sandbox.job import LOOK_SECONDS, ProgramJob
from groupwise.sandbox.link import Link, StartFailed
from groupwise.sandbox.outcome import (
    ProgramLimits,
    ProgramOutcome,
    ProgramStatus,
    SandboxBroken,
    SandboxUnavailable,
    SessionEnded,
)

UNSAFE = "none: model-written code may read, change and send my files"
ISOLATIONS = ("namespaces", "landlock")
DEFAULT_LIMITS = ProgramLimits()
_SELF_CHECK_LIMITS = ProgramLimits(seconds=10.0, wall_seconds=60.0, sleep_seconds=60.0)

# Runs once in every new zygote and prints "isolated" if everything forbidden fails. `colorsys` stands for the modules
# that are read from the standard library on disk.
_SELF_CHECK = """
import colorsys, os, socket
reached = []
for name, attempt in (
    ("fork", os.fork),
    ("socket", socket.socket),
    ("read a file of the owner", lambda: open({path!r})),
    ("list /proc", lambda: os.listdir("/proc")),
    ("write a file", lambda: open("/tmp/written", "w")),
):
    try:
        attempt()
    except OSError:
        continue
    reached.append(name)
print("reached: " + ", ".join(reached) if reached else "isolated")
"""

_made: weakref.WeakSet[Sandbox] = weakref.WeakSet()


class Sandbox:
    """A sandbox that starts with its first program and ends with `close` or the end of its `with`.

    Any thread may use it; calls wait for each other. A fork starts its own zygote at its first call.
    """

    def __init__(self, isolation: str = "auto") -> None:
        known = ("auto", *ISOLATIONS, UNSAFE)
        if isolation not in known and not re.fullmatch("landlock:[1-9]", isolation):
            raise ValueError(f"isolation = {isolation!r}: give one of {', '.join(map(repr, known))}")
        self._candidates = ISOLATIONS if isolation == "auto" else (isolation,)
        self.isolation = ""
        """The isolation in use; empty before the first program."""
        self._link: Link | None = None
        self._jobs: dict[int, ProgramJob] = {}
        self._num_jobs = 0
        self._lock = threading.RLock()
        _made.add(self)

    def run(self, source: str, *, stdin: str = "", limits: ProgramLimits = DEFAULT_LIMITS) -> ProgramOutcome:
        """Run `source` as `__main__` of a fresh process and wait for its end."""
        with self._lock:
            return self._finish(self._begin(source, stdin, limits, has_channel=False))

    def open(self, source: str, *, limits: ProgramLimits = DEFAULT_LIMITS) -> Session:
        """Start `source` as `__main__` of a fresh process with a channel to the caller on descriptor 3."""
        with self._lock:
            return Session(self, self._begin(source, "", limits, has_channel=True))

    def close(self) -> None:
        """End the zygote and all programs. A later call starts a new one."""
        with self._lock:
            link, self._link = self._link, None
            self._break_jobs("the sandbox was closed")
            if link is not None:
                link.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_link", None) is not None and not sys.is_finalizing():
            self.close()

    def _begin(self, source: str, stdin: str, limits: ProgramLimits, has_channel: bool) -> ProgramJob:
        if self._link is None:
            self._start()
        assert self._link is not None
        self._num_jobs += 1
        try:
            job = ProgramJob(self._num_jobs, source, stdin, limits, has_channel)
        except OSError as error:  # out of descriptors, as a rule
            raise SandboxBroken(f"no pipes for another program: {error}") from error
        self._jobs[job.number] = job
        request = wire.START.pack(b"S", job.number, limits.seconds, limits.wall, limits.memory_mb << 20)
        is_sent = self._link.send(request, job.descriptors)
        job.close_sent_descriptors()
        if not is_sent:
            raise SandboxBroken(self._break("it is gone"))
        return job

    def _finish(self, job: ProgramJob) -> ProgramOutcome:
        """Wait for the end. If the wait is interrupted (Ctrl-C), the program is killed and forgotten."""
        try:
            self._wait(job)
        except BaseException:
            self._kill(job)
            raise
        job.release()
        if job.outcome is None:
            raise SandboxBroken(job.broken)
        return job.outcome

    def _wait(self, awaited: ProgramJob, for_message: bool = False) -> None:
        """Serve all open programs until the awaited one is over, or has a message. No other's messages are read."""
        self._kill_excess()
        while not awaited.is_over and not (for_message and awaited.has_message):
            assert self._link is not None
            poller, control = select.poll(), self._link.control.fileno()
            poller.register(control, select.POLLIN)
            for job in self._jobs.values():
                job.register(poller, is_listening=for_message and job is awaited)
            start, deadline = time.monotonic(), min(job.deadline for job in self._jobs.values())
            patience = min(deadline - start, awaited.look_at - awaited.awaited_s)
            ready = [descriptor for descriptor, _ in poller.poll(max(0.0, patience) * 1000 + 0.5)]
            now = time.monotonic()
            awaited.awaited_s += now - start
            if not ready and deadline <= now:
                self._break("it did not answer in time")
            elif awaited.awaited_s >= awaited.look_at:
                awaited.look_at = awaited.awaited_s + LOOK_SECONDS
                self._link.send(wire.REQUEST.pack(b"C", awaited.number))
            for job in self._jobs.values():
                job.exchange(is_listening=for_message and job is awaited)
            if control in ready:
                self._read_report()
            self._kill_excess()

    def _kill_excess(self) -> None:
        for job in self._jobs.values():
            if job.is_over_output or job.has_oversized_message or job.is_asleep:
                self._kill(job)

    def _read_report(self) -> None:
        assert self._link is not None
        report = self._link.receive()
        if not report:
            self._break("it died")
            return
        number, status, seconds, cause, peak_bytes = wire.REPORT.unpack(report)
        if cause == wire.Cause.RUNNING:
            self._jobs[number].look(seconds)
        else:
            self._jobs.pop(number).end(status, seconds, wire.Cause(cause), peak_bytes)

    def _kill(self, job: ProgramJob) -> None:
        """Request the program's end; the report arrives later."""
        if self._link is not None and not job.is_over and not job.is_kill_sent:
            job.is_kill_sent = True
            self._link.send(wire.REQUEST.pack(b"K", job.number))

    def _break(self, why: str) -> str:
        """Kill the zygote with all its programs; return the reason in words."""
        link, self._link = self._link, None
        reason = why
        if link is not None:
            reason = f"the zygote failed ({why}): {link.kill()}"
        self._break_jobs(reason)
        return reason

    def _break_jobs(self, reason: str) -> None:
        for job in self._jobs.values():
            job.broken = reason
            job.release()
        self._jobs.clear()

    def _start(self) -> None:
        failures = {}
        for isolation in (self.isolation,) if self.isolation else self._candidates:
            failure = self._try_to_start(isolation)
            if not failure:
                self.isolation = isolation
                return
            failures[isolation] = failure
        if self.isolation:  # it worked before, so the trouble is temporary
            raise SandboxBroken(f"the zygote could not be started again: {failures[self.isolation]}")
        raise SandboxUnavailable(_advice(failures))

    def _try_to_start(self, isolation: str) -> str:
        """Start a zygote and check that it isolates; return "" or what failed."""
        if platform.system() != "Linux":
            return f"needs Linux, and this is {platform.system()}"
        try:
            self._link = Link("none" if isolation == UNSAFE else isolation)
            if isolation == UNSAFE:
                return ""
            outcome = self._finish(self._begin(_SELF_CHECK.format(path=__file__), "", _SELF_CHECK_LIMITS, False))
        except StartFailed as error:
            return str(error)
        except SandboxBroken as error:
            self._break("self-check failed")
            return f"self-check: {error}"
        except BaseException:  # interrupted: never use an unchecked zygote
            self._break("interrupted")
            raise
        if outcome.status == ProgramStatus.OK and outcome.stdout == "isolated\n":
            return ""
        self._break("self-check failed")
        return f"self-check: {outcome.status} {outcome.detail}: {(outcome.stdout + outcome.stderr).strip()[-500:]}"

    def _forget_after_fork(self) -> None:
        self._lock = threading.RLock()
        link, self._link = self._link, None
        if link is not None:
            link.forget()
        self._break_jobs("it belongs to the process that this one was forked from")


class Session:
    """A program and a channel to it. `close`, or the end of a `with`, kills the program if it still runs."""

    def __init__(self, sandbox: Sandbox, job: ProgramJob) -> None:
        self._sandbox = sandbox
        self._job = job
        self._is_closed = False

    def send(self, message: bytes) -> None:
        """Queue a message without waiting for the program to read it; `receive` reports if it has ended."""
        if len(message) > wire.MAX_MESSAGE_BYTES:
            raise ValueError(f"message of {len(message)} bytes: send at most {wire.MAX_MESSAGE_BYTES}")
        with self._sandbox._lock:
            self._check_open()
            if not self._job.is_over:
                self._job.outgoing += wire.FRAME.pack(len(message)) + message
                self._job.write_channel()

    def receive(self) -> bytes:
        """Return the program's next message; raise SessionEnded after its end and last message."""
        job = self._job
        with self._sandbox._lock:
            self._check_open()
            # A program that closed its channel or sent nonsense may still run: wait for its end.
            self._sandbox._wait(job, for_message=True)
            if job.broken:
                raise SandboxBroken(job.broken)
            job.read_channel()  # what it sent just before its end
            if job.has_message and not job.has_oversized_message:
                return job.take_message()
            assert job.outcome is not None
            raise SessionEnded(job.outcome)

    def close(self) -> ProgramOutcome:
        """Kill the program if it runs, and return its outcome; calling again returns the same."""
        with self._sandbox._lock:
            self._is_closed = True
            self._sandbox._kill(self._job)
            return self._sandbox._finish(self._job)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(SandboxBroken):
            self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the session is closed: open another")


def probe() -> dict[str, str]:
    """Return the state of each isolation on this machine ("ok" or the failed step), and facts of the system."""
    answers = {"system": f"{platform.system()} {platform.release()} {platform.machine()}"}
    for isolation in ISOLATIONS:
        with Sandbox(isolation) as sandbox:
            answers[isolation] = sandbox._try_to_start(isolation) or "ok"
    try:
        answers["landlock version"] = str(kernel.landlock_version())
    except kernel.KernelRefused as error:
        answers["landlock version"] = str(error)
    return answers


def _advice(failures: dict[str, str]) -> str:
    tried = "; ".join(f"{isolation}: {failure}" for isolation, failure in failures.items())
    return (
        f"this machine offers no isolation for untrusted programs. Tried {tried}. Either allow user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, "
        "user.max_user_namespaces above 0; in Docker a seccomp profile that allows unshare and mount), or use a kernel "
        f"with landlock (Linux 5.13 or newer, lsm=landlock), or run bare with isolation = {UNSAFE!r}"
    )


def _forget_all_after_fork() -> None:
    for sandbox in list(_made):
        sandbox._forget_after_fork()


os.register_at_fork(after_in_child=_forget_all_after_fork)
