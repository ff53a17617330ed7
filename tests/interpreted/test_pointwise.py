"""Norms, rotations and gates against torch and its autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.interpreted.interpreter import INTERPRETED, runs
from tests.plain_kernels import rotate as plain_rotate

pytestmark = INTERPRETED
Fence = Callable[[Tensor], Tensor]

SIZES = [1, 64, 65, 80]


@runs("pointwise.rms_norm_kernel", "pointwise._rms_norm_backward")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [0, 1, 531])
@pytest.mark.parametrize("one_plus", [False, True])
def test_a_norm_and_its_gradient(size: int, rows: int, one_plus: bool, fenced: Fence) -> None:
    """From 529 rows on, a program sums the weight's gradient over more than one, and the last over fewer."""
    from groupwise.kernels.pointwise import rms_norm

    leaves = [fenced(torch.randn(rows, size)).requires_grad_(), fenced(torch.randn(size)).requires_grad_()]
    grad = fenced(torch.randn(rows, size))
    out = rms_norm(leaves[0], leaves[1], 1e-6, one_plus)
    plain = F.rms_norm(leaves[0], (size,), leaves[1] + one_plus, 1e-6)
    torch.testing.assert_close(out, plain)
    mine, theirs = (torch.autograd.grad(each, leaves, grad) for each in (out, plain))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-4 if size == 1 else 2e-5)


@runs("pointwise.rms_norm_kernel")
@pytest.mark.parametrize("size", SIZES)
def test_the_norm_of_a_sum(size: int, fenced: Fence) -> None:
    from groupwise.kernels.pointwise import add_norm

    x, y, weight = fenced(torch.randn(3, size)), fenced(torch.randn(3, size)), fenced(torch.randn(size))
    out, expected = fenced(torch.zeros(3, size)), x + y
    add_norm(x, y, weight, 1e-6, out)
    assert torch.equal(x, expected)
    torch.testing.assert_close(out, F.rms_norm(expected, (size,), weight, 1e-6))
    add_norm(x, None, weight, 1e-6, out)
    assert torch.equal(x, expected)
    torch.testing.assert_close(out, F.rms_norm(expected, (size,), weight, 1e-6))


@runs("pointwise.rms_norm_kernel")
@pytest.mark.parametrize(("heads", "size"), [(4, 64), (3, 80), (1, 1)])
def test_the_norm_of_heads_that_stand_apart(heads: int, size: int) -> None:
    from groupwise.kernels.pointwise import head_norm

    wide, weight = torch.randn(5, 3 * heads * size), torch.randn(size)
    x = wide[:, heads * size : 2 * heads * size].view(5, heads, size)
    torch.testing.assert_close(head_norm(x, weight, 1e-6), F.rms_norm(x, (size,), weight, 1e-6))


@runs("pointwise._rotate", "pointwise.turn")
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 16), (3, 1, 80), (1, 1, 2)])
@pytest.mark.parametrize("tokens", [1, 7])
def test_a_rotation_and_its_gradient(heads: int, kv_heads: int, size: int, tokens: int, fenced: Fence) -> None:
    """Of two sequences whose heads stand beside one another, as a projection leaves them.

    The gradient rotates back, so the halves of cos are to be the same, and those of sin.
    """
    from groupwise.kernels.pointwise import rotate

    leaves = [fenced(torch.randn(2, tokens, count, size)).requires_grad_() for count in (heads, kv_heads)]
    cos, sin = (fenced(torch.randn(2, tokens, size // 2).repeat(1, 1, 2)) for _ in range(2))
    mine = rotate(*(leaf.transpose(1, 2) for leaf in leaves), cos, sin)
    plain = [
        plain_rotate(leaf.flatten(0, 1), cos.flatten(0, 1), sin.flatten(0, 1)).view_as(leaf).transpose(1, 2)
        for leaf in leaves
    ]
    grads = [torch.randn_like(each) for each in plain]
    torch.testing.assert_close(list(mine), plain)
    torch.testing.assert_close(torch.autograd.grad(mine, leaves, grads), torch.autograd.grad(plain, leaves, grads))


@runs("pointwise._silu_mul", "pointwise._silu_mul_backward")
@pytest.mark.parametrize("count", [0, 1, 2048, 2049])
def test_a_gate_and_its_gradient(count: int, fenced: Fence) -> None:
    from groupwise.kernels.pointwise import silu_mul

    leaves = [fenced(torch.randn(count, 1) * 5).requires_grad_() for _ in range(2)]
    grad = fenced(torch.randn(count, 1))
    both = silu_mul(*leaves), F.silu(leaves[0]) * leaves[1]
    torch.testing.assert_close(*both)
    torch.testing.assert_close(*(torch.autograd.grad(each, leaves, grad) for each in both))


@runs("pointwise._silu_mul_joined")
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (2, 512), (5, 205)])
def test_a_gate_of_halves_side_by_side(rows: int, size: int, fenced: Fence) -> None:
    from groupwise.kernels.pointwise import silu_mul_joined

    joined, out = fenced(torch.randn(rows, 2 * size) * 5), fenced(torch.zeros(rows, size))
    silu_mul_joined(joined, out)
    torch.testing.assert_close(out, F.silu(joined[:, :size]) * joined[:, size:])
