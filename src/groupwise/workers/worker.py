"""The process that runs the function: reads a job, notes the current item, and sends the answers together.

The note is in memory shared with the supervisor, so that it knows the item of a dead or hung worker. Unsent answers are
lost with the worker, and another one repeats their items.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import resource
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from groupwise.workers.messages import ENDING, LENGTH, MAX_VALUE_CHARS, SHARE, Limits, Outcome

MAX_DETAIL_CHARS = 2000
MAX_HOLD_SECONDS = 0.005
"""How long answers may wait for more."""


def serve(connection: socket.socket, note: mmap.mmap, function: Callable[[Any, Any], Any], limits: Limits) -> None:
    """Serve until the supervisor closes the connection."""
    limit_memory(limits.memory_mb)
    reader = _Reader(connection)
    at = memoryview(note).cast("I")
    results, sent = bytearray(), time.monotonic()
    while True:
        # Collect answers while there is more to do, so that a long queue of quick items needs few messages.
        is_late = time.monotonic() - sent > MAX_HOLD_SECONDS
        if results and (is_late or not reader.has_input()):
            connection.sendall(results)
            results.clear()
            sent = time.monotonic()
        frame = reader.read()
        if frame is None:
            return
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
        body = SHARE.pack(job, start, end) + endings + f"[{','.join(values)}]".encode()
        results += LENGTH.pack(len(body)) + body


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


class _Reader:
    """Frames from a blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def has_input(self) -> bool:
        """Return whether the next frame has begun to arrive."""
        return bool(self._buffer) or bool(select.select([self._connection], [], [], 0)[0])

    def read(self) -> bytes | None:
        """Return the next frame; None when the supervisor has closed the connection."""
        if not self._fill(LENGTH.size):
            return None
        end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
        if not self._fill(end):
            return None
        frame = bytes(self._buffer[LENGTH.size : end])
        del self._buffer[:end]
        return frame

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            data = self._connection.recv(1 << 18)
            if not data:
                return False
            self._buffer += data
        return True


def run_forked(connection: socket.socket, note: mmap.mmap, function: Callable[[Any, Any], Any], limits: Limits) -> None:
    """Serve, then end the process without running the supervisor's clean-up."""
    try:
        serve(connection, note, function, limits)
    except BaseException as error:  # noqa: BLE001 - a fork must never return into the supervisor's code
        print(f"groupwise: a verifier worker ended: {type(error).__name__}: {_text_of(error)}", file=sys.stderr)
        os._exit(1)
    os._exit(0)
