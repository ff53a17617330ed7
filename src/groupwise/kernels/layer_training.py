"""The operations between the matrix products of a decoder layer in training, and their backward passes.

The forward arithmetic is that of `kernels.pointwise` and `kernels.attention`. In the backward pass, what is cheap to
recompute (norms, the gated activation) is recomputed in the kernel that needs it for the gradient.

Kernels are not specialized on the number of tokens, because each new kind (odd, a multiple of 16) would be compiled.

Shapes: T tokens, S hidden size, F width of the feed-forward block, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.kernels.joined import Joined
from groupwise.kernels.pointwise import EXACT, norm_warps, rms_norm_kernel, silu_mul_joined, turn
from groupwise.kernels.products import apply_joined, padded_rows, split_sums

NORM_PROGRAMS = 528
"""Programs that each sum part of a norm's weight gradient: four per processor of an H200."""


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the norm of [T, S], or of each head separately for [T, H, D]."""
    size = x.shape[-1]
    x = x.contiguous()
    out = torch.empty_like(x)
    padded = triton.next_power_of_2(size)
    rms_norm_kernel[(x.numel() // size,)](
        x, x, weight, x, out, size, eps, 1, size,
        HAS_SUM=False, ONE_PLUS=False, N=padded, num_warps=norm_warps(padded), **EXACT,
    )  # fmt: skip
    return out


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (x + y, its norm), [T, S]."""
    tokens, size = x.shape
    total, out = torch.empty_like(x), torch.empty_like(x)
    padded = triton.next_power_of_2(size)
    rms_norm_kernel[(tokens,)](
        x, y, weight, total, out, size, eps, 1, size,
        HAS_SUM=True, ONE_PLUS=False, N=padded, num_warps=norm_warps(padded), **EXACT,
    )  # fmt: skip
    return total, out


