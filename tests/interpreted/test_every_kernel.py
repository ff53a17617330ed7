"""Each function under `@triton.jit` is run by a test of this folder, which compares it with plain torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from tests.interpreted.interpreter import INTERPRETED, all_kernels

pytestmark = INTERPRETED


def test_every_kernel_is_run() -> None:
    assert set(named_by_tests()) == all_kernels()


def named_by_tests() -> Iterator[str]:
    """Yield what tests say that they run; conftest.py holds each to it."""
    for path in Path(__file__).parent.glob("test_*.py"):
        module = importlib.import_module(f"tests.interpreted.{path.stem}")
        for test in vars(module).values():
            for mark in getattr(test, "pytestmark", ()):
                yield from mark.args if mark.name == "runs" else ()
