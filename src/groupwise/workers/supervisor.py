"""The processes of a pool: a supervisor between the caller and the workers, and the workers that it forks.

The supervisor distributes jobs and enforces the limits. It never runs the function itself and never blocks, so a
function cannot delay it. `main` runs in a process of its own, with one end of a socket pair as the descriptor.

A worker runs the function. It holds two jobs, or more when the queue is long, so that it need not wait between them. It
notes the current item in memory shared with the supervisor, and sends the answers to a job together. When it dies or
hangs, the item that it noted is blamed; its other unanswered items return to the front of the queue.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import pickle
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from groupwise.base.signals import signal_name
from groupwise.workers.messages import ENDING, JOB, READY, SHARE, BadFrame, Channel, Limits, Outcome, wait_for

MIN_JOBS_PER_WORKER, MAX_JOBS_PER_WORKER = 2, 16
CHECK_SECONDS = 0.02
"""Interval between reads of busy workers' clocks."""
MAX_ITEMS_PER_WORKER = 20_000
"""Items after which a worker is replaced, since caches of foreign libraries must not grow forever."""
MAX_IDLE_DEATHS = 50
"""Number of workers that may die idle in a row before the supervisor gives up."""
MAX_VALUE_CHARS = 1 << 20
"""Maximum length of a value as JSON; a longer one is an error of its item."""
MAX_DETAIL_CHARS = 2000
MAX_HOLD_SECONDS = 0.005
"""How long answers may wait for more."""
PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class WorkerJob:
    """A range of the items of one submitted job."""

    number: int
    first: int
    end: int
    payload: bytes
    is_alone: bool = False
    """Its worker gets no other job meanwhile, so that the blame is certain."""


@dataclass(slots=True, eq=False)
class Worker:
    pid: int
    channel: Channel
    note: memoryview
    """(item, number of items begun, number of jobs begun), written by the worker."""
    jobs: deque[WorkerJob] = field(default_factory=deque)
    num_answered: int = 0
    num_jobs_answered: int = 0
    marks: tuple[int, float, float] | None = None
    """(items begun, CPU clock, wall clock) when the current item was first seen."""

    def has_room(self, job: WorkerJob, max_jobs: int) -> bool:
        if self.jobs and (job.is_alone or self.jobs[0].is_alone):
            return False
        return len(self.jobs) < max_jobs and self.num_answered < MAX_ITEMS_PER_WORKER

    def pop_blamed(self) -> tuple[WorkerJob, int] | None:
        """Remove and return the current job with the current item; None if it has begun none that it holds."""
        index = self.note[2] - self.num_jobs_answered - 1
        if not 0 <= index < len(self.jobs):
            return None
        job = self.jobs[index]
        del self.jobs[index]
        # The note is within the job, unless the function overwrote it.
        return job, min(max(self.note[0], job.first), job.end - 1)


