"""The program's own process: lock it down, then run the program.

Contract: `become_program` is called in a process just forked from the zygote and never returns. A failure before
`is_ready` is set to 1 is ours; everything after that is the program's.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import math
import os
import random
import resource
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from typing import NoReturn, TextIO

from groupwise.sandbox import kernel
from groupwise.sandbox.wire import CHANNEL_DESCRIPTOR, EXIT_MEMORY

MAX_DESCRIPTORS = 256
"""Maximum descriptors of the zygote. A program has fewer."""
_PROGRAM_DESCRIPTORS = 64
_STACK_BYTES = 64 << 20
FILE_NAME = "main.py"


@dataclass(frozen=True, slots=True)
class Lockdown:
    """What every program of a zygote shares."""

    zygote: int
    """Its process number, to detect that it has died."""
    base_bytes: int
    """Address space of the bare interpreter; the program's memory comes on top."""
    filter: bytes
    """Seccomp filter; empty only without isolation on a machine that has none."""


def become_program(lockdown: Lockdown, descriptors: list[int], seconds: float, memory: int, is_ready: mmap) -> NoReturn:
    """Run the program's process from fork to end."""
    status = 1
    try:
        try:
            source, streams = _prepare(lockdown, descriptors, seconds, memory)
        except BaseException as error:  # noqa: BLE001 -- reported to the owner as our failure
            os.write(2, f"{type(error).__name__}: {error}".encode())
            os._exit(status)
        is_ready[0] = 1
        is_ready.close()
        status = _run(source, streams)
    finally:
        # Skip the interpreter's shutdown, which takes longer than most programs.
        os._exit(status)


def _prepare(lockdown: Lockdown, descriptors: list[int], seconds: float, memory: int) -> tuple[str, tuple[TextIO, ...]]:
    """Return the source and the output streams."""
    kernel.die_with_parent()
    if os.getppid() != lockdown.zygote:
        os._exit(1)
    os.setsid()
    source = _take_descriptors(descriptors)
    streams = _make_streams()
    # The same state for every program, whatever ran before.
    sys.argv = [FILE_NAME]
    sys.orig_argv = [FILE_NAME]
    random.seed(0)
    _limit(seconds, memory, lockdown.base_bytes)
    if lockdown.filter:
        kernel.install_filter(lockdown.filter)
    return source, streams


def _take_descriptors(descriptors: list[int]) -> str:
    """Move stdin, stdout, stderr and the optional channel into place, close the rest, and return the source."""
    with open(descriptors[0], "rb") as file:
        source = file.read()
    for target, descriptor in enumerate(descriptors[1:]):
        os.dup2(descriptor, target)
    has_channel = len(descriptors) == CHANNEL_DESCRIPTOR + 2
    os.closerange(CHANNEL_DESCRIPTOR + has_channel, MAX_DESCRIPTORS)
    return source.decode("utf-8", "surrogatepass")


def _make_streams() -> tuple[TextIO, TextIO]:
    """Open stdin, stdout and stderr as Python does in UTF-8 mode when they are redirected; return the last two."""
    stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = stdout  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = stderr  # type: ignore[misc]
    return stdout, stderr


def _limit(seconds: float, memory: int, base_bytes: int) -> None:
    needed = base_bytes + memory
    available = resource.getrlimit(resource.RLIMIT_AS)[1]
    if available != resource.RLIM_INFINITY and available < needed:
        # A program that ran out of the owner's memory would be judged wrong.
        raise ValueError(
            f"RLIMIT_AS of the owner = {available} bytes: a program with {memory >> 20} MiB needs {needed}; "
            "raise the owner's hard limit or lower Limits.memory_mb"
        )
    for kind, limit in (
        (resource.RLIMIT_CPU, math.ceil(seconds) + 1),  # a fallback: the zygote kills it at exactly `seconds`
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, _PROGRAM_DESCRIPTORS),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_STACK, min(_STACK_BYTES, memory)),
        (resource.RLIMIT_AS, needed),
    ):
        hard = resource.getrlimit(kind)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _run(source: str, streams: tuple[TextIO, ...]) -> int:
    """Run the source as `__main__` and return Python's exit code."""
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    try:
        exec(compile(source, FILE_NAME, "exec", dont_inherit=True), vars(main))
        status = 0
    except SystemExit as error:
        status = _exit_code(error)
    except BaseException as error:  # noqa: BLE001 -- whatever the program raises
        status = EXIT_MEMORY if isinstance(error, MemoryError) else 1
        _quietly(_show, error)
    # As the interpreter does at its end: exit functions, the streams that the program may have put in place of ours,
    # the globals, whose open files flush, and our streams.
    ends = (atexit._run_exitfuncs, lambda: sys.stdout.flush(), lambda: sys.stderr.flush(), vars(main).clear)
    for step in (*ends, *(stream.flush for stream in streams)):
        _quietly(step)
    return status


def _exit_code(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _quietly(print, code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _quietly(step: Callable[..., object], *arguments: object, **options: object) -> None:
    """Run a step that the program may have replaced or that may lack memory; it must not prevent our exit."""
    with contextlib.suppress(BaseException):
        step(*arguments, **options)
