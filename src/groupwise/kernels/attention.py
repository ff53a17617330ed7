"""Attention over a cache of blocks. Training uses the same arithmetic over packs (kernels/packed.py), so both agree.

Shapes: T packed tokens, B rows that decode one token, H heads, K key-value heads, D head size. The cache is [blocks,
block size, K, D] for keys and for values; a row's table lists its blocks in order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.kernels.pointwise import EXACT, turn

TILE = 64
"""Keys that are read at a time."""
QUERY_TILE = 64
CHUNK = 256
"""Keys that are summed separately and then joined in order: the unit by which a sequence can be split."""
NUM_SMS = 132

LOWEST: tl.constexpr = tl.constexpr(-1e30)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def scores(q, k, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Return attention scores as logarithms to base 2."""
    x = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if HAS_SOFTCAP:
        x = softcap * (2 / (1 + tl.exp(-2 * x / softcap)) - 1)
    return x * LOG2_E


@triton.jit
def absorb(x, v, peak, total, acc):
    """Add one tile. The running peak is an integer, so all rescaling is by powers of two, which is exact.

    Probabilities are rounded to the values' type before the product. With exact rescaling they round the same way
    whatever the peak was at their tile. Their sum is a product with ones, because `tl.sum` adds in an order that
    depends on the shape of the tile and would differ between a decoding row and a pack.
    """
    new_peak = tl.maximum(peak, tl.ceil(tl.max(x, 1)))
    p = tl.where(x > LOWEST / 2, tl.exp2(x - new_peak[:, None]), 0.0).to(v.dtype)
    shrink = tl.exp2(peak - new_peak)
    ones = tl.full((x.shape[1], 16), 1.0, v.dtype)
    total = total * shrink + tl.max(tl.dot(p, ones, input_precision="ieee"), 1)
    acc = acc * shrink[:, None] + tl.dot(p, v, input_precision="ieee")
    return new_peak, total, acc


@triton.jit
def join_sums(peak, total, acc, peak_2, total_2, acc_2):
    """Join two chunks. Chunks are always joined in order, so a split sequence gives the same bits as a whole one."""
    new_peak = tl.maximum(peak, peak_2)
    shrink, shrink_2 = tl.exp2(peak - new_peak), tl.exp2(peak_2 - new_peak)
    total = total * shrink + total_2 * shrink_2
    acc = acc * shrink[:, None] + acc_2 * shrink_2[:, None]
    return new_peak, total, acc


