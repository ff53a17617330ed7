"""The operations between the matrix products of a decoder layer in plain torch, and their backward passes: for the CPU.

The same interface as `kernels/layer_training.py`. What enters and leaves a product has the type of the weights; the
residual stream, norms, rotations and attention are in fp32, which costs little on a CPU. So of a layer in bf16 only the
products round, each row by itself: the engine and the learner get the same values whatever shares a pass with a row.

Shapes: T tokens, S hidden size, F width of the feed-forward block, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from groupwise.kernels.joined import Joined
from groupwise.kernels.plain import MIN_ROWS

Heads = tuple[Tensor, Tensor, Tensor]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the norm of [T, S], or of each head separately for [T, H, D]."""
    return _scaled(x.float(), eps)[0].mul_(weight).to(weight.dtype)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (x + y, its norm), [T, S]."""
    total = x.float() + y
    return total, norm(total, weight, eps)


def _scaled(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (x / its root mean square, 1 / its root mean square)."""
    inverse = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return x * inverse, inverse


def norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, around: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (gradient of x, the recomputed norm, gradient of the weight in fp32).

    `around` is the gradient of x through the residual path around the norm.
    """
    scaled, inverse = _scaled(x.float(), eps)
    normed = (scaled * weight).to(weight.dtype)
    slope = grad.float() * scaled
    dweight = slope.flatten(0, -2).sum(0)
    share = slope.mul_(weight).mean(-1, keepdim=True)
    dx = torch.addcmul(grad.float() * weight, scaled, share, value=-1).mul_(inverse)
    return dx if around is None else dx.add_(around), normed, dweight


def angles(embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return cos and sin [T, D] in fp32 of those of a model [1, T, D]."""
    cos, sin = (part[0].float() for part in embeddings)
    return cos, sin


def turn_heads(heads: Heads, rotary: tuple[Tensor, Tensor], out: Heads, sign: float) -> None:
    """Write query [T, H, D] and key [T, K, D], rotated by cos and sin [T, D], and value [T, K, D] to `out`.

    Sign -1 rotates back. The angles are in fp32.
    """
    half = rotary[0].shape[1] // 2
    cos, sin = rotary[0][:, None], rotary[1][:, None]
    for source, target in zip(heads[:2], out[:2], strict=True):
        x = source.float()
        turned = x * cos
        turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-sign)
        turned[..., half:].addcmul_(x[..., :half], sin[..., half:], value=sign)
        target.copy_(turned)
    out[2].copy_(heads[2])


def gate(joined: Tensor) -> Tensor:
    """Return silu(gate) × up [T, F] from gate and up side by side [T, 2 F]."""
    left, right = joined.chunk(2, dim=1)
    return F.silu(left).mul_(right)


def gate_backward(grad: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
    """Return (gradient of gate and up side by side [T, 2 F], recomputed silu(gate) × up [T, F])."""
    left, right = joined.chunk(2, dim=1)
    djoined = torch.empty_like(joined)
    dleft, dright = djoined.chunk(2, dim=1)
    active = F.silu(left)
    torch.mul(grad, active, out=dright)
    torch.ops.aten.silu_backward(grad * right, left, grad_input=dleft)
    return djoined, active.mul_(right)


def project(x: Tensor, joined: Joined) -> Tensor:
    """Return the joined layers' outputs [T, N]."""
    count = x.shape[0]
    if count < MIN_ROWS:
        x = F.pad(x, (0, 0, 0, MIN_ROWS - count))
    out = F.linear(x, joined.weight, joined.bias)
    adapter = joined.adapter
    if adapter is not None:
        low = F.linear(x, adapter.down).split(adapter.up.shape[1], dim=1)
        places = zip(out.split(joined.sizes, dim=1), low, adapter.up.split(joined.sizes), strict=True)
        for place, part, up in places:
            place.addmm_(part, up.t(), alpha=adapter.scaling)
    return out[:count]


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute total [N, M] += leftᵀ · right from left [T, N] and right [T, M]. The sum is in fp32."""
    if left.dtype == total.dtype:
        total.addmm_(left.t(), right)
    else:
        total.add_(left.t() @ right)


class PlainOps:
    """The functions of this module as one object."""

    angles = staticmethod(angles)
    norm = staticmethod(norm)
    add_norm = staticmethod(add_norm)
    norm_backward = staticmethod(norm_backward)
    turn_heads = staticmethod(turn_heads)
    gate = staticmethod(gate)
    gate_backward = staticmethod(gate_backward)
    project = staticmethod(project)
    add_product = staticmethod(add_product)

    def split_sums(self) -> AbstractContextManager[None]:
        return nullcontext()
