"""The caller's end of the pool."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import cloudpickle

from groupwise.workers.messages import ENDING, JOB, READY, SHARE, Answer, Channel, Limits, Outcome, wait_for

ITEMS_PER_JOB = 8
START_SECONDS = 180.0
"""Time to import the function's modules: your own task may import torch."""
MAX_RESTARTS = 3
"""Number of supervisors that may die without an answer in between before the pool gives up."""
MIN_USUAL, MAX_USUAL = 2, 16
_PACKAGES = str(Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from groupwise.workers.supervisor import main; main(int(sys.argv[2]))"
)


class PoolFailed(RuntimeError):
    """The pool could not start, or its supervisor kept dying."""


class Pool(Protocol):
    """The interface of a pool, wherever its processes run."""

    def start(self) -> None: ...

    def submit(self, shared: Any, items: Sequence[Any]) -> tuple[int, ...]: ...

    def answers(self, ticket: tuple[int, ...]) -> list[Answer]: ...

    def close(self) -> None: ...


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_workers(cores: float, num_callers: int) -> int:
    """Return the default number of workers per caller: half of the cores, shared by the callers."""
    return min(MAX_USUAL, max(MIN_USUAL, int(cores / 2 / num_callers)))


def pickled(function: Callable[[Any, Any], Any]) -> bytes:
    try:
        # By value what cannot be imported: functions of a notebook or a script.
        return cloudpickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PoolFailed(f"{function!r:.200} cannot be sent to another process: {error}") from error


def job_items(items: Sequence[Any]) -> Iterator[list[Any]]:
    """Split items into jobs."""
    return (list(items[first : first + ITEMS_PER_JOB]) for first in range(0, len(items), ITEMS_PER_JOB))


