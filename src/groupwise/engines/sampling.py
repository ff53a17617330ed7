"""Sampling of one token per row: truncation, the Gumbel trick, and noise that is a pure function.

The noise added to a logit is a hash of (seed of the rollout, position in the completion, token id). So a completion
does not depend on its neighbours in the batch or on scheduling, there is no generator state to save, and any engine
that computes the same hash samples the same tokens.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.types import SamplingParams

_MASK = 0xFFFFFFFF
MAX_NOISE = 16.7
"""Upper bound of the noise: -log(-log(1 - 2^-24)) = 16.64."""
CHUNK_BYTES = 2 << 20
"""Size of the logits from which tokens are drawn at once on a CPU: what fits into a cache."""
FEW = 10
"""If fewer than one in this many tokens can win, they are handled one by one."""


def draw_tokens(
    logits_BV: Tensor, sampling: SamplingParams, seeds_B: Tensor, positions_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Sample one token per row. Return (token ids, logprobs under the whole vocabulary at the sampling temperature).

    Truncation decides what can be drawn and leaves the logprobs alone, as the trainer computes them. Greedy sampling
    (temperature 0) reports the logprob at temperature 1, because its own distribution is a point.
    """
    size = max(1, CHUNK_BYTES // (4 * logits_BV.shape[1])) if logits_BV.device.type == "cpu" else len(logits_BV)
    chunks = zip(logits_BV.split(size), seeds_B.split(size), positions_B.split(size), strict=True)
    pairs = [_draw(*chunk, sampling) for chunk in chunks]
    return torch.cat([tokens for tokens, _ in pairs]), torch.cat([logprobs for _, logprobs in pairs])


def _draw(logits: Tensor, seeds: Tensor, positions: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    scaled = logits.float() / (sampling.temperature or 1.0)
    # Not log_softmax, whose sum over a large vocabulary is off by 1e-5 on a CPU.
    totals = scaled.logsumexp(dim=-1)
    if sampling.temperature == 0:
        tokens = scaled.argmax(dim=-1)
    else:
        log_p = scaled - totals[:, None]
        tokens = _noisy_argmax(
            truncate(log_p, sampling.top_k, sampling.top_p, sampling.min_p), _row_keys(seeds, positions)
        )
    return tokens, scaled.gather(1, tokens[:, None])[:, 0] - totals


def truncate(logits_BV: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Set logits to −inf that top-k, then top-p, then min-p exclude. The likeliest token always stays."""
    if 0 < top_k < logits_BV.shape[1]:
        smallest_kept = logits_BV.topk(top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < smallest_kept, -torch.inf)
    if top_p < 1:
        ordered, order = logits_BV.sort(dim=-1, descending=True, stable=True)
        p = ordered.softmax(dim=-1)
        # A token stays if the tokens above it have not reached top_p, so the first one always stays.
        is_out = p.cumsum(dim=-1) - p >= top_p
        is_out[:, 0] = False
        logits_BV = logits_BV.masked_fill(torch.zeros_like(is_out).scatter(1, order, is_out), -torch.inf)
    if min_p > 0:
        log_p = logits_BV.log_softmax(dim=-1)
        threshold = log_p.max(dim=-1, keepdim=True).values + torch.log(torch.tensor(min_p))
        logits_BV = logits_BV.masked_fill(log_p < threshold, -torch.inf)
    return logits_BV


def _noisy_argmax(log_p_BV: Tensor, keys_B: Tensor) -> Tensor:
    """Return the token with the largest log p + noise.

    The noise is bounded. The likeliest token's score is a lower bound for the winner, so tokens further below it than
    the largest possible noise cannot win. If few tokens are left, noise is computed only for them.
    """
    likeliest = log_p_BV.argmax(dim=-1)
    bound = log_p_BV.gather(1, likeliest[:, None])[:, 0] + _noise(keys_B, likeliest)
    can_win = log_p_BV >= (bound - MAX_NOISE)[:, None]
    if can_win.sum() * FEW > can_win.numel():
        tokens = torch.arange(log_p_BV.shape[1], device=keys_B.device)
        return (log_p_BV + _noise(keys_B[:, None], tokens[None, :])).argmax(dim=-1)
    rows, tokens = torch.nonzero(can_win, as_tuple=True)
    scores = torch.full_like(log_p_BV, -torch.inf)
    scores[rows, tokens] = log_p_BV[rows, tokens] + _noise(keys_B[rows], tokens)
    return scores.argmax(dim=-1)


def gumbel_noise(seeds_B: Tensor, positions_B: Tensor, vocab_size: int) -> Tensor:
    """Return [B, V] standard Gumbel noise, a function of (seed, position, token id)."""
    tokens = torch.arange(vocab_size, device=seeds_B.device, dtype=torch.int64)
    return _noise(_row_keys(seeds_B, positions_B)[:, None], tokens[None, :])


def _row_keys(seeds_B: Tensor, positions_B: Tensor) -> Tensor:
    low, high = seeds_B & _MASK, (seeds_B >> 32) & _MASK
    return _mix(_mix(low ^ _mix(positions_B + 1)) ^ high)


def _noise(keys: Tensor, tokens: Tensor) -> Tensor:
    """Return the noise of each pair of a row's key and a token, broadcast."""
    bits = _mix_in_place(_to_int32(keys) ^ _to_int32(_mix(tokens * 0x9E3779B9 & _MASK)))
    # 23 bits and a half: the largest value is still below 1 in float32, so the logs stay finite.
    uniform = bits.bitwise_right_shift_(9).bitwise_and_(0x7FFFFF).float().add_(0.5).div_(2**23)
    return uniform.log_().neg_().log_().neg_()


def _to_int32(x: Tensor) -> Tensor:
    """Return the low 32 bits as a signed number: half the memory traffic, and products wrap around."""
    return ((x ^ 0x80000000) - 0x80000000).to(torch.int32)


def _mix_in_place(x: Tensor) -> Tensor:
    """Do `_mix` on int32 numbers. A right shift copies the sign, so the shifted-in bits are masked."""
    scratch = torch.empty_like(x)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32), (16, 1)):
        torch.bitwise_right_shift(x, shift, out=scratch)
        x.bitwise_xor_(scratch.bitwise_and_((1 << (32 - shift)) - 1))
        if factor != 1:
            x.mul_(factor)
    return x


def _mix(x: Tensor) -> Tensor:
    """Return a 32-bit avalanche hash (low-bias constants of Wellons' hash prospector) of non-negative int64 tensors."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)
