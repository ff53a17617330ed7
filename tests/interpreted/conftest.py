"""What lets kernels run without a GPU, and the check that a test runs the kernels that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from tests.interpreted.interpreter import recorded


@pytest.fixture(autouse=True)
def _runs_what_it_names(request: pytest.FixtureRequest) -> Iterator[None]:
    named = {name for mark in request.node.iter_markers("runs") for name in mark.args}
    # As on a GPU, nothing is said of overflows and of what a mask throws away.
    with recorded() as names, numpy.errstate(all="ignore"):
        yield
    assert named <= names, f"these did not run: {sorted(named - names)}"


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what asks for a GPU, and the one instruction of PTX."""
    import triton.language
    from triton.runtime.interpreter import InterpreterBuilder

    from groupwise.kernels import products

    def logarithm(code: str, constraints: str, values: list[Any], **options: Any) -> Any:
        assert code.startswith("lg2.approx.f32 ")
        return triton.language.log2(values[0])

    zeros, splat = torch.zeros, InterpreterBuilder.create_splat

    def splat_of_its_type(self: Any, kind: Any, value: Any) -> Any:
        """A truth value that is spread over a tile becomes an int32 in Triton 3.9, which is refused as a mask."""
        tile = splat(self, kind, value)
        tile.data = tile.data.astype(value.data.dtype)
        return tile

    monkeypatch.setattr(InterpreterBuilder, "create_splat", splat_of_its_type)
    monkeypatch.setattr(triton.language, "inline_asm_elementwise", logarithm)
    monkeypatch.setattr(products, "_shared_bytes", lambda device: 232448)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch, "zeros", lambda *shape, pin_memory=False, **options: zeros(*shape, **options))
    torch.manual_seed(0)


@pytest.fixture
def fenced() -> Iterator[Callable[[Tensor], Tensor]]:
    """Copy a tensor into the middle of huge numbers, others for each.

    What reads beyond it computes with these, and what writes there fails the test.
    """
    fences: list[tuple[Tensor, float]] = []

    def fence(inside: Tensor) -> Tensor:
        huge = float(torch.tensor(1e30 * (1 + len(fences))))
        memory = torch.full((inside.numel() + 2 * FENCE,), huge)
        before, middle, after = memory.split([FENCE, inside.numel(), FENCE])
        fences.extend(((before, huge), (after, huge)))
        middle.copy_(inside.detach().flatten())
        return middle.view(inside.shape)

    yield fence
    assert all((fence == huge).all() for fence, huge in fences), "written out of bounds"


FENCE = 8192
