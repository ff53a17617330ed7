"""The warm interpreter that programs are forked from.

Started as a fresh process with an empty environment, it imports what programs usually import, isolates itself, sends
READY and then serves: a fork for each START, SIGKILL at the limit or on KILL, a REPORT of each end. It has one thread
and handles nothing that a program wrote. It ends when the control socket closes or the owner's process descriptor
reports the owner's end. (Not by PDEATHSIG, which fires when the owner's *thread* ends.)

The limit applies to the program's CPU clock, read from here. A program has one thread, so it cannot use CPU time faster
than time passes: the next check is due when the rest of its allowance could be used up.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import importlib
import os
import platform
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from mmap import mmap

from groupwise.sandbox import kernel, seccomp, wire
from groupwise.sandbox.isolation import enter_landlock, enter_namespaces, exposed_paths
from groupwise.sandbox.program import MAX_DESCRIPTORS, Lockdown, become_program

# The most common imports; others come from the standard library on disk, at a few milliseconds each.
_PRELOADED = (
    "abc argparse array ast base64 binascii bisect calendar cmath collections collections.abc contextlib copy csv "
    "ctypes dataclasses datetime decimal enum fractions functools hashlib heapq inspect io itertools json keyword "
    "linecache math numbers operator os pprint queue random re secrets sched select shutil signal statistics string "
    "struct sys tempfile textwrap threading time timeit traceback types typing unicodedata unittest uuid warnings "
    "weakref zlib "
)

_LOWEST_OWN_DESCRIPTOR = 10
_SHORTEST_LOOK_S = 0.002
_AFTER_KILL_S = 3600.0


@dataclass(slots=True)
class _Job:
    pid: int
    process: int
    """A descriptor that becomes readable when the program ends."""
    is_ready: mmap
    seconds: float
    deadline: float
    look_at: float
    cause: wire.Cause = wire.Cause.ITSELF

    def cpu_seconds(self) -> float:
        # The number of a process's CPU clock is made from the process's number; see clock_getcpuclockid(3).
        return time.clock_gettime((~self.pid << 3) | 2)


class _Zygote:
    def __init__(self, control: socket.socket, owner: int, lockdown: Lockdown) -> None:
        self._control = control
        self._owner = owner
        self._lockdown = lockdown
        self._jobs: dict[int, _Job] = {}

    def serve(self) -> None:
        """Serve until the owner is gone."""
        while True:
            poller = select.poll()
            by_process = {job.process: number for number, job in self._jobs.items()}
            for descriptor in (self._control.fileno(), self._owner, *by_process):
                poller.register(descriptor, select.POLLIN)
            for descriptor, _ in poller.poll(self._patience_ms()):
                if descriptor == self._owner:
                    return
                if descriptor in by_process:
                    self._reap(by_process[descriptor])
                elif descriptor == self._control.fileno() and not self._handle_request():
                    return
            self._enforce()

    def _patience_ms(self) -> float | None:
        if not self._jobs:
            return None
        return max(0.0, min(job.look_at for job in self._jobs.values()) - time.monotonic()) * 1000 + 0.5

    def _handle_request(self) -> bool:
        """Handle a request; return False when the owner has closed its end."""
        data, descriptors, _, _ = socket.recv_fds(self._control, wire.MAX_REQUEST_BYTES, wire.MAX_DESCRIPTORS)
        if not data:
            return False
        if data[:1] != b"S":
            kind, number = wire.REQUEST.unpack(data)
            job = self._jobs.get(number)
            if job is not None and kind == b"K":
                self._kill(job, wire.Cause.OWNER)
            elif job is not None:
                self._report(number, 0, job.cpu_seconds(), wire.Cause.RUNNING, 0)
            return True
        _, number, seconds, wall, memory = wire.START.unpack(data)
        self._start(number, seconds, wall, memory, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start(self, number: int, seconds: float, wall: float, memory: int, descriptors: list[int]) -> None:
        is_ready = mmap(-1, 1)
        try:
            pid = os.fork()
        except OSError:
            self._report(number, 0, 0.0, wire.Cause.SETUP, 0)
            return
        if pid == 0:
            for other in self._jobs.values():
                other.is_ready.close()
            become_program(self._lockdown, descriptors, seconds, memory, is_ready)
        now = time.monotonic()
        self._jobs[number] = _Job(pid, os.pidfd_open(pid), is_ready, seconds, now + wall, now + min(seconds, wall))

    def _enforce(self) -> None:
        now = time.monotonic()
        for job in self._jobs.values():
            if now < job.look_at:
                continue
            left = job.seconds - job.cpu_seconds()
            if left <= 0:
                self._kill(job, wire.Cause.CPU)
            elif now >= job.deadline:
                self._kill(job, wire.Cause.WALL)
            else:
                job.look_at = min(now + max(left, _SHORTEST_LOOK_S), job.deadline)

    def _kill(self, job: _Job, cause: wire.Cause) -> None:
        if job.cause == wire.Cause.ITSELF:
            job.cause = cause
        job.look_at = time.monotonic() + _AFTER_KILL_S
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(job.process, signal.SIGKILL)

    def _reap(self, number: int) -> None:
        job = self._jobs.pop(number)
        _, status, usage = os.wait4(job.pid, 0)
        os.close(job.process)
        cause = job.cause if job.is_ready[0] or job.cause != wire.Cause.ITSELF else wire.Cause.SETUP
        job.is_ready.close()
        self._report(number, status, usage.ru_utime + usage.ru_stime, cause, usage.ru_maxrss * 1024)

    def _report(self, number: int, status: int, seconds: float, cause: wire.Cause, peak_bytes: int) -> None:
        with contextlib.suppress(ConnectionError):
            self._control.send(wire.REPORT.pack(number, status, seconds, cause, peak_bytes))


def main(control_descriptor: int, owner_descriptor: int, isolation: str) -> None:
    """Run a zygote. `isolation` is "namespaces", "landlock", "landlock:VERSION" or "none"."""
    control, owner = _arrange_descriptors(control_descriptor, owner_descriptor)
    try:
        lockdown = _isolate(isolation)
    except (kernel.KernelRefused, OSError) as error:
        if isinstance(error, OSError):
            error = kernel.KernelRefused(f"access {error.filename}", error.errno or 0, error.strerror or str(error))
        control.send(os.fsencode(str(error))[: wire.MAX_REPLY_BYTES])
        return
    if lockdown is None:  # the process outside the namespaces, which has waited for their end
        return
    for name in [name for name in sys.modules if name.split(".")[0] == "groupwise"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    control.send(wire.READY)
    _Zygote(control, owner, lockdown).serve()
    os._exit(0)  # at once: running programs die with this process


def _arrange_descriptors(control: int, owner: int) -> tuple[socket.socket, int]:
    """Move our descriptors above the numbers of a program's descriptors, which stay occupied."""
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _LOWEST_OWN_DESCRIPTOR) for number in (control, owner)]
    os.closerange(wire.CHANNEL_DESCRIPTOR, _LOWEST_OWN_DESCRIPTOR)
    for number in (control, owner):
        if number not in moved and number >= _LOWEST_OWN_DESCRIPTOR:
            os.close(number)
    os.dup2(0, wire.CHANNEL_DESCRIPTOR)  # stdin is /dev/null
    return socket.socket(fileno=moved[0]), moved[1]


