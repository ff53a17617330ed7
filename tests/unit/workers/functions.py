"""What the pool is asked to run: one honest function and many bad ones, chosen by the item."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from groupwise.workers import supervisor


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


def echo(shared: Any, item: Any) -> Any:
    return [shared, item]


def misbehave(shared: Any, item: str) -> Any:
    """Do what the item says; echo what is not the name of a misdeed."""
    action = MISDEEDS.get(item)
    return [shared, item] if action is None else action()


def _spin() -> None:
    while True:
        pass


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _segfault() -> None:
    import ctypes

    ctypes.string_at(0)


def _deep() -> Any:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


def _raise(error: BaseException) -> Any:
    def action() -> None:
        raise error

    return action


def _my_sockets() -> list[socket.socket]:
    return [found for found in gc.get_objects() if isinstance(found, socket.socket) and found.fileno() >= 0]


def _close_connection() -> None:
    for connection in _my_sockets():
        os.close(connection.fileno())
    time.sleep(60)


def _write_garbage() -> None:
    for connection in _my_sockets():
        os.write(connection.fileno(), b"\xff" * 64)
    time.sleep(60)


def _forge_next() -> str:
    """Answer for an item that is not due."""
    from groupwise.workers.messages import ENDING, LENGTH, SHARE

    body = SHARE.pack(0, 7, 8) + ENDING.pack(0, 0.0) + b'["forged by an item that is not due"]'
    for connection in _my_sockets():
        os.write(connection.fileno(), LENGTH.pack(len(body)) + body)
    return "forged"


def _thread_spin() -> None:
    threading.Thread(target=_spin, daemon=True).start()
    time.sleep(60)


MISDEEDS: dict[str, Any] = {
    "spin": _spin,
    "power": lambda: 9**9**9**9,
    "sleep": lambda: time.sleep(60),
    "stop": _stop,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "signal without a name": lambda: os.kill(os.getpid(), 40),
    "segfault": _segfault,
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(0),
    "interrupt": _raise(KeyboardInterrupt()),
    "raise": _raise(ValueError("no such thing")),
    "raise badly": _raise(BadText()),
    "surrogate": _raise(ValueError("\udcff")),
    "memory": lambda: bytearray(2**32),
    "not json": lambda: {1, 2},
    "deep": _deep,
    "long": lambda: "x" * 2_000_000,
    "close connection": _close_connection,
    "write garbage": _write_garbage,
    "forge next": _forge_next,
    "thread": _thread_spin,
    "print": lambda: print("printed by a verifier"),
}


def seconds_of_cpu(shared: Any, item: float) -> float:
    """Use that much CPU time in one call that the supervisor cannot interrupt by asking."""
    start = time.process_time()
    while time.process_time() - start < item:
        pass
    return item


def die_on_multiples(shared: int, item: int) -> int:
    if item % shared == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * 3


def leave_a_child(shared: str, item: str) -> None:
    """Start a process that would outlive us, write down who it is, and hang."""
    child = subprocess.Popen(["sleep", "300"])
    Path(item).write_text(str(child.pid))
    _spin()


def pids(shared: Any, item: Any) -> list[int]:
    time.sleep(0.01)
    return [os.getpid(), os.getppid()]


class Unimportable:
    """Can be pickled here, and not unpickled anywhere else."""

    def __reduce__(self) -> Any:
        return (_refuse_elsewhere, (os.getpid(),))

    def __call__(self, shared: Any, item: Any) -> None: ...


def _refuse_elsewhere(pid: int) -> Unimportable:
    if os.getpid() != pid:
        raise ImportError("no module named 'mine'")
    return Unimportable()


def own_pid(shared: Any, item: Any) -> int:
    return os.getpid()


class Patched:
    """A function that changes the supervisor when it arrives there: to test what cannot be brought about from here."""

    def __init__(self, function: Any, patch: Any) -> None:
        self.function = function
        self.patch = patch

    def __reduce__(self) -> Any:
        return (_patch_and_make, (self.function, self.patch, os.getpid()))

    def __call__(self, shared: Any, item: Any) -> Any:
        return self.function(shared, item)


def _patch_and_make(function: Any, patch: Any, pid: int) -> Patched:
    if os.getpid() != pid:
        patch()
    return Patched(function, patch)


def never_check_limits() -> None:
    supervisor.Supervisor._check_limits = lambda *_: None  # type: ignore[method-assign]


def replace_after_100_items() -> None:
    supervisor.MAX_ITEMS_PER_WORKER = 100


def break_workers() -> None:
    def refuse(memory_mb: int) -> None:
        raise OSError("no limits here")

    supervisor.limit_memory = refuse
