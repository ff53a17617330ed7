"""Waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until a condition holds, at most for `seconds`; return whether it does."""
    deadline = time.monotonic() + seconds
    while not (is_true := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true