def _isolate(isolation: str) -> Lockdown | None:
    """Prepare and isolate this process. Return None in the process outside the namespaces, after their end."""
    os.environ.clear()
    os.umask(0o022)
    for name in _PRELOADED.split():
        with contextlib.suppress(ImportError):  # an interpreter may be built without some
            importlib.import_module(name)
    # When memory runs out, the kernel should kill these processes and not the owner.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    with open("/proc/self/statm") as file:
        base_bytes = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, hard))
    # A verifier's process may have limited itself; its programs have their own limits.
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        program_filter = _checked_filter()
    except kernel.KernelRefused:
        if isolation != "none":
            raise
        program_filter = b""
    if isolation == "namespaces":
        child = enter_namespaces(exposed_paths())
        if child:
            os.closerange(0, MAX_DESCRIPTORS)  # the socket and the owner's descriptor must not stay open here
            os.waitpid(child, 0)
            return None
    elif isolation.startswith("landlock"):
        enter_landlock(exposed_paths(), *map(int, isolation.split(":")[1:]))
    else:
        kernel.forbid_new_privileges()
        os.chdir("/")
    kernel.hide_memory()
    return Lockdown(os.getpid(), base_bytes, program_filter)


def _checked_filter() -> bytes:
    """Return the seccomp filter after a test process has installed it."""
    machine = platform.machine()
    if machine not in seccomp.ARCHITECTURES:
        raise kernel.KernelRefused(f"seccomp filter for {machine}", errno.ENOSYS, f"no list of calls for {machine}")
    program_filter = seccomp.build_filter(machine)
    pid = os.fork()
    if pid == 0:
        number = 0
        try:
            kernel.forbid_new_privileges()
            kernel.install_filter(program_filter)
        except kernel.KernelRefused as error:
            number = error.number
        os._exit(number)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number:
        raise kernel.KernelRefused("seccomp filter", abs(number))
    return program_filter
