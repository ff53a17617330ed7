"""Requests to stop: SIGTERM and Ctrl-C become an exception at a moment when nothing can be lost. Names of signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handling_stops(handler: Handler) -> Iterator[None]:
    """Call `handler` on SIGTERM and SIGINT. Only a main thread can; in others, signals keep their handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9. Most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class StopRequested(BaseException):
    """The run was asked to end. Whoever catches it saves and exits.

    Like KeyboardInterrupt it is not an Exception: it may be raised inside foreign code, which must not swallow it.
    """


class StopControl:
    """Inside `interruptible()` a signal ends the work at once; outside, it waits for `check()`.

    Interruptible code must not change what a checkpoint holds: sampling, scoring, evaluating.
    """

    def __init__(self, agree: Callable[[bool], bool] | None = None) -> None:
        """`agree` tells every rank whether any of them was asked to stop. With it, nothing ends at once: a rank that
        left would keep the others waiting."""
        self._agree = agree
        self._is_requested = False
        self._is_interruptible = False

    def listening(self) -> AbstractContextManager[None]:
        """Return a context in which SIGTERM and SIGINT are handled."""
        return handling_stops(self._handle)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        self.check()
        self._is_interruptible = self._agree is None
        try:
            yield
        finally:
            self._is_interruptible = False

    def check(self) -> None:
        if self._agree(self._is_requested) if self._agree else self._is_requested:
            raise StopRequested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._is_requested = True
        if self._is_interruptible:
            # Only once: a second signal while the first unwinds must not break the saving.
            self._is_interruptible = False
            raise StopRequested