class WorkerPool:
    """A pool that runs `function(shared, item)` in worker processes. Calls from several threads wait for each other.

        with WorkerPool(function, num_workers=2) as pool:
            ticket = pool.submit(shared, items)      # returns at once
            answers = pool.answers(ticket)           # waits; one `Answer` per item, in order

    The function must be picklable. Functions of a script or a notebook are sent by value (cloudpickle).
    """

    def __init__(self, function: Callable[[Any, Any], Any], num_workers: int, limits: Limits | None = None) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers = {num_workers}: must be at least 1")
        self._function = pickled(function)
        self._num_workers = num_workers
        self._limits = limits or Limits()
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._next_job = 0
        self._num_restarts = 0
        self._waiting: dict[int, tuple[list[Answer | None], bytes]] = {}
        """Incomplete jobs, with the payload to send again if the supervisor dies."""
        self._done: dict[int, list[Answer | None]] = {}

    def submit(self, shared: Any, items: Sequence[Any]) -> tuple[int, ...]:
        """Start work on `items`; the ticket is for `answers`. `shared` is sent once per job, not per item."""
        with self._lock, self._consistent():
            self.start()
            ticket = []
            for batch in job_items(items):
                number, self._next_job = self._next_job, (self._next_job + 1) % 2**32
                self._waiting[number] = ([None] * len(batch), pickle.dumps((shared, batch)))
                self._send_job(number)
                ticket.append(number)
            return tuple(ticket)

    def answers(self, ticket: tuple[int, ...]) -> list[Answer]:
        """Wait for the answers to a `submit`. A ticket can be asked for once."""
        with self._lock, self._consistent():
            while any(number not in self._done for number in ticket):
                self._wait()
            return [answer for number in ticket for answer in self._done.pop(number) if answer is not None]

    def start(self) -> None:
        """Start the processes if they are not running, as `submit` does; calling it early shows errors early."""
        with self._lock:
            if self._process is not None:
                return
            ours, theirs = socket.socketpair()
            with theirs:
                # Not `-m`, which would import modules from the current folder before those of the standard library.
                command = [sys.executable, "-P", "-c", _BOOT, _PACKAGES, str(theirs.fileno())]
                # In its own session, so that Ctrl-C in a terminal reaches only the caller.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
                )
            self._channel = Channel(ours)
            self._channel.send(pickle.dumps((sys.path, self._num_workers, self._limits, self._function)))
            self._await_ready()
            for number in self._waiting:
                self._send_job(number)

    def close(self) -> None:
        """End all processes and forget unanswered items."""
        with self._lock:
            self._stop()
            self._waiting.clear()
            self._done.clear()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _await_ready(self) -> None:
        assert self._channel is not None
        deadline = time.monotonic() + START_SECONDS
        frames: list[bytes] = []
        while not frames and not self._channel.is_closed and (left := deadline - time.monotonic()) > 0:
            wait_for([self._channel], left)
            frames = self._channel.receive()
        if frames[:1] == [READY]:
            return
        self._stop()
        if frames:
            why = frames[0].decode(errors="replace")
        else:
            why = f"no answer within {START_SECONDS:g} s" if left <= 0 else "its process ended at once"
        raise PoolFailed(
            f"the verifier workers did not start: {why}. The task's class must be in a module that another Python "
            "process can import; verifier.workers = 0 scores in this process, without deadlines"
        )

    def _send_job(self, number: int) -> None:
        assert self._channel is not None
        answers, payload = self._waiting[number]
        self._channel.send(JOB.pack(number, len(answers)), payload)
        while self._channel.outgoing and not self._channel.is_closed:
            # The supervisor always reads, so this ends. It may be waiting for us to read, too.
            wait_for([self._channel])
            self._channel.flush()
            self._receive()

    def _wait(self) -> None:
        assert self._channel is not None
        wait_for([self._channel])
        self._receive()
        if self._channel.is_closed:
            self._restart()

    def _restart(self) -> None:
        self._stop()
        self._num_restarts += 1
        if self._num_restarts > MAX_RESTARTS:
            raise PoolFailed(
                f"the process that supervises the verifier workers died {self._num_restarts} times in a row; "
                "is the machine out of memory?"
            )
        self._waiting = {number: ([None] * len(old), payload) for number, (old, payload) in self._waiting.items()}
        self.start()

    def _receive(self) -> None:
        assert self._channel is not None
        for frame in self._channel.receive():
            self._num_restarts = 0
            number, first, end = SHARE.unpack_from(frame)
            answers, _ = self._waiting[number]
            answers[first:end] = read_answers(frame, end - first, self._limits)
            if None not in answers:
                self._done[number] = answers
                del self._waiting[number]

    def _stop(self) -> None:
        if self._channel is not None:
            self._channel.socket.close()  # then the supervisor kills its workers and ends
            self._channel = None
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def _consistent(self) -> Iterator[None]:
        """Start over after an interruption: a signal handler may raise in the middle of a read."""
        try:
            yield
        except BaseException:
            self.close()
            raise


def read_answers(frame: bytes, count: int, limits: Limits) -> list[Answer | None]:
    """Return the answers of a frame of results. CPU time alone decides `TIMED_OUT`, whether or not it was noticed."""
    start = SHARE.size + count * ENDING.size
    endings = list(ENDING.iter_unpack(frame[SHARE.size : start]))
    try:
        outcomes = [Outcome(code) for code, _ in endings]
        values = json.loads(frame[start:])
        if not isinstance(values, list) or len(values) != count:
            raise ValueError("not one value per item")
    except (ValueError, RecursionError) as error:  # the function itself wrote to the connection
        return [Answer(Outcome.DIED, None, f"its answer cannot be read: {error}", seconds) for _, seconds in endings]
    answers: list[Answer | None] = []
    for outcome, (_, seconds), value in zip(outcomes, endings, values, strict=True):
        if seconds > limits.seconds:
            detail = f"more than {limits.seconds:g} s of CPU time"
            answers.append(Answer(Outcome.TIMED_OUT, None, detail, seconds))
        elif outcome is Outcome.DONE:
            answers.append(Answer(outcome, value, "", seconds))
        else:
            answers.append(Answer(outcome, None, str(value), seconds))
    return answers
