"""Attention within a pack (data/pack.py), for training. A prompt that several completions continue is stored once.

The forward arithmetic is that of `kernels.attention`, so trainer and engine agree. The backward pass has two kernels:
one iterates over tiles of queries and sums over keys, the other iterates over tiles of keys and sums over queries. A
key of a prompt is seen by all tokens up to the end of the completions that continue it, and a key of a completion by
the later tokens of its segment. In a pack, both are one contiguous range. There are no atomic additions, so the same
pack gives the same bits.

Shapes: T tokens, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.kernels.attention import CHUNK, LOG2_E, LOWEST, QUERY_TILE, TILE, absorb, join_sums, scores
from groupwise.kernels.pointwise import EXACT

KEY_TILE = 64
"""Keys whose gradients one program sums."""
SHORT_SEGMENT = 16
"""Buffers have room for segments of at least this many tokens on average."""


QueryTile = tuple[int, int, int, int, int]
"""Start in the pack, position, length, start of the prompt that it continues, length of that prompt."""
KeyTile = tuple[int, int, int]
"""Start in the pack, length, end of the tokens that see them."""


def find_tiles(segments: Sequence[Any]) -> tuple[list[QueryTile], list[KeyTile]]:
    """Return the tiles of a pack, those that take longest first."""
    queries: list[QueryTile] = []
    keys: list[KeyTile] = []
    for part in segments:
        for offset in range(0, part.length, QUERY_TILE):
            place = (part.start + offset, part.prompt_length + offset, min(QUERY_TILE, part.length - offset))
            queries.append((*place, part.prompt_start, part.prompt_length))
        for offset in range(0, part.length, KEY_TILE):
            keys.append((part.start + offset, min(KEY_TILE, part.length - offset), part.seen_until))
    queries.sort(key=lambda tile: -tile[1])
    keys.sort(key=lambda tile: tile[0] - tile[2])
    return queries, keys


class PackedTiles:
    """The tiles of a pack, on the device."""

    def __init__(self, segments: Sequence[Any], positions: Tensor) -> None:
        queries, keys = find_tiles(segments)
        self.positions = positions.to(torch.int32)
        self.queries = _columns(queries, positions.device)
        self.keys = _columns(keys, positions.device)


class TileRoom:
    """Buffers at fixed addresses for the tiles of any pack of a given size, for recorded kernels.

    Unused entries are tiles without tokens.
    """

    def __init__(self, tokens: int, device: torch.device) -> None:
        self.positions = torch.zeros(tokens, dtype=torch.int32, device=device)
        # Each segment may end with a partial tile.
        self._table = torch.zeros(8, tokens // QUERY_TILE + tokens // SHORT_SEGMENT, dtype=torch.int32, device=device)
        self.queries, self.keys = self._table[:5].unbind(), self._table[5:].unbind()

    def fill(self, segments: Sequence[Any], positions: Tensor) -> bool:
        """Fill in the tiles of a pack. Return False if there are too many."""
        queries, keys = find_tiles(segments)
        most = self._table.shape[1]
        if len(queries) > most or len(keys) > most:
            return False
        # Pinned, so the copy is queued without blocking the host.
        table = torch.zeros(8, most, dtype=torch.int32, pin_memory=True)
        table[:5, : len(queries)] = _table(queries)
        table[5:, : len(keys)] = _table(keys)
        self._table.copy_(table, non_blocking=True)
        self.positions.copy_(positions)
        return True


def _columns(rows: Sequence[tuple[int, ...]], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(_table(rows).contiguous().pin_memory().to(device, non_blocking=True).unbind())


def _table(rows: Sequence[tuple[int, ...]]) -> Tensor:
    return torch.from_numpy(numpy.array(rows, dtype=numpy.int32)).t()


@triton.jit(do_not_specialize=["num_tokens"])
def _packed_attention(
    q_ptr, k_ptr, v_ptr, start_ptr, position_ptr, length_ptr, prompt_ptr, prompt_length_ptr, out_ptr, lse_ptr,
    scale, window, num_tokens,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    QT: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Process one tile of queries and head. The log-sum-exp is stored for the backward pass."""
    tile, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(start_ptr + tile)
    position = tl.load(position_ptr + tile)
    length = tl.load(length_ptr + tile)
    prompt = tl.load(prompt_ptr + tile)
    prompt_length = tl.load(prompt_length_ptr + tile)
    kv: tl.constexpr = H // K
    i, d, t = tl.arange(0, QT), tl.arange(0, DP), tl.arange(0, TILE)
    q_mask = (i[:, None] < length) & (d[None, :] < D)
    q_offset = ((start + i[:, None]).to(tl.int64) * H + head) * D + d[None, :]
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
            token = tl.where(index < prompt_length, prompt + index, start - position + index).to(tl.int64)
            place = (token * K + head // kv)[:, None] * D + d[None, :]
            mask = (index < end)[:, None] & (d[None, :] < D)
            k = tl.load(k_ptr + place, mask=mask, other=0.0)
            v = tl.load(v_ptr + place, mask=mask, other=0.0)
            x = scores(q, k, scale, 1.0, False)
            seen = (index[None, :] <= position + i[:, None]) & (index[None, :] > position + i[:, None] - window)
            c_peak, c_total, c_acc = absorb(tl.where(seen, x, LOWEST), v, c_peak, c_total, c_acc)
        peak, total, acc = join_sums(peak, total, acc, c_peak, c_total, c_acc)
    safe = tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + q_offset, (acc / safe[:, None]).to(out_ptr.dtype.element_ty), mask=q_mask)
    tl.store(lse_ptr + head * num_tokens + start + i, peak + tl.log2(safe), mask=i < length)


