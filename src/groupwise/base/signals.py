"""Being asked to stop: SIGTERM and Ctrl-C become an exception at a moment when nothing can be lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequested(BaseException):
    """The run was asked to end. Whoever catches it saves and exits.

    Like KeyboardInterrupt no Exception: it may be raised inside foreign code, which must not swallow it.
    """


class StopControl:
    """Inside `interruptible()` a signal ends the work at once; outside it is kept until `check()`.

    What is wrapped as interruptible must not change what a checkpoint holds: sampling, scoring, evaluating.
    """

    def __init__(self, agree: Callable[[bool], bool] | None = None) -> None:
        """`agree`: whether any rank was asked, asked of all of them at once. With it nothing ends at once: a rank that
        left would keep the others waiting."""
        self._agree = agree
        self._is_requested = False
        self._is_interruptible = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT. Only a main thread can; elsewhere signals stay as they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}
        for name in (signal.SIGTERM, signal.SIGINT):
            before[name] = signal.signal(name, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

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
            # Once: a second signal while the first unwinds must not break the saving.
            self._is_interruptible = False
            raise StopRequested
