"""The process that runs the function: reads a job, answers its items one by one, each before the next begins.

One answer is sent before the next item begins, so the supervisor always knows which item a dead or hung worker was at.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from groupwise.workers.messages import JOB, LENGTH, MAX_RESULT_BYTES, RESULT, Limits, Outcome

MAX_DETAIL_CHARS = 2000


def serve(connection: socket.socket, function: Callable[[Any, Any], Any], limits: Limits) -> None:
    """Until the supervisor closes the connection."""
    limit_memory(limits.memory_mb)
    reader = connection.makefile("rb")
    while (frame := _read_frame(reader)) is not None:
        job, start = JOB.unpack_from(frame)
        shared, items = pickle.loads(memoryview(frame)[JOB.size :])
        for number in range(start, len(items)):
            begin = time.process_time()
            outcome, body = call(function, shared, items[number])
            result = RESULT.pack(job, number, outcome, time.process_time() - begin)
            connection.sendall(LENGTH.pack(len(result) + len(body)) + result + body)


def call(function: Callable[[Any, Any], Any], shared: Any, item: Any) -> tuple[Outcome, bytes]:
    try:
        body = json.dumps(function(shared, item)).encode()
    except BaseException as error:  # noqa: BLE001 - foreign code, and SystemExit must not end the worker either
        detail = f"{type(error).__name__}: {_text_of(error)}"
        return Outcome.RAISED, detail[:MAX_DETAIL_CHARS].encode(errors="backslashreplace")
    if len(body) > MAX_RESULT_BYTES:
        return Outcome.RAISED, f"returned {len(body)} bytes, more than the {MAX_RESULT_BYTES} allowed".encode()
    return Outcome.DONE, body


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


def _read_frame(reader: BinaryIO) -> bytes | None:
    header = reader.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(header)
    body = reader.read(length)
    return body if len(body) == length else None


def run_forked(connection: socket.socket, function: Callable[[Any, Any], Any], limits: Limits) -> None:
    """`serve`, and then end the process without running the supervisor's clean-up."""
    try:
        serve(connection, function, limits)
    except BaseException as error:  # noqa: BLE001 - a fork must never return into the supervisor's code
        print(f"groupwise: a verifier worker ended: {type(error).__name__}: {_text_of(error)}", file=sys.stderr)
        os._exit(1)
    os._exit(0)
