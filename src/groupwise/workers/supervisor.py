"""The process between the caller and the workers: forks them, deals out jobs, kills who is over the limit.

It never runs the function itself and never waits for anybody, so nothing that a function does can hold it up. Run as
`python -m groupwise.workers.supervisor DESCRIPTOR`, with one end of a socket pair as the descriptor.

A worker holds at most two jobs, so that it need not wait between them. Only its first unanswered item can be to blame
when it dies or hangs; whatever else it held goes back to the front of the queue.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from groupwise.workers.messages import JOB, MAX_RESULT_BYTES, READY, RESULT, BadFrame, Channel, Limits, Outcome
from groupwise.workers.worker import run_forked

JOBS_PER_WORKER = 2
CHECK_SECONDS = 0.02
"""How often the clocks of busy workers are read."""
MAX_ITEMS_PER_WORKER = 20_000
"""Then it is replaced: caches of foreign libraries must not grow for ever."""
MAX_IDLE_DEATHS = 50
"""Workers that may die in a row without having had anything to do; then something is wrong with all of them."""
PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Job:
    number: int
    num_items: int
    next_item: int
    payload: bytes


class Worker:
    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.channel = Channel(connection, MAX_RESULT_BYTES + RESULT.size)
        self.jobs: deque[Job] = deque()
        self.num_answered = 0
        self.marks: tuple[float, float] | None = None
        """(CPU, wall) clock when the item at hand was first seen; None between an answer and the next look."""

    def cpu_seconds(self) -> float:
        # Linux encodes "CPU clock of process PID" in the clock's number; see clock_getcpuclockid(3).
        return time.clock_gettime((~self.pid << 3) | 2)

    @property
    def has_room(self) -> bool:
        return len(self.jobs) < JOBS_PER_WORKER and self.num_answered < MAX_ITEMS_PER_WORKER


class Supervisor:
    def __init__(
        self, owner: Channel, function: Callable[[Any, Any], Any], num_workers: int, limits: Limits, owner_pid: int
    ) -> None:
        self._owner = owner
        self._owner_pid = owner_pid
        self._function = function
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._selector.register(owner.socket, selectors.EVENT_READ, None)
        self._queue: deque[Job] = deque()
        self._workers: list[Worker] = []
        self._num_idle_deaths = 0
        for _ in range(num_workers):
            self._fork()

    def run(self) -> None:
        while not self._owner.is_closed and os.getppid() == self._owner_pid:
            is_busy = any(worker.jobs for worker in self._workers)
            for key, events in self._selector.select(CHECK_SECONDS if is_busy else 1.0):
                if key.data is None:
                    self._serve_owner(events)
                elif key.data in self._workers:  # it may have been replaced by what came before it in this round
                    self._serve_worker(key.data, events)
            for worker in list(self._workers):
                self._check_limits(worker)
            self._deal()
        for worker in self._workers:
            _kill(worker.pid)

    def _serve_owner(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._owner.flush()
        if events & selectors.EVENT_READ:
            for frame in self._owner.receive():
                number, num_items = JOB.unpack_from(frame)
                self._queue.append(Job(number, num_items, 0, frame[JOB.size :]))
        self._watch(self._owner, None)

    def _serve_worker(self, worker: Worker, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            worker.channel.flush()
        try:
            for frame in worker.channel.receive():
                self._take(worker, frame)
            is_lost = worker.channel.is_closed
        except BadFrame:  # the function got at the connection
            is_lost = True
        if is_lost:
            self._replace(worker, Outcome.DIED)
        elif worker.num_answered >= MAX_ITEMS_PER_WORKER and not worker.jobs:
            self._replace(worker, Outcome.DONE)
        else:
            self._watch(worker.channel, worker)

    def _take(self, worker: Worker, frame: bytes) -> None:
        """Pass a result on, if it is the one that is due."""
        if not worker.jobs or len(frame) < RESULT.size:
            raise BadFrame("a result that nobody asked for")
        job = worker.jobs[0]
        number, item, outcome, seconds = RESULT.unpack_from(frame)
        if (number, item) != (job.number, job.next_item) or outcome not in (Outcome.DONE, Outcome.RAISED):
            raise BadFrame(f"a result for item {item} of job {number}, and {job.next_item} of {job.number} is due")
        if seconds > self._limits.seconds:
            # It ended before anybody looked. Whether an item is over the limit must not depend on that.
            self._answer_for(job, Outcome.TIMED_OUT, seconds)
        else:
            self._tell_owner(frame)
        worker.num_answered += 1
        self._num_idle_deaths = 0
        self._advance(worker)

    def _advance(self, worker: Worker) -> None:
        worker.marks = None
        job = worker.jobs[0]
        job.next_item += 1
        if job.next_item == job.num_items:
            worker.jobs.popleft()

    def _check_limits(self, worker: Worker) -> None:
        if not worker.jobs:
            return
        cpu, wall = worker.cpu_seconds(), time.monotonic()
        if worker.marks is None:
            worker.marks = (cpu, wall)
        cpu_used, wall_used = cpu - worker.marks[0], wall - worker.marks[1]
        if cpu_used > self._limits.seconds or wall_used > self._limits.wall_seconds:
            self._replace(worker, Outcome.TIMED_OUT, cpu_used)

    def _replace(self, worker: Worker, outcome: Outcome, seconds: float = 0.0) -> None:
        """Kill a worker, answer for the item that it was at, put the rest back in the queue, fork another."""
        self._selector.unregister(worker.channel.socket)
        worker.channel.socket.close()
        self._workers.remove(worker)
        status = _kill(worker.pid)
        if worker.jobs:
            self._answer_for(worker.jobs[0], outcome, seconds, _ending(status))
            self._advance(worker)
        elif outcome is Outcome.DIED:
            self._num_idle_deaths += 1
            if self._num_idle_deaths > MAX_IDLE_DEATHS:
                sys.exit(f"groupwise: verifier workers end as soon as they start, with {_ending(status)}")
        self._queue.extendleft(reversed(worker.jobs))
        self._fork()

    def _answer_for(self, job: Job, outcome: Outcome, seconds: float, ending: str = "") -> None:
        if outcome is Outcome.TIMED_OUT and seconds > self._limits.seconds:
            detail = f"more than {self._limits.seconds:g} s of CPU time"
        elif outcome is Outcome.TIMED_OUT:
            detail = f"no answer within {self._limits.wall_seconds:g} s"
        else:
            detail = f"its process ended with {ending}"
        self._tell_owner(RESULT.pack(job.number, job.next_item, outcome, seconds) + detail.encode())

    def _tell_owner(self, frame: bytes) -> None:
        self._owner.send(frame)
        self._watch(self._owner, None)

    def _deal(self) -> None:
        while self._queue:
            worker = min(self._workers, key=lambda worker: len(worker.jobs) if worker.has_room else JOBS_PER_WORKER)
            if not worker.has_room:
                return
            job = self._queue.popleft()
            worker.jobs.append(job)
            worker.channel.send(JOB.pack(job.number, job.next_item), job.payload)
            self._watch(worker.channel, worker)

    def _watch(self, channel: Channel, data: Worker | None) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.has_outgoing else 0)
        if self._selector.get_key(channel.socket).events != events:
            self._selector.modify(channel.socket, events, data)

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            os.setsid()  # so that its own children can be killed with it
            _die_with_parent()
            ours.close()
            self._owner.socket.close()
            for worker in self._workers:
                worker.channel.socket.close()
            self._selector.close()
            run_forked(theirs, self._function, self._limits)
        theirs.close()
        worker = Worker(pid, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we could ask
        os._exit(1)


def _kill(pid: int) -> int:
    """Kill a worker with all that it started; how it ended."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # killpg: not the leader of a group yet
            continue
    return os.waitpid(pid, 0)[1]


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def main(descriptor: int) -> None:
    owner_pid = os.getppid()
    owner = Channel(socket.socket(fileno=descriptor))
    selector = selectors.DefaultSelector()
    selector.register(owner.socket, selectors.EVENT_READ)
    setup: list[bytes] = []
    while not setup and not owner.is_closed:
        selector.select()
        setup = owner.receive()
    selector.close()
    if not setup:
        return
    try:
        sys.path[:], num_workers, limits, function = pickle.loads(setup[0])
        function = pickle.loads(function)
    except Exception as error:  # noqa: BLE001 - this imports the caller's modules, which may raise anything
        owner.send(f"{type(error).__name__}: {error}".encode(errors="backslashreplace"))
        return
    os.dup2(2, 1)  # what a function prints must not mix with the caller's own output
    gc.collect()
    gc.freeze()  # forks share these pages, as long as nobody writes to them
    supervisor = Supervisor(owner, function, num_workers, limits, owner_pid)
    owner.send(READY)
    supervisor.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
