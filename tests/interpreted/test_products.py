"""Matrix products for few rows against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from groupwise.kernels.joined import Adapter, Joined
from tests.interpreted.interpreter import INTERPRETED, runs
from tests.plain_kernels import PlainOps

pytestmark = INTERPRETED
Fence = Callable[[Tensor], Tensor]

ROWS = [1, 64, 65]


@runs("products._product")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 16), (16, 48), (100, 256), (4097, 16)])
def test_products(rows: int, outputs: int, inputs: int, fenced: Fence) -> None:
    """Of one row and of more than a tile has; outputs that end within a tile, narrow or wide; sums in steps."""
    from groupwise.kernels.products import product

    x, weight, bias = (fenced(torch.randn(shape)) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
    for b in (None, bias):
        out = fenced(torch.zeros(rows, outputs))
        product(x, weight, b, out)
        torch.testing.assert_close(out, F.linear(x, weight, b), rtol=1e-5, atol=1e-4)


@runs("products._gated")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 16), (100, 80), (4097, 16)])
def test_gated_products(rows: int, outputs: int, inputs: int, fenced: Fence) -> None:
    from groupwise.kernels.products import gated

    x, gate, up = (fenced(torch.randn(shape)) for shape in ((rows, inputs), (outputs, inputs), (outputs, inputs)))
    out = fenced(torch.zeros(rows, outputs))
    gated(x, gate, up, out)
    torch.testing.assert_close(out, F.silu(F.linear(x, gate)) * F.linear(x, up), rtol=1e-5, atol=1e-4)


@runs("products._adapt", "products._product")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", [[48, 16, 16], [80, 80], [128]], ids=str)
@pytest.mark.parametrize("rank", [1, 16, 17])
def test_layers_with_adapters(rows: int, sizes: list[int], rank: int, fenced: Fence) -> None:
    from groupwise.kernels.products import apply_joined

    inputs, outputs = 32, sum(sizes)
    shapes = [(rows, inputs), (outputs, inputs), (outputs,), (len(sizes) * rank, inputs), (outputs, rank)]
    x, weight, bias, down, up = (fenced(torch.randn(shape)) for shape in shapes)
    joined = Joined(weight, bias, sizes, Adapter(down, up, 0.7), {})
    out = fenced(torch.zeros(rows, outputs))
    apply_joined(x, joined, out)
    torch.testing.assert_close(out, PlainOps().project(x, joined), rtol=1e-5, atol=2e-4)
