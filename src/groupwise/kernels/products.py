"""Matrix products for few rows, where the library's are slow or another operation can be fused at their end.

Each output is one sum over K in order, 16 products at a time, as in the library's kernels when K is not split. All of
them give the same bits, so the choice between them only affects speed.

Shapes: M rows, K inputs, N outputs; x [M, K], weights [N, K].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.kernels.joined import Joined
from groupwise.kernels.pointwise import EXACT

FEW_ROWS, FEW_ROWS_SMALL, SMALL = 64, 128, 1 << 21
"""Our kernels run up to this many rows, or up to FEW_ROWS_SMALL for a small weight; else the library's."""
FEW_OUTPUTS = 256
"""Up to this many outputs (the down matrix of an adapter), our kernels run for any number of rows."""
LONG_SUM, MIN_ROWS = 4096, 160
"""For a sum this long and fewer rows, the library, which may not split the sum, picks a kernel that is ten times
slower. So rows are padded. The bits of the real rows are the same."""


@triton.jit(do_not_specialize=["M"])
def _product(
    x_ptr, w_ptr, bias_ptr, out_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    x_place = x_ptr + m[:, None] * K + k[None, :]
    w_place = w_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = tl.load(x_place + start, mask=m[:, None] < M, other=0.0)
        w = tl.load(w_place + start, mask=n[:, None] < N, other=0.0)
        acc = tl.dot(x, tl.trans(w), acc)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out_ptr + m[:, None] * N + n[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gated(x_ptr, gate_ptr, up_ptr, out_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    x_place = x_ptr + m[:, None] * K + k[None, :]
    w_place = n.to(tl.int64)[:, None] * K + k[None, :]
    gate_acc = tl.zeros((BM, BN), tl.float32)
    up_acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = tl.load(x_place + start, mask=m[:, None] < M, other=0.0)
        gate_w = tl.load(gate_ptr + w_place + start, mask=n[:, None] < N, other=0.0)
        up_w = tl.load(up_ptr + w_place + start, mask=n[:, None] < N, other=0.0)
        gate_acc = tl.dot(x, tl.trans(gate_w), gate_acc)
        up_acc = tl.dot(x, tl.trans(up_w), up_acc)
    # Rounded where the separate steps round.
    dtype = out_ptr.dtype.element_ty
    wide = gate_acc.to(dtype).to(tl.float32)
    active = (wide / (1 + tl.exp(-wide))).to(dtype)
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out_ptr + m[:, None] * N + n[None, :], active * up_acc.to(dtype), mask=mask)


@triton.jit(do_not_specialize=["M"])
def _adapt(
    t_ptr, up_ptr, out_ptr, scaling, M, N, end_1, end_2, t_stride,
    R: tl.constexpr, RP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Add adapters to one tile of outputs, which belongs to one layer and its part of t."""
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    r = tl.arange(0, RP)
    first = tl.program_id(0) * BN
    part = (first >= end_1).to(tl.int32) + (first >= end_2).to(tl.int32)
    t_mask = (m[:, None] < M) & (r[None, :] < R)
    t = tl.load(t_ptr + m[:, None] * t_stride + part * R + r[None, :], mask=t_mask, other=0.0)
    up = tl.load(up_ptr + n[:, None] * R + r[None, :], mask=(n[:, None] < N) & (r[None, :] < R), other=0.0)
    # Rounded where peft rounds: after the product, after the scaling, after the sum.
    dtype = out_ptr.dtype.element_ty
    change = (tl.dot(t, tl.trans(up)).to(dtype).to(tl.float32) * scaling).to(dtype)
    place = out_ptr + m[:, None].to(tl.int64) * N + n[None, :]
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(place, tl.load(place, mask=mask, other=0.0) + change, mask=mask)


@cache
def _shared_bytes(device: int) -> int:
    return int(triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"])


def _stages(tile_bytes: int, most: int, device: torch.device) -> int:
    """Return how many tiles can be in flight at once."""
    room = _shared_bytes(device.index or 0) * 0.9
    return max(2, min(most, int(room // tile_bytes)))


def _step(inputs: int) -> int:
    return next(step for step in (128, 64, 32, 16) if inputs % step == 0)


def is_ours(rows: int, weight: Tensor) -> bool:
    """Whether our kernels run a product of this size."""
    few = FEW_ROWS_SMALL if weight.numel() < SMALL else FEW_ROWS
    return weight.shape[1] % 16 == 0 and (rows <= few or weight.shape[0] <= FEW_OUTPUTS)


def padded_rows(rows: int, weight: Tensor) -> int:
    """Return the number of rows to run for `rows`."""
    is_slow = weight.shape[1] >= LONG_SUM and not is_ours(rows, weight)
    return max(rows, MIN_ROWS) if is_slow else rows


def product(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Compute `out` [M, N] = x · weightᵀ + bias."""
    rows, inputs = x.shape
    outputs = weight.shape[0]
    if not is_ours(rows, weight):
        if bias is None:
            torch.mm(x, weight.t(), out=out)
        else:
            torch.addmm(bias, x, weight.t(), out=out)
        return
    # Narrow tiles of outputs, so every processor has a program.
    tile, step = (16, _step(inputs)) if outputs <= 4096 else (64, min(64, _step(inputs)))
    _product[(triton.cdiv(outputs, tile), triton.cdiv(rows, 64))](
        x, weight, bias, out, rows, outputs, inputs, BM=64, BN=tile, BK=step, HAS_BIAS=bias is not None,
        num_warps=4, num_stages=_stages((64 + tile) * step * 2, 6, x.device), **EXACT,
    )  # fmt: skip


def gated(x: Tensor, gate: Tensor, up: Tensor, out: Tensor) -> None:
    """Compute `out` [M, N] = silu(x · gateᵀ) × (x · upᵀ), for few rows (`is_ours`)."""
    rows, inputs = x.shape
    outputs = gate.shape[0]
    tile, step = 128 if outputs > 4096 else 16, min(64, _step(inputs))
    _gated[(triton.cdiv(outputs, tile), triton.cdiv(rows, 64))](
        x, gate, up, out, rows, outputs, inputs, BM=64, BN=tile, BK=step,
        num_warps=4, num_stages=_stages((64 + 2 * tile) * step * 2, 5, x.device), **EXACT,
    )  # fmt: skip


def apply_joined(x: Tensor, joined: Joined, out: Tensor) -> None:
    """Compute `out` [M, N]: the outputs of all layers, side by side."""
    product(x, joined.weight, joined.bias, out)
    adapter = joined.adapter
    if adapter is None:
        return
    rows, rank = x.shape[0], adapter.up.shape[1]
    t = torch.empty(rows, adapter.down.shape[0], device=x.device, dtype=x.dtype)
    product(x, adapter.down, None, t)
    ends = [sum(joined.sizes[: count + 1]) for count in range(2)]
    tile = next(size for size in (128, 64, 32, 16) if all(width % size == 0 for width in joined.sizes))
    _adapt[(triton.cdiv(out.shape[1], tile), triton.cdiv(rows, 64))](
        t, adapter.up, out, adapter.scaling, rows, out.shape[1], *ends, t.stride(0),
        R=rank, RP=max(16, triton.next_power_of_2(rank)), BM=64, BN=tile, num_warps=4, **EXACT,
    )  # fmt: skip


@contextmanager
def split_sums() -> Iterator[None]:
    """Inside, the library may split the sums of products: for gradients, which sum over all tokens."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, True)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