@triton.jit
def _rotated(ptr, offset, d, cos, sin, mask, D: tl.constexpr):
    """Load heads at `offset` + d and rotate them by the rotary embedding."""
    own = tl.load(ptr + offset + d, mask=mask, other=0.0)
    pair = tl.load(ptr + offset + (d + D // 2) % D, mask=mask, other=0.0)
    return turn(own, tl.where(d < D // 2, -pair, pair), cos, sin)


@triton.jit
def _decode_attention(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, k_cache, v_cache, slot_ptr, table_ptr, position_ptr, is_done_ptr,
    out_ptr, acc_ptr, peak_ptr, total_ptr, scale, softcap, window, table_stride, q_stride, k_stride, v_stride,
    BLOCK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, GP: tl.constexpr,
    CHUNKS: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_ROTARY: tl.constexpr,
):  # fmt: skip
    """Process one row and one key-value head with its G query heads: all chunks of the sequence, or one of CHUNKS.

    The program that reads the newest token also stores its key and value in the cache. A finished row reads nothing.
    """
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    G: tl.constexpr = H // K
    slot = tl.load(slot_ptr + row)
    position = tl.load(position_ptr + slot).to(tl.int32)
    position = tl.where(tl.load(is_done_ptr + slot) == 0, position, -1)
    g, d, t = tl.arange(0, GP), tl.arange(0, DP), tl.arange(0, TILE)
    is_head, is_dim = g < G, d < D
    q_offset = row * q_stride + (head * G + g[:, None]) * D
    q_mask = is_head[:, None] & is_dim[None, :]
    if HAS_ROTARY:
        seen = is_dim & (position >= 0)
        cos = tl.load(cos_ptr + position * D + d, mask=seen, other=0.0)
        sin = tl.load(sin_ptr + position * D + d, mask=seen, other=0.0)
        q = _rotated(q_ptr, q_offset, d[None, :], cos[None, :], sin[None, :], q_mask, D)
    else:
        q = tl.load(q_ptr + q_offset + d[None, :], mask=q_mask, other=0.0)
    first = tl.maximum(0, position + 1 - window)
    low_chunk, end_chunk = first // CHUNK, tl.cdiv(position + 1, CHUNK)
    if CHUNKS > 1:
        low_chunk, end_chunk = tl.maximum(low_chunk, split), tl.minimum(end_chunk, split + 1)
    table = table_ptr + slot * table_stride
    if (end_chunk * CHUNK > position) & (low_chunk < end_chunk):
        if HAS_ROTARY:
            k_new = _rotated(k_ptr, row * k_stride + head * D, d, cos, sin, is_dim, D)
        else:
            k_new = tl.load(k_ptr + row * k_stride + head * D + d, mask=is_dim, other=0.0)
        v_new = tl.load(v_ptr + row * v_stride + head * D + d, mask=is_dim, other=0.0)
        block = tl.load(table + position // BLOCK).to(tl.int64)
        place = ((block * BLOCK + position % BLOCK) * K + head) * D + d
        tl.store(k_cache + place, k_new, mask=is_dim)
        tl.store(v_cache + place, v_new, mask=is_dim)
        tl.debug_barrier()
    peak = tl.full((GP,), LOWEST, tl.float32)
    total = tl.zeros((GP,), tl.float32)
    acc = tl.zeros((GP, DP), tl.float32)
    for chunk in range(low_chunk, end_chunk):
        c_peak = tl.full((GP,), LOWEST, tl.float32)
        c_total = tl.zeros((GP,), tl.float32)
        c_acc = tl.zeros((GP, DP), tl.float32)
        low = tl.maximum(chunk * CHUNK, first // TILE * TILE)
        for start in range(low, tl.minimum((chunk + 1) * CHUNK, position + 1), TILE):
            index = start + t
            is_token = (index <= position) & (index >= first)
            block = tl.load(table + index // BLOCK, mask=is_token, other=0).to(tl.int64)
            place = ((block * BLOCK + index % BLOCK) * K + head)[:, None] * D + d[None, :]
            mask = is_token[:, None] & is_dim[None, :]
            k = tl.load(k_cache + place, mask=mask, other=0.0)
            v = tl.load(v_cache + place, mask=mask, other=0.0)
            x = scores(q, k, scale, softcap, HAS_SOFTCAP)
            c_peak, c_total, c_acc = absorb(tl.where(is_token[None, :], x, LOWEST), v, c_peak, c_total, c_acc)
        peak, total, acc = join_sums(peak, total, acc, c_peak, c_total, c_acc)
    if CHUNKS == 1:
        out = acc / tl.where(total > 0, total, 1.0)[:, None]
        out_offset = (row * H + head * G + g[:, None]) * D + d[None, :]
        tl.store(out_ptr + out_offset, out.to(out_ptr.dtype.element_ty), mask=q_mask)
    elif low_chunk < end_chunk:
        part = (row * CHUNKS + split) * H + head * G + g
        tl.store(acc_ptr + part[:, None] * D + d[None, :], acc, mask=q_mask)
        tl.store(peak_ptr + part, peak, mask=is_head)
        tl.store(total_ptr + part, total, mask=is_head)


@triton.jit
def _join_chunks(
    acc_ptr, peak_ptr, total_ptr, slot_ptr, position_ptr, is_done_ptr, out_ptr, window,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    h, d = tl.arange(0, 1), tl.arange(0, DP)
    slot = tl.load(slot_ptr + row)
    position = tl.load(position_ptr + slot).to(tl.int32)
    position = tl.where(tl.load(is_done_ptr + slot) == 0, position, -1)
    peak = tl.full((1,), LOWEST, tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((1, DP), tl.float32)
    for chunk in range(tl.maximum(0, position + 1 - window) // CHUNK, tl.cdiv(position + 1, CHUNK)):
        part = (row * CHUNKS + chunk) * H + head + h
        mask = (h[:, None] == 0) & (d[None, :] < D)
        c_acc = tl.load(acc_ptr + part[:, None] * D + d[None, :], mask=mask, other=0.0)
        peak, total, acc = join_sums(peak, total, acc, tl.load(peak_ptr + part), tl.load(total_ptr + part), c_acc)
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    place = (row * H + head) * D + h[:, None] + d[None, :]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=d[None, :] < D)


SPLIT_BELOW = 2 * NUM_SMS
"""With fewer pairs of row and head, sequences are split so that every processor has a program."""
DECODE_WARPS, DECODE_STAGES = 2, 3


def decode_attention(
    query: Tensor, key: Tensor, value: Tensor, cache: Any, slots: Any,
    *, scale: float, softcap: float, window: int, rotary: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return [B, H, D] from query [B, H, D], key and value [B, K, D] of the newest token; `cache` is (keys, values).

    The rows are those of `slots.order`. With `rotary` (cos and sin of all positions, [P, D]), query and key are passed
    unrotated and rotated here.
    """
    rows, heads, size = query.shape
    keys, values = cache
    kv_heads, block = key.shape[1], keys.shape[1]
    out = torch.empty(rows, heads, size, device=query.device, dtype=query.dtype) if out is None else out
    padded = triton.next_power_of_2(size)
    chunks = triton.cdiv(slots.tables.shape[1] * block, CHUNK) if rows * kv_heads < SPLIT_BELOW else 1
    accs = peaks = totals = out
    if chunks > 1:
        accs = torch.empty(rows, chunks, heads, size, device=query.device, dtype=torch.float32)
        peaks = torch.empty(rows, chunks, heads, device=query.device, dtype=torch.float32)
        totals = torch.empty_like(peaks)
    cos, sin = (query, query) if rotary is None else rotary
    _decode_attention[(rows, kv_heads, chunks)](
        query, key, value, cos, sin, keys, values, slots.order, slots.tables, slots.positions, slots.is_done,
        out, accs, peaks, totals, scale, softcap or 1.0, window or 2**30, slots.tables.stride(0),
        query.stride(0), key.stride(0), value.stride(0),
        BLOCK=block, H=heads, K=kv_heads, D=size, DP=padded,
        GP=max(16, triton.next_power_of_2(heads // kv_heads)), CHUNKS=chunks, TILE=TILE, CHUNK=CHUNK,
        HAS_SOFTCAP=bool(softcap), HAS_ROTARY=rotary is not None,
        num_warps=DECODE_WARPS, num_stages=DECODE_STAGES if size <= 128 else 2, **EXACT,
    )  # fmt: skip
    if chunks > 1:
        _join_chunks[(rows, heads)](
            accs, peaks, totals, slots.order, slots.positions, slots.is_done, out, window or 2**30,
            H=heads, D=size, DP=padded, CHUNKS=chunks, CHUNK=CHUNK, num_warps=2, **EXACT,
        )  # fmt: skip
    return out


@triton.jit
def _rotate_and_store(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, position_ptr, place_ptr, q_out, k_cache, v_cache,
    q_stride, k_stride, v_stride, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Process one token and head: rotate a query, rotate a key and store it in the cache, or store a value."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, DP)
    mask = d < D
    position = tl.load(position_ptr + token)
    cos = tl.load(cos_ptr + position * D + d, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + position * D + d, mask=mask, other=0.0)
    if head < H:
        q = _rotated(q_ptr, token * q_stride + head * D, d, cos, sin, mask, D)
        tl.store(q_out + (token * H + head) * D + d, q, mask=mask)
    else:
        place = tl.load(place_ptr + token) * K + head - H
        k = _rotated(k_ptr, token * k_stride + (head - H) * D, d, cos, sin, mask, D)
        v = tl.load(v_ptr + token * v_stride + (head - H) * D + d, mask=mask, other=0.0)
        tl.store(k_cache + place * D + d, k, mask=mask)
        tl.store(v_cache + place * D + d, v, mask=mask)


def rotate_and_store(
    query: Tensor, key: Tensor, value: Tensor, cache: Any, positions: Tensor, places: Tensor, rotary: Any, out: Tensor
) -> None:
    """Write rotated queries [T, H, D] to `out`; write rotated keys [T, K, D] and values to the cache at `places`."""
    tokens, heads, size = query.shape
    keys, values = cache
    _rotate_and_store[(tokens, heads + key.shape[1])](
        query, key, value, *rotary, positions, places, out, keys, values,
        query.stride(0), key.stride(0), value.stride(0),
        H=heads, K=key.shape[1], D=size, DP=triton.next_power_of_2(size), num_warps=1, **EXACT,
    )  # fmt: skip


@triton.jit
def _prefill_attention(
    q_ptr, k_cache, v_cache, table_ptr, row_ptr, start_ptr, position_ptr, length_ptr, out_ptr,
    scale, softcap, window, table_stride,
    BLOCK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    QT: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Process one tile of queries of one sequence and head. Keys and values are already in the cache."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_ptr + tile)
    start = tl.load(start_ptr + tile)  # start of the tile in the packed queries
    position = tl.load(position_ptr + tile)  # position of its first token in its sequence
    length = tl.load(length_ptr + tile)  # number of its tokens
    kv: tl.constexpr = H // K
    i, d, t = tl.arange(0, QT), tl.arange(0, DP), tl.arange(0, TILE)
    q_mask = (i[:, None] < length) & (d[None, :] < D)
    q_offset = ((start + i[:, None]) * H + head) * D + d[None, :]
    q = tl.load(q_ptr + q_offset, mask=q_mask, other=0.0)
    peak = tl.full((QT,), LOWEST, tl.float32)
    total = tl.zeros((QT,), tl.float32)
    acc = tl.zeros((QT, DP), tl.float32)
    low = tl.maximum(0, position + 1 - window)
    end = position + length
    for chunk in range(low // CHUNK, tl.cdiv(end, CHUNK)):
        c_peak = tl.full((QT,), LOWEST, tl.float32)
        c_total = tl.zeros((QT,), tl.float32)
        c_acc = tl.zeros((QT, DP), tl.float32)
        for first in range(tl.maximum(chunk * CHUNK, low // TILE * TILE), tl.minimum((chunk + 1) * CHUNK, end), TILE):
            index = first + t
            is_token = index < end
            block = tl.load(table_ptr + row * table_stride + index // BLOCK, mask=is_token, other=0).to(tl.int64)
            token = block * BLOCK + index % BLOCK
            place = (token * K + head // kv)[:, None] * D + d[None, :]
            mask = is_token[:, None] & (d[None, :] < D)
            k = tl.load(k_cache + place, mask=mask, other=0.0)
            v = tl.load(v_cache + place, mask=mask, other=0.0)
            x = scores(q, k, scale, softcap, HAS_SOFTCAP)
            seen = (index[None, :] <= position + i[:, None]) & (index[None, :] > position + i[:, None] - window)
            c_peak, c_total, c_acc = absorb(tl.where(seen, x, LOWEST), v, c_peak, c_total, c_acc)
        peak, total, acc = join_sums(peak, total, acc, c_peak, c_total, c_acc)
    safe = tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + q_offset, (acc / safe[:, None]).to(out_ptr.dtype.element_ty), mask=q_mask)


def prefill_attention(
    query: Tensor, cache: Any, tables: Tensor, tiles: tuple[Tensor, Tensor, Tensor, Tensor],
    *, scale: float, softcap: float, window: int, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return [T, H, D] from packed queries [T, H, D]; `tiles` is (row, start, position, length) of each query tile."""
    _, heads, size = query.shape
    keys, values = cache
    out = torch.empty_like(query) if out is None else out
    _prefill_attention[(tiles[0].shape[0], heads)](
        query, keys, values, tables, *tiles, out,
        scale, softcap or 1.0, window or 2**30, tables.stride(0),
        BLOCK=keys.shape[1], H=heads, K=keys.shape[2], D=size, DP=triton.next_power_of_2(size),
        QT=QUERY_TILE, TILE=TILE, CHUNK=CHUNK, HAS_SOFTCAP=bool(softcap),
        num_warps=4, num_stages=2, **EXACT,
    )  # fmt: skip
    return out
