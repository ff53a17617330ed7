"""Triton's interpreter: kernels run as Python on a CPU, one program after the other, each operation by NumPy.

Its bf16 is wrong (Triton 3.9), so tests are in fp32. What it cannot show is left to `tests/gpu`: what the compiler
makes of a kernel, TF32 and the order of sums within a product, rounding to bf16, programs that run at the same time.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import groupwise.kernels

if importlib.util.find_spec("triton") is None:
    _MISSING = "Triton is not installed: make test-kernels"
elif os.environ.get("TRITON_INTERPRET") != "1":
    _MISSING = "Triton would compile the kernels: make test-kernels sets TRITON_INTERPRET=1"
else:
    _MISSING = ""

INTERPRETED = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)
"""Mark of each module here. Kernels are imported within tests, because that imports Triton."""


def runs(*kernels: str) -> pytest.MarkDecorator:
    """Mark a test that runs these functions of Triton. One that it does not run fails it."""
    return pytest.mark.runs(*kernels)


def all_kernels() -> set[str]:
    """Return the names of all functions under `@triton.jit` in groupwise, as "module.function"."""
    from triton.runtime.interpreter import InterpretedFunction

    names = [f"groupwise.kernels.{found.name}" for found in pkgutil.iter_modules(groupwise.kernels.__path__)]
    functions = [value for name in names for value in vars(importlib.import_module(name)).values()]
    return {_name(each) for each in functions if isinstance(each, InterpretedFunction)}


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Yield the names of the functions that have run."""
    from triton.runtime.interpreter import InterpretedFunction

    names: set[str] = set()
    launch, call = InterpretedFunction.run, InterpretedFunction.__call__

    def recorded_launch(self: Any, *arguments: Any, **named: Any) -> Any:
        names.add(_name(self))
        return launch(self, *arguments, **named)

    def recorded_call(self: Any, *arguments: Any, **named: Any) -> Any:
        names.add(_name(self))
        return call(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", recorded_launch)
        patch.setattr(InterpretedFunction, "__call__", recorded_call)
        yield names


def _name(function: Any) -> str:
    module: str = function.fn.__module__
    return f"{module.rpartition('.')[2]}.{function.fn.__name__}"