class Supervisor:
    def __init__(
        self, owner: Channel, function: Callable[[Any, Any], Any], num_workers: int, limits: Limits, owner_pid: int
    ) -> None:
        self._owner = owner
        self._owner_pid = owner_pid
        self._function = function
        self._limits = limits
        self._queue: deque[WorkerJob] = deque()
        self._workers: list[Worker] = []
        self._num_idle_deaths = 0
        self._next_check = 0.0
        for _ in range(num_workers):
            self._fork()

    def run(self) -> None:
        while not self._owner.is_closed and os.getppid() == self._owner_pid:
            is_busy = any(worker.jobs for worker in self._workers)
            workers = {worker.channel: worker for worker in self._workers}
            for channel in wait_for([self._owner, *workers], CHECK_SECONDS if is_busy else 1.0):
                channel.flush()
                if channel is self._owner:
                    for frame in channel.receive():
                        number, num_items = JOB.unpack_from(frame)
                        self._queue.append(WorkerJob(number, 0, num_items, frame[JOB.size :]))
                else:
                    self._serve_worker(workers[channel])
            if is_busy and time.monotonic() >= self._next_check:
                self._next_check = time.monotonic() + CHECK_SECONDS
                for worker in list(self._workers):
                    self._check_limits(worker)
            self._deal()
            self._owner.flush()
        for worker in self._workers:
            _kill(worker.pid)

    def _serve_worker(self, worker: Worker) -> None:
        try:
            for frame in worker.channel.receive():
                self._take(worker, frame)
        except BadFrame:  # the function wrote to the connection
            if not worker.jobs or worker.jobs[0].is_alone:
                self._replace(worker, Outcome.DIED)
            else:
                self._try_one_by_one(worker)
            return
        if worker.channel.is_closed:
            self._replace(worker, Outcome.DIED)
        elif worker.num_answered >= MAX_ITEMS_PER_WORKER and not worker.jobs:
            self._replace(worker, None)

    def _take(self, worker: Worker, frame: bytes) -> None:
        """Forward results after checking that they belong to the current job."""
        job = worker.jobs[0] if worker.jobs else None
        if job is None or frame[: SHARE.size] != SHARE.pack(job.number, job.first, job.end):
            raise BadFrame("results that nobody asked for")
        count = job.end - job.first
        if len(frame) < SHARE.size + count * ENDING.size:
            raise BadFrame("results without endings")
        self._owner.put(frame)
        worker.num_answered += count
        worker.num_jobs_answered += 1
        self._num_idle_deaths = 0
        worker.jobs.popleft()

    def _try_one_by_one(self, worker: Worker) -> None:
        """Repeat each item alone, to find out which one wrote to the connection."""
        worker.jobs = deque(
            WorkerJob(job.number, item, item + 1, job.payload, is_alone=True)
            for job in worker.jobs
            for item in range(job.first, job.end)
        )
        self._replace(worker, None)

    def _check_limits(self, worker: Worker) -> None:
        if not worker.jobs:
            worker.marks = None
            return
        # The number of a process's CPU clock is made from the process's number; see clock_getcpuclockid(3).
        cpu = time.clock_gettime((~worker.pid << 3) | 2)
        num_begun, wall = worker.note[1], time.monotonic()
        if worker.marks is None or worker.marks[0] != num_begun:
            worker.marks = (num_begun, cpu, wall)
        cpu_used, wall_used = cpu - worker.marks[1], wall - worker.marks[2]
        if cpu_used > self._limits.seconds or wall_used > self._limits.wall_seconds:
            self._replace(worker, Outcome.TIMED_OUT, cpu_used)

    def _replace(self, worker: Worker, outcome: Outcome | None, seconds: float = 0.0) -> None:
        """Kill a worker, answer for its current item, requeue the rest, and fork another.

        Without an outcome no item is blamed, and all of them are repeated.
        """
        worker.channel.socket.close()
        self._workers.remove(worker)
        status = _kill(worker.pid)
        if outcome is not None and (blamed := worker.pop_blamed()) is not None:
            job, item = blamed
            if outcome is Outcome.DIED:
                detail = f"its process ended with {_ending(status)}"
            else:  # by the wall clock; the caller recognises too much CPU time itself
                detail = f"no answer within {self._limits.wall_seconds:g} s"
            answer = ENDING.pack(outcome, seconds) + json.dumps([detail]).encode()
            self._owner.put(SHARE.pack(job.number, item, item + 1), answer)
            for first, end in ((item + 1, job.end), (job.first, item)):
                if first < end:
                    worker.jobs.appendleft(replace(job, first=first, end=end))
        elif outcome is Outcome.DIED:
            self._num_idle_deaths += 1
            if self._num_idle_deaths > MAX_IDLE_DEATHS:
                sys.exit(f"groupwise: verifier workers end as soon as they start, with {_ending(status)}")
        self._queue.extendleft(reversed(worker.jobs))
        self._fork()

    def _deal(self) -> None:
        # Give a worker many jobs only when the queue is far longer, so that the last jobs are spread evenly.
        share = len(self._queue) // (4 * len(self._workers))
        max_jobs = min(max(share, MIN_JOBS_PER_WORKER), MAX_JOBS_PER_WORKER)
        while self._queue:
            open_workers = [worker for worker in self._workers if worker.has_room(self._queue[0], max_jobs)]
            if not open_workers:
                break
            worker = min(open_workers, key=lambda worker: len(worker.jobs))
            job = self._queue.popleft()
            worker.jobs.append(job)
            worker.channel.put(SHARE.pack(job.number, job.first, job.end), job.payload)
        for worker in self._workers:
            worker.channel.flush()

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        note = mmap.mmap(-1, 12)  # shared with the fork, and with nobody else
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.setsid()  # so that its children can be killed with it
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:  # it died before we could ask
                os._exit(1)
            ours.close()
            self._owner.socket.close()
            for worker in self._workers:
                worker.channel.socket.close()
            run_forked(theirs, note, self._function, self._limits)
        theirs.close()
        self._workers.append(Worker(pid, Channel(ours), memoryview(note).cast("I")))


