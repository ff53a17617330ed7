"""The operations of a decoder layer in training against their plain form (`tests/plain_kernels.PlainOps`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.interpreted.interpreter import INTERPRETED, runs
from tests.plain_kernels import PlainOps

pytestmark = INTERPRETED
Fence = Callable[[Tensor], Tensor]

PLAIN = PlainOps()


@runs("layer_training._norm_backward", "pointwise.rms_norm_kernel")
@pytest.mark.parametrize("shape", [(0, 64), (1, 65), (531, 8), (7, 3, 80)])
@pytest.mark.parametrize("has_around", [False, True])
def test_a_norm_and_its_gradient(shape: tuple[int, ...], has_around: bool, fenced: Fence) -> None:
    from groupwise.kernels.layer_training import norm, norm_backward

    x, grad, weight = fenced(torch.randn(shape)), fenced(torch.randn(shape)), fenced(torch.randn(shape[-1]))
    around = fenced(torch.randn(shape)) if has_around else None
    torch.testing.assert_close(norm(x, weight, 1e-6), PLAIN.norm(x, weight, 1e-6))
    mine, theirs = (f(grad, x, weight, 1e-6, around) for f in (norm_backward, PLAIN.norm_backward))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=2e-5)


@runs("pointwise.rms_norm_kernel")
@pytest.mark.parametrize("size", [1, 64, 65])
def test_the_norm_of_a_sum(size: int, fenced: Fence) -> None:
    from groupwise.kernels.layer_training import add_norm

    inputs = [fenced(torch.randn(shape)) for shape in ((5, size), (5, size), (size,))]
    torch.testing.assert_close(add_norm(*inputs, 1e-6), PLAIN.add_norm(*inputs, 1e-6))


@runs("layer_training._turn_heads", "pointwise.turn")
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 16), (3, 1, 80), (1, 1, 2)])
@pytest.mark.parametrize("tokens", [1, 16, 17])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_heads_are_turned(heads: int, kv_heads: int, size: int, tokens: int, sign: float, fenced: Fence) -> None:
    """From one projection's outputs, side by side, to another place of that kind, and back."""
    from groupwise.kernels.layer_training import turn_heads

    counts = [heads, kv_heads, kv_heads]
    places = [fenced(torch.randn(tokens, sum(counts) * size)) for _ in range(2)]
    source, target = (place.view(tokens, -1, size).split(counts, dim=1) for place in places)
    rotary = fenced(torch.randn(tokens, size)), fenced(torch.randn(tokens, size))
    expected = [torch.empty(part.shape) for part in source]
    PLAIN.turn_heads(source, rotary, expected, sign)
    turn_heads(source, rotary, target, sign)
    torch.testing.assert_close(list(target), expected)


@runs("layer_training._gate_backward", "pointwise._silu_mul_joined")
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (2, 512), (5, 205)])
def test_a_gate_and_its_gradient(rows: int, size: int, fenced: Fence) -> None:
    from groupwise.kernels.layer_training import gate, gate_backward

    joined, grad = fenced(torch.randn(rows, 2 * size) * 5), fenced(torch.randn(rows, size))
    torch.testing.assert_close(gate(joined), PLAIN.gate(joined))
    torch.testing.assert_close(gate_backward(grad, joined), PLAIN.gate_backward(grad, joined))
