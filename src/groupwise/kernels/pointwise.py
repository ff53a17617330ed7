"""The operations between matrix products: norm, rotary embedding and gated activation, with their backward passes.

Each forward rounds where eager torch rounds and works row by row, so a token's result does not depend on the number of
other tokens. The engine and the trainer run the same code.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

EXACT = {"enable_fp_fusion": False}
"""For kernels whose results must agree: the compiler must not fuse a product and a sum, which would round once in some
kernels and twice in others."""

# ---- RMS norm ----


@triton.jit
def rms_norm_kernel(
    x_ptr, y_ptr, w_ptr, sum_ptr, out_ptr, size, eps, heads, x_stride,
    HAS_SUM: tl.constexpr, ONE_PLUS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Normalize one row of x, or with HAS_SUM of x + y, which is stored too.

    `heads` rows share a stride of x_stride.
    """
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, N)
    mask = n < size
    x = tl.load(x_ptr + row // heads * x_stride + row % heads * size + n, mask=mask, other=0.0)
    if HAS_SUM:
        x += tl.load(y_ptr + row * size + n, mask=mask, other=0.0)
        tl.store(sum_ptr + row * size + n, x, mask=mask)
    wide = x.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    w = tl.load(w_ptr + n, mask=mask, other=0.0)
    if ONE_PLUS:  # Gemma: all in fp32, and the weight is an offset from 1
        out = scaled * (1.0 + w.to(tl.float32))
    else:  # Llama, Qwen, Mistral: rounded before the weight
        out = scaled.to(x.dtype) * w
    tl.store(out_ptr + row * size + n, out.to(x.dtype), mask=mask)


def norm_warps(padded: int) -> int:
    """Return the number of warps. All callers use it, because the order of a sum depends on it."""
    return 4 if padded <= 2048 else 8


@triton.jit
def _rms_norm_backward(
    grad_ptr, x_ptr, w_ptr, dx_ptr, dw_ptr, rows, size, eps, per_program, ONE_PLUS: tl.constexpr, N: tl.constexpr
):
    """Process some rows; the weight's gradient is stored as one partial sum per program."""
    program = tl.program_id(0)
    n = tl.arange(0, N)
    mask = n < size
    w = tl.load(w_ptr + n, mask=mask, other=0.0).to(tl.float32)
    if ONE_PLUS:
        w += 1.0
    dw = tl.zeros((N,), tl.float32)
    for index in range(per_program):
        row = (program * per_program + index).to(tl.int64)
        live = mask & (row < rows)
        x = tl.load(x_ptr + row * size + n, mask=live, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * size + n, mask=live, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
        scaled = x * inverse
        inner = grad * w
        dx = inverse * (inner - scaled * (tl.sum(inner * scaled, 0) / size))
        dw += grad * scaled
        tl.store(dx_ptr + row * size + n, dx.to(dx_ptr.dtype.element_ty), mask=live)
    tl.store(dw_ptr + program * size + n, dw, mask=mask)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, one_plus: bool) -> Tensor:
        x = x.contiguous()
        size = x.shape[-1]
        out = torch.empty_like(x)
        padded = triton.next_power_of_2(size)
        rms_norm_kernel[(x.numel() // size,)](
            x, x, weight, x, out, size, eps, 1, size,
            HAS_SUM=False, ONE_PLUS=one_plus, N=padded, num_warps=norm_warps(padded), **EXACT,
        )  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.form = (eps, one_plus)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        eps, one_plus = ctx.form
        size = x.shape[-1]
        rows = x.numel() // size
        per_program = max(1, triton.cdiv(rows, 528))
        programs = triton.cdiv(rows, per_program)
        dx = torch.empty_like(x)
        parts = torch.empty(programs, size, device=x.device, dtype=torch.float32)
        padded = triton.next_power_of_2(size)
        _rms_norm_backward[(programs,)](
            grad.contiguous(), x, weight, dx, parts, rows, size, eps, per_program,
            ONE_PLUS=one_plus, N=padded, num_warps=norm_warps(padded), **EXACT,
        )  # fmt: skip
        return dx, parts.sum(0).to(weight.dtype), None, None


def rms_norm(x: Tensor, weight: Tensor, eps: float, one_plus: bool) -> Tensor:
    """Return the norm as in Llama, or with `one_plus` as in Gemma."""
    result: Tensor = _RmsNorm.apply(x, weight, eps, one_plus)
    return result


def add_norm(x: Tensor, y: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> None:
    """Compute x += y and `out` = norm of x, as in Llama. [T, D], for sampling: no gradient."""
    tokens, size = x.shape
    padded = triton.next_power_of_2(size)
    rms_norm_kernel[(tokens,)](
        x, x if y is None else y, weight, x, out, size, eps, 1, size,
        HAS_SUM=y is not None, ONE_PLUS=False, N=padded, num_warps=norm_warps(padded), **EXACT,
    )  # fmt: skip


def head_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the norm of each head separately: [T, H, D], whose rows may be strided. No gradient."""
    tokens, heads, size = x.shape
    out = torch.empty(tokens, heads, size, device=x.device, dtype=x.dtype)
    padded = triton.next_power_of_2(size)
    rms_norm_kernel[(tokens * heads,)](
        x, x, weight, x, out, size, eps, heads, x.stride(0),
        HAS_SUM=False, ONE_PLUS=False, N=padded, num_warps=norm_warps(padded), **EXACT,
    )  # fmt: skip
    return out


# ---- rotary embedding ----


@triton.jit
def turn(own, pair, cos, sin):
    """Return own · cos + pair · sin, each product rounded before the sum, as in eager torch."""
    return (own * cos).to(own.dtype) + (pair * sin).to(own.dtype)


@triton.jit
def _rotate(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out, k_out, num_tokens, q_b, q_h, q_t, k_b, k_h, k_t, sign,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, place = token // num_tokens, token % num_tokens
    h = tl.arange(0, HALF)
    mask = h < D // 2
    c1 = tl.load(cos_ptr + token * D + h, mask=mask, other=0.0)
    c2 = tl.load(cos_ptr + token * D + D // 2 + h, mask=mask, other=0.0)
    s1 = tl.load(sin_ptr + token * D + h, mask=mask, other=0.0)
    s2 = tl.load(sin_ptr + token * D + D // 2 + h, mask=mask, other=0.0)
    if head < H:
        source = q_ptr + batch * q_b + head * q_h + place * q_t
        target = q_out + (token * H + head) * D
    else:
        source = k_ptr + batch * k_b + (head - H) * k_h + place * k_t
        target = k_out + (token * K + head - H) * D
    first = tl.load(source + h, mask=mask, other=0.0)
    second = tl.load(source + D // 2 + h, mask=mask, other=0.0)
    dtype = first.dtype
    s1 = (s1.to(tl.float32) * sign).to(dtype)
    s2 = (s2.to(tl.float32) * sign).to(dtype)
    a = turn(first, -second, c1, s1)
    b = turn(second, first, c2, s2)
    tl.store(target + h, a.to(dtype), mask=mask)
    tl.store(target + D // 2 + h, b.to(dtype), mask=mask)


def _run_rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, sign: float) -> tuple[Tensor, Tensor]:
    batch, heads, tokens, size = query.shape
    kv_heads = key.shape[1]
    q_out = torch.empty(batch, tokens, heads, size, device=query.device, dtype=query.dtype)
    k_out = torch.empty(batch, tokens, kv_heads, size, device=query.device, dtype=query.dtype)
    _rotate[(batch * tokens, heads + kv_heads)](
        query, key, cos, sin, q_out, k_out, tokens,
        query.stride(0), query.stride(1), query.stride(2), key.stride(0), key.stride(1), key.stride(2), sign,
        H=heads, K=kv_heads, D=size, HALF=triton.next_power_of_2(size // 2), num_warps=1, **EXACT,
    )  # fmt: skip
    return q_out.transpose(1, 2), k_out.transpose(1, 2)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        return _run_rotate(query, key, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, grad_query: Tensor, grad_key: Tensor) -> tuple[Tensor, Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        # The transpose of a rotation rotates back.
        query, key = _run_rotate(_with_unit_stride(grad_query), _with_unit_stride(grad_key), cos, sin, -1.0)
        return query, key, None, None


def _with_unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate query [B, H, T, D] and key [B, K, T, D] by cos and sin [B, T, D]. The last dimension is contiguous."""
    q, k = _Rotate.apply(query, key, cos, sin)
    return q, k


# ---- SiLU gate ----


@triton.jit
def _silu_mul(gate_ptr, up_ptr, out_ptr, count, N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    mask = n < count
    gate = tl.load(gate_ptr + n, mask=mask, other=0.0)
    up = tl.load(up_ptr + n, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    active = (wide / (1 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out_ptr + n, active * up, mask=mask)


@triton.jit
def _silu_mul_joined(joined_ptr, out_ptr, count, size, N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    mask = n < count
    place = n // size * 2 * size + n % size
    gate = tl.load(joined_ptr + place, mask=mask, other=0.0)
    up = tl.load(joined_ptr + place + size, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    active = (wide / (1 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out_ptr + n, active * up, mask=mask)


def silu_mul_joined(joined: Tensor, out: Tensor) -> None:
    """Compute `out` [T, N] from gate and up side by side, [T, 2 N]. No gradient."""
    count = out.numel()
    _silu_mul_joined[(triton.cdiv(count, 1024),)](joined, out, count, out.shape[1], N=1024, num_warps=4, **EXACT)


@triton.jit
def _silu_mul_backward(grad_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, count, N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    mask = n < count
    grad = tl.load(grad_ptr + n, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + n, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + n, mask=mask, other=0.0).to(tl.float32)
    sigmoid = 1 / (1 + tl.exp(-gate))
    tl.store(dup_ptr + n, (grad * gate * sigmoid).to(dup_ptr.dtype.element_ty), mask=mask)
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(dgate_ptr + n, (grad * up * slope).to(dgate_ptr.dtype.element_ty), mask=mask)


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        count = gate.numel()
        _silu_mul[(triton.cdiv(count, 2048),)](gate, up, out, count, N=2048, num_warps=4, **EXACT)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        count = gate.numel()
        _silu_mul_backward[(triton.cdiv(count, 2048),)](
            grad.contiguous(), gate, up, dgate, dup, count, N=2048, num_warps=4
        )
        return dgate, dup


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) × up."""
    result: Tensor = _SiluMul.apply(gate, up)
    return result