@triton.jit(do_not_specialize=["num_tokens"])
def _dot_rows(
    out_ptr, grad_ptr, dot_ptr, num_tokens, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, N: tl.constexpr
):
    """Compute Σ out · grad of each token and head."""
    n, head = tl.program_id(0) * N + tl.arange(0, N), tl.program_id(1)
    d = tl.arange(0, DP)
    mask = (n[:, None] < num_tokens) & (d[None, :] < D)
    place = (n[:, None].to(tl.int64) * H + head) * D + d[None, :]
    out = tl.load(out_ptr + place, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(dot_ptr + head * num_tokens + n, tl.sum(out * grad, 1), mask=n < num_tokens)


@triton.jit(do_not_specialize=["num_tokens"])
def _query_gradients(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dot_ptr,
    start_ptr, position_ptr, length_ptr, prompt_ptr, prompt_length_ptr, dq_ptr, scale, window, num_tokens,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, QT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(start_ptr + tile)
    position = tl.load(position_ptr + tile)
    length = tl.load(length_ptr + tile)
    prompt = tl.load(prompt_ptr + tile)
    prompt_length = tl.load(prompt_length_ptr + tile)
    kv: tl.constexpr = H // K
    i, d, t = tl.arange(0, QT), tl.arange(0, DP), tl.arange(0, TILE)
    q_mask = (i[:, None] < length) & (d[None, :] < D)
    q_offset = ((start + i[:, None]).to(tl.int64) * H + head) * D + d[None, :]
    q = tl.load(q_ptr + q_offset, mask=q_mask, other=0.0)
    grad = tl.load(grad_ptr + q_offset, mask=q_mask, other=0.0)
    lse = tl.load(lse_ptr + head * num_tokens + start + i, mask=i < length, other=0.0)
    dot = tl.load(dot_ptr + head * num_tokens + start + i, mask=i < length, other=0.0)
    acc = tl.zeros((QT, DP), tl.float32)
    end = position + length
    for first in range(tl.maximum(0, position + 1 - window) // TILE * TILE, end, TILE):
        index = first + t
        token = tl.where(index < prompt_length, prompt + index, start - position + index).to(tl.int64)
        place = (token * K + head // kv)[:, None] * D + d[None, :]
        mask = (index < end)[:, None] & (d[None, :] < D)
        k = tl.load(k_ptr + place, mask=mask, other=0.0)
        v = tl.load(v_ptr + place, mask=mask, other=0.0)
        x = tl.dot(q, tl.trans(k)) * (scale * LOG2_E)
        seen = (index[None, :] <= position + i[:, None]) & (index[None, :] > position + i[:, None] - window)
        p = tl.where(seen, tl.exp2(x - lse[:, None]), 0.0)
        slope = p * (tl.dot(grad, tl.trans(v)) - dot[:, None])
        acc = tl.dot(slope.to(k.dtype), k, acc)
    tl.store(dq_ptr + q_offset, (acc * scale).to(dq_ptr.dtype.element_ty), mask=q_mask)


@triton.jit(do_not_specialize=["num_tokens"])
def _key_gradients(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dot_ptr, place_ptr, start_ptr, length_ptr, until_ptr, dk_ptr, dv_ptr,
    scale, window, num_tokens,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, KT: tl.constexpr, TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    start = tl.load(start_ptr + tile)
    length = tl.load(length_ptr + tile)
    until = tl.load(until_ptr + tile)
    kv: tl.constexpr = H // K
    j, d, t = tl.arange(0, KT), tl.arange(0, DP), tl.arange(0, TILE)
    k_mask = (j[:, None] < length) & (d[None, :] < D)
    k_offset = ((start + j[:, None]).to(tl.int64) * K + kv_head) * D + d[None, :]
    k = tl.load(k_ptr + k_offset, mask=k_mask, other=0.0)
    v = tl.load(v_ptr + k_offset, mask=k_mask, other=0.0)
    if HAS_WINDOW:
        k_place = tl.load(place_ptr + start + j, mask=j < length, other=0)
    dk = tl.zeros((KT, DP), tl.float32)
    dv = tl.zeros((KT, DP), tl.float32)
    for head in range(kv_head * kv, kv_head * kv + kv):
        for first in range(start, until, TILE):
            token = first + t
            is_token = token < until
            place = (token.to(tl.int64) * H + head)[:, None] * D + d[None, :]
            mask = is_token[:, None] & (d[None, :] < D)
            q = tl.load(q_ptr + place, mask=mask, other=0.0)
            grad = tl.load(grad_ptr + place, mask=mask, other=0.0)
            lse = tl.load(lse_ptr + head * num_tokens + token, mask=is_token, other=0.0)
            dot = tl.load(dot_ptr + head * num_tokens + token, mask=is_token, other=0.0)
            x = tl.dot(k, tl.trans(q)) * (scale * LOG2_E)
            seen = (token[None, :] >= start + j[:, None]) & is_token[None, :]
            if HAS_WINDOW:
                q_place = tl.load(place_ptr + token, mask=is_token, other=0)
                seen = seen & (q_place[None, :] - k_place[:, None] < window)
            p = tl.where(seen, tl.exp2(x - lse[None, :]), 0.0)
            dv = tl.dot(p.to(grad.dtype), grad, dv)
            slope = p * (tl.dot(v, tl.trans(grad)) - dot[None, :])
            dk = tl.dot(slope.to(q.dtype), q, dk)
    tl.store(dk_ptr + k_offset, (dk * scale).to(dk_ptr.dtype.element_ty), mask=k_mask)
    tl.store(dv_ptr + k_offset, dv.to(dv_ptr.dtype.element_ty), mask=k_mask)


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, tiles: PackedTiles | TileRoom, scale: float, window: int
) -> tuple[Tensor, Tensor]:
    """Return ([T, H, D], log-sum-exps to base 2 [H, T]) from query [T, H, D], key and value [T, K, D]."""
    tokens, heads, size = query.shape
    out = torch.empty_like(query)
    lse = torch.empty(heads, tokens, device=query.device, dtype=torch.float32)
    _packed_attention[(tiles.queries[0].shape[0], heads)](
        query, key, value, *tiles.queries, out, lse, scale, window or 2**30, tokens,
        H=heads, K=key.shape[1], D=size, DP=triton.next_power_of_2(size),
        QT=QUERY_TILE, TILE=TILE, CHUNK=CHUNK, num_warps=4, num_stages=2, **EXACT,
    )  # fmt: skip
    return out, lse


def attend_packed_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, tiles: PackedTiles | TileRoom,
    scale: float, window: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key and value."""
    tokens, heads, size = query.shape
    kv_heads, padded = key.shape[1], triton.next_power_of_2(size)
    dot = torch.empty_like(lse)
    _dot_rows[(triton.cdiv(tokens, 64), heads)](out, grad, dot, tokens, H=heads, D=size, DP=padded, N=64, num_warps=4)
    dq, dk, dv = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    shape = {"H": heads, "K": kv_heads, "D": size, "DP": padded}
    inputs = (query, key, value, grad, lse, dot)
    stages = 2 if padded <= 128 else 1
    _query_gradients[(tiles.queries[0].shape[0], heads)](
        *inputs, *tiles.queries, dq, scale, window or 2**30, tokens,
        **shape, QT=QUERY_TILE, TILE=64, num_warps=4, num_stages=stages,
    )  # fmt: skip
    _key_gradients[(tiles.keys[0].shape[0], kv_heads)](
        *inputs, tiles.positions, *tiles.keys, dk, dv, scale, window or 2**30, tokens,
        **shape, KT=KEY_TILE, TILE=64 if padded <= 128 else 32, HAS_WINDOW=bool(window), num_warps=4, num_stages=stages,
    )  # fmt: skip
    return dq, dk, dv


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, tiles: PackedTiles, scale: float, window: int
    ) -> Tensor:
        out, lse = attend_packed(query, key, value, tiles, scale, window)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.form = (tiles, scale, window)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*attend_packed_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.form), None, None, None)


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, tiles: PackedTiles, *, scale: float, window: int
) -> Tensor:
    """Return [T, H, D] from query [T, H, D], key and value [T, K, D], with gradients."""
    result: Tensor = _PackedAttention.apply(
        query.contiguous(), key.contiguous(), value.contiguous(), tiles, scale, window
    )
    return result
