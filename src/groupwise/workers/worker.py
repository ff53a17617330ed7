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

from groupwise.workers.messages import ENDING, MAX_VALUE_CHARS, SHARE, Channel, Limits, Outcome

MAX_DETAIL_CHARS = 2000
MAX_HOLD_SECONDS = 0.005
"""How long answers may wait for more."""


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