@triton.jit(do_not_specialize=["rows", "per_program"])
def _norm_backward(
    grad_ptr, x_ptr, w_ptr, around_ptr, dx_ptr, out_ptr, dw_ptr, rows, size, eps, per_program,
    HAS_AROUND: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    n = tl.arange(0, N)
    mask = n < size
    w = tl.load(w_ptr + n, mask=mask, other=0.0)
    wide_w = w.to(tl.float32)
    dw = tl.zeros((N,), tl.float32)
    for index in range(per_program):
        row = (program * per_program + index).to(tl.int64)
        live = mask & (row < rows)
        place = row * size + n
        x = tl.load(x_ptr + place, mask=live, other=0.0)
        grad = tl.load(grad_ptr + place, mask=live, other=0.0).to(tl.float32)
        wide = x.to(tl.float32)
        inverse = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
        scaled = wide * inverse
        inner = grad * wide_w
        dx = inverse * (inner - scaled * (tl.sum(inner * scaled, 0) / size))
        if HAS_AROUND:
            dx += tl.load(around_ptr + place, mask=live, other=0.0).to(tl.float32)
        dw += grad * scaled
        tl.store(dx_ptr + place, dx.to(x.dtype), mask=live)
        tl.store(out_ptr + place, scaled.to(x.dtype) * w, mask=live)
    tl.store(dw_ptr + program * size + n, dw, mask=mask)


def norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, around: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (gradient of x, the recomputed norm, gradient of the weight in fp32).

    `around` is the gradient of x through the residual path around the norm.
    """
    x, size = x.contiguous(), x.shape[-1]
    rows = x.numel() // size
    per_program = max(1, triton.cdiv(rows, NORM_PROGRAMS))
    programs = triton.cdiv(rows, per_program)
    dx, out = torch.empty_like(x), torch.empty_like(x)
    parts = torch.empty(programs, size, device=x.device, dtype=torch.float32)
    padded = triton.next_power_of_2(size)
    _norm_backward[(programs,)](
        grad.contiguous(), x, weight, x if around is None else around, dx, out, parts, rows, size, eps, per_program,
        HAS_AROUND=around is not None, N=padded, num_warps=norm_warps(padded), **EXACT,
    )  # fmt: skip
    return dx, out, parts.sum(0)


@triton.jit(do_not_specialize=["num_tokens"])
def _turn_heads(
    q_in, k_in, v_in, cos_ptr, sin_ptr, q_out, k_out, v_out, num_tokens, sign,
    q_from, k_from, v_from, q_to, k_to, v_to,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Process some tokens of one head: rotate queries and keys, copy values. `_from` and `_to` are row strides."""
    token, head = tl.program_id(0) * N + tl.arange(0, N), tl.program_id(1)
    h = tl.arange(0, HALF)
    mask = (token[:, None] < num_tokens) & (h[None, :] < D // 2)
    token = token.to(tl.int64)[:, None]
    if head >= H + K:
        source = v_in + token * v_from + (head - H - K) * D + h[None, :]
        target = v_out + token * v_to + (head - H - K) * D + h[None, :]
        tl.store(target, tl.load(source, mask=mask, other=0.0), mask=mask)
        tl.store(target + D // 2, tl.load(source + D // 2, mask=mask, other=0.0), mask=mask)
    else:
        if head < H:
            source = q_in + token * q_from + head * D + h[None, :]
            target = q_out + token * q_to + head * D + h[None, :]
        else:
            source = k_in + token * k_from + (head - H) * D + h[None, :]
            target = k_out + token * k_to + (head - H) * D + h[None, :]
        angle = token * D + h[None, :]
        first = tl.load(source, mask=mask, other=0.0)
        second = tl.load(source + D // 2, mask=mask, other=0.0)
        dtype = first.dtype
        c1 = tl.load(cos_ptr + angle, mask=mask, other=0.0)
        c2 = tl.load(cos_ptr + angle + D // 2, mask=mask, other=0.0)
        s1 = (tl.load(sin_ptr + angle, mask=mask, other=0.0).to(tl.float32) * sign).to(dtype)
        s2 = (tl.load(sin_ptr + angle + D // 2, mask=mask, other=0.0).to(tl.float32) * sign).to(dtype)
        tl.store(target, turn(first, -second, c1, s1).to(dtype), mask=mask)
        tl.store(target + D // 2, turn(second, first, c2, s2).to(dtype), mask=mask)


def angles(embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return cos and sin [T, D] of those of a model [1, T, D]."""
    cos, sin = (part[0].contiguous() for part in embeddings)
    return cos, sin


def turn_heads(
    heads: tuple[Tensor, Tensor, Tensor], rotary: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor, Tensor], sign: float
) -> None:
    """Write query [T, H, D] and key [T, K, D], rotated by cos and sin [T, D], and value [T, K, D] to `out`.

    Tokens may be strided. Sign -1 rotates back, which is the transpose of a rotation.
    """
    query, key, _ = heads
    tokens, num_heads, size = query.shape
    kv_heads = key.shape[1]
    _turn_heads[(triton.cdiv(tokens, 16), num_heads + 2 * kv_heads)](
        *heads, *rotary, *out, tokens, sign, *(part.stride(0) for part in (*heads, *out)),
        H=num_heads, K=kv_heads, D=size, HALF=triton.next_power_of_2(size // 2), N=16, num_warps=2, **EXACT,
    )  # fmt: skip


@triton.jit
def _gate_backward(grad_ptr, joined_ptr, djoined_ptr, out_ptr, count, size, N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    mask = n < count
    place = n // size * 2 * size + n % size
    grad = tl.load(grad_ptr + n, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(joined_ptr + place, mask=mask, other=0.0)
    up = tl.load(joined_ptr + place + size, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    sigmoid = 1 / (1 + tl.exp(-wide))
    active = wide * sigmoid
    dtype = gate.dtype
    tl.store(out_ptr + n, active.to(dtype) * up, mask=mask)
    tl.store(djoined_ptr + place + size, (grad * active).to(dtype), mask=mask)
    slope = sigmoid * (1 + wide * (1 - sigmoid))
    tl.store(djoined_ptr + place, (grad * up.to(tl.float32) * slope).to(dtype), mask=mask)


def gate_backward(grad: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
    """Return (gradient of gate and up side by side [T, 2 F], recomputed silu(gate) × up [T, F])."""
    djoined, out = torch.empty_like(joined), torch.empty_like(grad)
    count = grad.numel()
    _gate_backward[(triton.cdiv(count, 1024),)](grad, joined, djoined, out, count, grad.shape[1], N=1024, num_warps=4)
    return djoined, out


def gate(joined: Tensor) -> Tensor:
    """Return silu(gate) × up [T, F] from gate and up side by side [T, 2 F]."""
    out = torch.empty(joined.shape[0], joined.shape[1] // 2, device=joined.device, dtype=joined.dtype)
    silu_mul_joined(joined, out)
    return out


def project(x: Tensor, joined: Joined) -> Tensor:
    """Return the joined layers' outputs [T, N]."""
    count = x.shape[0]
    rows = padded_rows(count, joined.weight)
    if rows > count:
        x = torch.nn.functional.pad(x, (0, 0, 0, rows - count))
    out = torch.empty(rows, joined.weight.shape[0], device=x.device, dtype=x.dtype)
    apply_joined(x, joined, out)
    return out[:count]


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute total [N, M] += leftᵀ · right from left [T, N] and right [T, M], in fp32 throughout."""
    torch.addmm(total, left.t(), right, out_dtype=torch.float32, out=total)


class TritonOps:
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
    split_sums = staticmethod(split_sums)
