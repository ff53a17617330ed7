"""Triton kernels of the decode step. Each has a plain torch twin in the tests, and rounds where eager torch rounds.

Shapes: B rows (rollouts that decode), H heads, K key-value heads, D head size, V vocabulary, S splits of a sequence.
The cache is [blocks, block size, K, D] for keys and for values; a row's table lists its blocks in order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 64
"""Cached tokens that attention reads at once."""
VOCAB_TILE = 4096
NUM_SMS = 132


LOWEST: tl.constexpr = tl.constexpr(-1e30)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


# ---- attention ----


@triton.jit
def _scores(q, k, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Scores in the logarithm to base 2."""
    x = tl.dot(q, tl.trans(k)) * scale
    if HAS_SOFTCAP:
        x = softcap * (2 / (1 + tl.exp(-2 * x / softcap)) - 1)
    return x * LOG2_E


@triton.jit
def _absorb(x, v, peak, total, acc):
    """One tile more. The running peak is a whole number, so that all rescaling is by powers of two, which is exact.

    Probabilities are rounded to the values' type before the product; with exact rescaling they round alike whatever
    the peak was when their tile came. So neither the order nor the splitting of a sequence moves the result by more
    than the rounding of fp32 sums, and the decode step agrees with the trainer's pass over whole sequences.
    """
    new_peak = tl.maximum(peak, tl.ceil(tl.max(x, 1)))
    p = tl.where(x > LOWEST / 2, tl.exp2(x - new_peak[:, None]), 0.0).to(v.dtype)
    shrink = tl.exp2(peak - new_peak)
    total = total * shrink + tl.sum(p.to(tl.float32), 1)
    acc = acc * shrink[:, None] + tl.dot(p, v)
    return new_peak, total, acc


