"""Sampling of a token per row on the GPU, with the same hash of (seed, position, token) as `engines.sampling`.

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
def _minus_log_uniform(bits):
    """Return -log u for u = (b + 1/2) / 2^23, where b is the upper 23 bits."""
    # Through the bits of a float from 1 to 2, which is exact and avoids a conversion.
    u = ((bits >> 9) | 0x3F800000).to(tl.float32, bitcast=True) - 1.0 + 1.0 / 16777216.0
    log2 = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [u], dtype=tl.float32, is_pure=True, pack=1)
    # The fast logarithm is inaccurate near 1, where the winners are: use terms of the series there.
    w = 1.0 - u
    return tl.where(w < 0.015625, w * (1.0 + w * (0.5 + w * (1.0 / 3.0 + w * 0.25))), log2 * -0.6931471805599453)


@triton.jit
def _draw_tiles(
    logits_ptr, slot_ptr, seed_ptr, count_ptr, peak_ptr, total_ptr, best_ptr, index_ptr, inverse_temperature, vocab,
    tiles,
    IS_GREEDY: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Reduce one row and one tile of the vocabulary: sum of exponentials, and the best logit + noise."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = tile * N + tl.arange(0, N)
    mask = n < vocab
    x = tl.load(logits_ptr + row * vocab + n, mask=mask, other=-float("inf")) * inverse_temperature
    peak = tl.max(x, 0)
    safe = tl.where(peak == -float("inf"), 0.0, peak)
    weight = tl.exp(x - safe)
    total = tl.sum(weight, 0)
    if IS_GREEDY:
        score = x
    else:
        slot = tl.load(slot_ptr + row)
        seed = tl.load(seed_ptr + slot)
        position = tl.load(count_ptr + slot).to(tl.uint32)
        low = (seed & 0xFFFFFFFF).to(tl.uint32)
        high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
        key = _mix(_mix(low ^ _mix(position + 1)) ^ high)
        bits = _mix(key ^ _mix(n.to(tl.uint32) * 0x9E3779B9))
        # The largest weight / -log(uniform) is the largest logit - log(-log(uniform)), with one logarithm less.
        score = weight / _minus_log_uniform(bits)
    best = tl.max(score, 0)
    index = tl.min(tl.where(score == best, n, 2147483647), 0)
    if not IS_GREEDY:
        best = safe + tl.log(best)
    place = row * tiles + tile
    tl.store(peak_ptr + place, peak)
    tl.store(total_ptr + place, total)
    tl.store(best_ptr + place, best)
    tl.store(index_ptr + place, index)


@triton.jit
def _finish_draw(
    logits_ptr, slot_ptr, peak_ptr, total_ptr, best_ptr, index_ptr, stop_ptr,
    token_ptr, position_ptr, count_ptr, limit_ptr, is_done_ptr, out_token_ptr, out_logprob_ptr,
    inverse_temperature, vocab, tiles, out_stride, num_stops,
    REPORTS_LOGITS: tl.constexpr, T: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    """Join the tiles of a row, and advance the row by one token unless it is done."""
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
    token = tl.min(tl.where(best == tl.max(best, 0), index, vocab - 1), 0)
    token = tl.minimum(token, vocab - 1)  # in case of NaN logits
    logprob = tl.load(logits_ptr + row * vocab + token) * inverse_temperature
    if not REPORTS_LOGITS:
        logprob = logprob - lse
    slot = tl.load(slot_ptr + row)
    if tl.load(is_done_ptr + slot) == 0:
        count = tl.load(count_ptr + slot)
        tl.store(out_token_ptr + slot * out_stride + count, token)
        tl.store(out_logprob_ptr + slot * out_stride + count, logprob)
        s = tl.arange(0, STOPS)
        stops = tl.load(stop_ptr + s, mask=s < num_stops, other=-1)
        is_stop = tl.max((stops == token).to(tl.int32), 0)
        is_last = (count + 1 >= tl.load(limit_ptr + slot)).to(tl.int32)
        tl.store(is_done_ptr + slot, tl.where(is_stop == 1, 1, tl.where(is_last == 1, 2, 0)))
        tl.store(count_ptr + slot, count + 1)
        tl.store(token_ptr + slot, token.to(tl.int64))
        tl.store(position_ptr + slot, tl.load(position_ptr + slot) + 1)


def draw_and_advance(
    logits: Tensor, slots: Any, stops: Tensor, temperature: float, *, reports_logits: bool = False
) -> None:
    """Sample a token for each of the `len(logits)` rows of `slots.order` and advance their slots.

    With `reports_logits`, a token's logprob is its logit as it is: for logprobs of which some were set to −inf.
    """
    batch, vocab = logits.shape
    tiles = triton.cdiv(vocab, VOCAB_TILE)
    device = logits.device
    peaks, totals, bests = (torch.empty(batch, tiles, device=device, dtype=torch.float32) for _ in range(3))
    indices = torch.empty(batch, tiles, device=device, dtype=torch.int32)
    inverse = 1.0 / temperature if temperature else 1.0
    _draw_tiles[(batch, tiles)](
        logits, slots.order, slots.seeds, slots.counts, peaks, totals, bests, indices, inverse, vocab, tiles,
        IS_GREEDY=temperature == 0, N=VOCAB_TILE, num_warps=8,
    )  # fmt: skip
    _finish_draw[(batch,)](
        logits, slots.order, peaks, totals, bests, indices, stops, slots.tokens, slots.positions, slots.counts,
        slots.limits, slots.is_done, slots.out_tokens, slots.out_logprobs,
        inverse, vocab, tiles, slots.out_tokens.stride(0), stops.shape[0], REPORTS_LOGITS=reports_logits,
        T=triton.next_power_of_2(tiles), STOPS=triton.next_power_of_2(max(1, stops.shape[0])), num_warps=1,
    )  # fmt: skip