def _kill(pid: int) -> int:
    """Kill a worker with everything that it started; return its exit status."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # killpg: not the leader of a group yet
            continue
    return os.waitpid(pid, 0)[1]


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal_name(-code)


def serve(connection: socket.socket, note: mmap.mmap, function: Callable[[Any, Any], Any], limits: Limits) -> None:
    """Serve until the supervisor closes the connection."""
    limit_memory(limits.memory_mb)
    channel = Channel(connection)
    at = memoryview(note).cast("I")
    due = 0.0
    while not channel.is_closed:
        connection.setblocking(True)  # a worker may wait; here, since the function could change it
        # Collect answers while there is more to do, so that a long queue of quick items needs few messages.
        if not select.select([connection], [], [], 0)[0]:
            channel.flush()
        for frame in channel.receive():
            job, start, end = SHARE.unpack_from(frame)
            at[0], at[1], at[2] = start, at[1] + 1, at[2] + 1
            shared, items = pickle.loads(memoryview(frame)[SHARE.size :])
            endings, values = bytearray(), []
            before = time.process_time()
            for number in range(start, end):
                at[0], at[1] = number, at[1] + 1
                outcome, value = call(function, shared, items[number])
                now = time.process_time()
                endings += ENDING.pack(outcome, now - before)
                values.append(value)
                before = now
            channel.put(SHARE.pack(job, start, end), endings, f"[{','.join(values)}]".encode())
            if time.monotonic() > due:
                channel.flush()
                due = time.monotonic() + MAX_HOLD_SECONDS


def call(function: Callable[[Any, Any], Any], shared: Any, item: Any) -> tuple[Outcome, str]:
    """Return the outcome of an item, and its value or the reason as JSON."""
    try:
        value = json.dumps(function(shared, item))
    except BaseException as error:  # noqa: BLE001 - foreign code, and SystemExit must not end the worker either
        return Outcome.RAISED, json.dumps(f"{type(error).__name__}: {_text_of(error)}"[:MAX_DETAIL_CHARS])
    if len(value) > MAX_VALUE_CHARS:
        return Outcome.RAISED, f'"returned {len(value)} characters of JSON; the maximum is {MAX_VALUE_CHARS}"'
    return Outcome.DONE, value


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the exception's own __str__ is foreign code too
        return "(its message cannot be read)"


def limit_memory(memory_mb: int) -> None:
    """Cap the address space at what it is now plus `memory_mb`: imported libraries do not count against the item."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + memory_mb * 2**20
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def run_forked(connection: socket.socket, note: mmap.mmap, function: Callable[[Any, Any], Any], limits: Limits) -> None:
    """Serve, then end the process without running the supervisor's clean-up."""
    try:
        serve(connection, note, function, limits)
    except BaseException as error:  # noqa: BLE001 - a fork must never return into the supervisor's code
        print(f"groupwise: a verifier worker ended: {type(error).__name__}: {_text_of(error)}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def main(descriptor: int) -> None:
    owner_pid = os.getppid()
    owner = Channel(socket.socket(fileno=descriptor))
    setup: list[bytes] = []
    while not setup and not owner.is_closed:
        wait_for([owner])
        setup = owner.receive()
    if not setup:
        return
    try:
        sys.path[:], num_workers, limits, function = pickle.loads(setup[0])
        function = pickle.loads(function)
    except Exception as error:  # noqa: BLE001 - this imports the caller's modules, which may raise anything
        owner.send(f"{type(error).__name__}: {error}".encode(errors="backslashreplace"))
        return
    os.dup2(2, 1)  # the function's prints must not mix with the caller's output
    gc.collect()
    gc.freeze()  # forks share these pages while nobody writes to them
    supervisor = Supervisor(owner, function, num_workers, limits, owner_pid)
    owner.send(READY)
    supervisor.run()