@triton.jit
def _decode_attention(
    q_ptr, k_ptr, v_ptr, k_cache, v_cache, table_ptr, position_ptr, is_done_ptr, out_ptr, part_ptr, lse_ptr,
    scale, softcap, window, table_stride,
    BLOCK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, GP: tl.constexpr,
    SPLITS: tl.constexpr, TILE: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """One row, one key-value head and its G query heads, one share of the sequence. Also stores the new key and value.

    Tiles are read in the order of the sequence, as in `_prefill_attention`.
    """
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    G: tl.constexpr = H // K
    position = tl.load(position_ptr + row).to(tl.int32)
    g, d, t = tl.arange(0, GP), tl.arange(0, DP), tl.arange(0, TILE)
    is_head, is_dim = g < G, d < D
    q_offset = (row * H + head * G + g[:, None]) * D + d[None, :]
    q_mask = is_head[:, None] & is_dim[None, :]
    q = tl.load(q_ptr + q_offset, mask=q_mask, other=0.0)
    peak = tl.full((GP,), LOWEST, tl.float32)
    total = tl.zeros((GP,), tl.float32)
    acc = tl.zeros((GP, DP), tl.float32)
    first = tl.maximum(0, position + 1 - window)
    base = first // TILE * TILE
    share = tl.cdiv(tl.cdiv(position + 1 - base, SPLITS), TILE) * TILE
    low = base + split * share
    high = tl.minimum(low + share, position + 1)
    if high == position + 1:
        # Whoever reads the newest token also stores it.
        if low < high:
            new = (row * K + head) * D + d
            k_new = tl.load(k_ptr + new, mask=is_dim, other=0.0)
            v_new = tl.load(v_ptr + new, mask=is_dim, other=0.0)
            if tl.load(is_done_ptr + row) == 0:
                block = tl.load(table_ptr + row * table_stride + position // BLOCK).to(tl.int64)
                place = ((block * BLOCK + position % BLOCK) * K + head) * D + d
                tl.store(k_cache + place, k_new, mask=is_dim)
                tl.store(v_cache + place, v_new, mask=is_dim)
            tl.debug_barrier()
    for start in range(low, high, TILE):
        index = start + t
        is_token = (index < high) & (index >= first)
        block = tl.load(table_ptr + row * table_stride + index // BLOCK, mask=is_token, other=0).to(tl.int64)
        place = ((block * BLOCK + index % BLOCK) * K + head)[:, None] * D + d[None, :]
        mask = is_token[:, None] & is_dim[None, :]
        k = tl.load(k_cache + place, mask=mask, other=0.0)
        v = tl.load(v_cache + place, mask=mask, other=0.0)
        x = _scores(q, k, scale, softcap, HAS_SOFTCAP)
        peak, total, acc = _absorb(tl.where(is_token[None, :], x, LOWEST), v, peak, total, acc)
    if SPLITS == 1:
        tl.store(out_ptr + q_offset, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=q_mask)
    else:
        # An empty share has total 0, and gets the weight 0.
        safe = tl.where(total > 0, total, 1.0)
        part = ((row * SPLITS + split) * H + head * G + g[:, None]) * D + d[None, :]
        tl.store(part_ptr + part, acc / safe[:, None], mask=q_mask)
        lse = tl.where(total > 0, peak + tl.log2(safe), LOWEST)
        tl.store(lse_ptr + (row * SPLITS + split) * H + head * G + g, lse, mask=is_head)


@triton.jit
def _join_splits(part_ptr, lse_ptr, out_ptr, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SPLITS: tl.constexpr):
    row, head = tl.program_id(0), tl.program_id(1)
    d, s = tl.arange(0, DP), tl.arange(0, SPLITS)
    lse = tl.load(lse_ptr + (row * SPLITS + s) * H + head)
    weight = tl.exp2(lse - tl.max(lse, 0))
    weight = weight / tl.sum(weight, 0)
    mask = (s[:, None] >= 0) & (d[None, :] < D)
    part = tl.load(part_ptr + ((row * SPLITS + s[:, None]) * H + head) * D + d[None, :], mask=mask, other=0.0)
    out = tl.sum(part * weight[:, None], 0)
    tl.store(out_ptr + (row * H + head) * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)


def num_splits(rows: int, kv_heads: int) -> int:
    """Enough programs to fill the GPU twice, as a power of two."""
    wanted = max(1, 2 * NUM_SMS // (rows * kv_heads))
    return min(16, 1 << (wanted.bit_length() - 1))


def decode_attention(
    query: Tensor, key: Tensor, value: Tensor, cache: Any, tables: Tensor, positions: Tensor, is_done: Tensor,
    *, scale: float, softcap: float, window: int, splits: int,
) -> Tensor:  # fmt: skip
    """[B, H, D] from query [B, H, D], key and value [B, K, D] of the newest token; `cache` is (keys, values)."""
    rows, heads, size = query.shape
    kv_heads = key.shape[1]
    keys, values = cache
    out = torch.empty_like(query)
    padded = triton.next_power_of_2(size)
    parts = lses = out
    if splits > 1:
        parts = torch.empty(rows, splits, heads, size, device=query.device, dtype=torch.float32)
        lses = torch.empty(rows, splits, heads, device=query.device, dtype=torch.float32)
    _decode_attention[(rows, kv_heads, splits)](
        query, key, value, keys, values, tables, positions, is_done, out, parts, lses,
        scale, softcap or 1.0, window or 2**30, tables.stride(0),
        BLOCK=keys.shape[1], H=heads, K=kv_heads, D=size, DP=padded,
        GP=max(16, triton.next_power_of_2(heads // kv_heads)), SPLITS=splits, TILE=TILE, HAS_SOFTCAP=bool(softcap),
        num_warps=4, num_stages=3 if size <= 128 else 2,
    )  # fmt: skip
    if splits > 1:
        _join_splits[(rows, heads)](parts, lses, out, H=heads, D=size, DP=padded, SPLITS=splits, num_warps=2)
    return out


@triton.jit
def _prefill_attention(
    q_ptr, k_cache, v_cache, table_ptr, row_ptr, start_ptr, position_ptr, length_ptr, out_ptr,
    scale, softcap, window, table_stride,
    BLOCK: tl.constexpr, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    QT: tl.constexpr, TILE: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one sequence, one head; keys and values come from the cache, where they were just put."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_ptr + tile)
    start = tl.load(start_ptr + tile)  # of the tile in the packed queries
    position = tl.load(position_ptr + tile)  # of its first token in its sequence
    length = tl.load(length_ptr + tile)  # tokens in it
    kv: tl.constexpr = H // K
    i, d, t = tl.arange(0, QT), tl.arange(0, DP), tl.arange(0, TILE)
    q_mask = (i[:, None] < length) & (d[None, :] < D)
    q_offset = ((start + i[:, None]) * H + head) * D + d[None, :]
    q = tl.load(q_ptr + q_offset, mask=q_mask, other=0.0)
    peak = tl.full((QT,), LOWEST, tl.float32)
    total = tl.zeros((QT,), tl.float32)
    acc = tl.zeros((QT, DP), tl.float32)
    low = tl.maximum(0, position + 1 - window) // TILE * TILE
    for first in range(low, position + length, TILE):
        index = first + t
        is_token = index < position + length
        block = tl.load(table_ptr + row * table_stride + index // BLOCK, mask=is_token, other=0).to(tl.int64)
        place = ((block * BLOCK + index % BLOCK) * K + head // kv)[:, None] * D + d[None, :]
        mask = is_token[:, None] & (d[None, :] < D)
        k = tl.load(k_cache + place, mask=mask, other=0.0)
        v = tl.load(v_cache + place, mask=mask, other=0.0)
        x = _scores(q, k, scale, softcap, HAS_SOFTCAP)
        seen = (index[None, :] <= position + i[:, None]) & (index[None, :] > position + i[:, None] - window)
        peak, total, acc = _absorb(tl.where(seen, x, LOWEST), v, peak, total, acc)
    safe = tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + q_offset, (acc / safe[:, None]).to(out_ptr.dtype.element_ty), mask=q_mask)


QUERY_TILE = 64


def prefill_attention(
    query: Tensor, cache: Any, tables: Tensor, tiles: tuple[Tensor, Tensor, Tensor, Tensor],
    *, scale: float, softcap: float, window: int,
) -> Tensor:  # fmt: skip
    """[T, H, D] from packed queries [T, H, D]; `tiles` is (row, start, position, length) of each tile of queries."""
    _, heads, size = query.shape
    keys, values = cache
    out = torch.empty_like(query)
    _prefill_attention[(tiles[0].shape[0], heads)](
        query, keys, values, tables, *tiles, out,
        scale, softcap or 1.0, window or 2**30, tables.stride(0),
        BLOCK=keys.shape[1], H=heads, K=keys.shape[2], D=size, DP=triton.next_power_of_2(size),
        QT=QUERY_TILE, TILE=TILE, HAS_SOFTCAP=bool(softcap), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


# ---- the small operations between the matrix products ----


@triton.jit
def _rms_norm(x_ptr, w_ptr, out_ptr, size, eps, ONE_PLUS: tl.constexpr, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, N)
    mask = n < size
    x = tl.load(x_ptr + row * size + n, mask=mask, other=0.0)
    wide = x.to(tl.float32)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    w = tl.load(w_ptr + n, mask=mask, other=0.0)
    if ONE_PLUS:  # Gemma: all in fp32, and the weight is an offset from 1
        out = scaled * (1.0 + w.to(tl.float32))
    else:  # Llama, Qwen, Mistral: rounded before the weight
        out = scaled.to(x.dtype) * w
    tl.store(out_ptr + row * size + n, out.to(x.dtype), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, one_plus: bool) -> Tensor:
    size = x.shape[-1]
    x = x.contiguous()
    out = torch.empty_like(x)
    padded = triton.next_power_of_2(size)
    _rms_norm[(x.numel() // size,)](
        x, weight, out, size, eps, ONE_PLUS=one_plus, N=padded, num_warps=4 if padded <= 2048 else 8
    )
    return out


@triton.jit
def _rotate(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out, k_out, q_row, q_head, k_row, k_head,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    h = tl.arange(0, HALF)
    mask = h < D // 2
    is_query = head < H
    inner = tl.where(is_query, head, head - H)
    source = tl.where(is_query, row * q_row + inner * q_head, row * k_row + inner * k_head)
    if is_query:
        first = tl.load(q_ptr + source + h, mask=mask, other=0.0)
        second = tl.load(q_ptr + source + D // 2 + h, mask=mask, other=0.0)
    else:
        first = tl.load(k_ptr + source + h, mask=mask, other=0.0)
        second = tl.load(k_ptr + source + D // 2 + h, mask=mask, other=0.0)
    c1 = tl.load(cos_ptr + row * D + h, mask=mask, other=0.0)
    c2 = tl.load(cos_ptr + row * D + D // 2 + h, mask=mask, other=0.0)
    s1 = tl.load(sin_ptr + row * D + h, mask=mask, other=0.0)
    s2 = tl.load(sin_ptr + row * D + D // 2 + h, mask=mask, other=0.0)
    # Eager torch rounds each product before the sum, and so do we.
    dtype = first.dtype
    a = (first * c1).to(dtype) + (-second * s1).to(dtype)
    b = (second * c2).to(dtype) + (first * s2).to(dtype)
    if is_query:
        place = (row * H + inner) * D + h
        tl.store(q_out + place, a.to(dtype), mask=mask)
        tl.store(q_out + place + D // 2, b.to(dtype), mask=mask)
    else:
        place = (row * K + inner) * D + h
        tl.store(k_out + place, a.to(dtype), mask=mask)
        tl.store(k_out + place + D // 2, b.to(dtype), mask=mask)


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of one token per row: query [B, H, 1, D], key [B, K, 1, D], cos and sin [B, 1, D]."""
    rows, heads, _, size = query.shape
    kv_heads = key.shape[1]
    q_out = torch.empty(rows, heads, 1, size, device=query.device, dtype=query.dtype)
    k_out = torch.empty(rows, kv_heads, 1, size, device=query.device, dtype=query.dtype)
    _rotate[(rows, heads + kv_heads)](
        query, key, cos.contiguous(), sin.contiguous(), q_out, k_out,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1),
        H=heads, K=kv_heads, D=size, HALF=triton.next_power_of_2(size // 2), num_warps=1,
    )  # fmt: skip
    return q_out, k_out


@triton.jit
def _silu_mul(gate_ptr, up_ptr, out_ptr, count, N: tl.constexpr):
    n = tl.program_id(0) * N + tl.arange(0, N)
    mask = n < count
    gate = tl.load(gate_ptr + n, mask=mask, other=0.0)
    up = tl.load(up_ptr + n, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    active = (wide / (1 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out_ptr + n, active * up, mask=mask)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    out = torch.empty_like(gate)
    count = gate.numel()
    _silu_mul[(triton.cdiv(count, 2048),)](gate, up, out, count, N=2048, num_warps=4)
    return out


# ---- drawing a token ----


@triton.jit
def _mix(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _draw_tiles(
    logits_ptr, seed_ptr, count_ptr, peak_ptr, total_ptr, best_ptr, index_ptr, inverse_temperature, vocab, tiles,
    IS_GREEDY: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Of one row and one tile of the vocabulary: the sum of exponentials, and the best of logit + noise."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = tile * N + tl.arange(0, N)
    mask = n < vocab
    x = tl.load(logits_ptr + row * vocab + n, mask=mask, other=-float("inf")) * inverse_temperature
    peak = tl.max(x, 0)
    safe = tl.where(peak == -float("inf"), 0.0, peak)
    total = tl.sum(tl.exp(x - safe), 0)
    if IS_GREEDY:
        score = x
    else:
        seed = tl.load(seed_ptr + row)
        position = tl.load(count_ptr + row).to(tl.uint32)
        low = (seed & 0xFFFFFFFF).to(tl.uint32)
        high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
        key = _mix(_mix(low ^ _mix(position + 1)) ^ high)
        bits = _mix(key ^ _mix(n.to(tl.uint32) * 0x9E3779B9))
        uniform = ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
        score = x - tl.log(-tl.log(uniform))
    best = tl.max(score, 0)
    index = tl.min(tl.where(score == best, n, 2147483647), 0)
    place = row * tiles + tile
    tl.store(peak_ptr + place, peak)
    tl.store(total_ptr + place, total)
    tl.store(best_ptr + place, best)
    tl.store(index_ptr + place, index)


@triton.jit
def _finish_draw(
    logits_ptr, peak_ptr, total_ptr, best_ptr, index_ptr, stop_ptr,
    token_ptr, position_ptr, count_ptr, limit_ptr, is_done_ptr, out_token_ptr, out_logprob_ptr,
    inverse_temperature, vocab, tiles, out_stride, num_stops, T: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    """Joins the tiles of a row, and moves the row on by one token unless it is done."""
    row = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, T)
    mask = t < tiles
    place = row * tiles + t
    peak = tl.load(peak_ptr + place, mask=mask, other=-float("inf"))
    total = tl.load(total_ptr + place, mask=mask, other=0.0)
    top = tl.max(peak, 0)
    lse = top + tl.log(tl.sum(tl.where(total > 0, total * tl.exp(peak - top), 0.0), 0))
    best = tl.load(best_ptr + place, mask=mask, other=-float("inf"))
    index = tl.load(index_ptr + place, mask=mask, other=2147483647)
    token = tl.min(tl.where(best == tl.max(best, 0), index, 2147483647), 0)
    logprob = tl.load(logits_ptr + row * vocab + token) * inverse_temperature - lse
    if tl.load(is_done_ptr + row) == 0:
        count = tl.load(count_ptr + row)
        tl.store(out_token_ptr + row * out_stride + count, token)
        tl.store(out_logprob_ptr + row * out_stride + count, logprob)
        s = tl.arange(0, STOPS)
        stops = tl.load(stop_ptr + s, mask=s < num_stops, other=-1)
        is_stop = tl.max((stops == token).to(tl.int32), 0)
        is_last = (count + 1 >= tl.load(limit_ptr + row)).to(tl.int32)
        tl.store(is_done_ptr + row, tl.where(is_stop == 1, 1, tl.where(is_last == 1, 2, 0)))
        tl.store(count_ptr + row, count + 1)
        tl.store(token_ptr + row, token.to(tl.int64))
        tl.store(position_ptr + row, tl.load(position_ptr + row) + 1)


def draw_and_advance(logits: Tensor, rows: Any, stops: Tensor, temperature: float) -> None:
    """Draw a token for each of the first `len(logits)` rows and move them on. `rows` holds the rows' state."""
    batch, vocab = logits.shape
    tiles = triton.cdiv(vocab, VOCAB_TILE)
    device = logits.device
    peaks, totals, bests = (torch.empty(batch, tiles, device=device, dtype=torch.float32) for _ in range(3))
    indices = torch.empty(batch, tiles, device=device, dtype=torch.int32)
    inverse = 1.0 / temperature if temperature else 1.0
    _draw_tiles[(batch, tiles)](
        logits, rows.seeds, rows.counts, peaks, totals, bests, indices, inverse, vocab, tiles,
        IS_GREEDY=temperature == 0, N=VOCAB_TILE, num_warps=8,
    )  # fmt: skip
    _finish_draw[(batch,)](
        logits, peaks, totals, bests, indices, stops,
        rows.tokens, rows.positions, rows.counts, rows.limits, rows.is_done, rows.out_tokens, rows.out_logprobs,
        inverse, vocab, tiles, rows.out_tokens.stride(0), stops.shape[0],
        T=triton.next_power_of_2(tiles), STOPS=triton.next_power_of_2(max(1, stops.shape[0])), num_warps=1,
    )  # fmt: skip
