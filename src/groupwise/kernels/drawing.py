"""Drawing a token per row from logits, on the GPU: the same hash of (seed, position, token) as `engines.sampling`.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

VOCAB_TILE = 4096


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
