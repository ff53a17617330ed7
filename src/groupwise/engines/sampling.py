"""Drawing one token per row: truncation, the Gumbel trick, and noise that is a pure function.

The noise added to a logit is a hash of (seed of the rollout, position in the completion, token id). So a completion
does not depend on its neighbours in the batch nor on how the batch was scheduled, there is no generator state to
checkpoint, and any engine that computes the same hash draws the same tokens.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.types import SamplingParams

_MASK = 0xFFFFFFFF
MAX_NOISE = 16.7
"""Above the largest noise there is: -log(-log(1 - 2^-24)) = 16.64."""


def draw_tokens(
    logits_BV: Tensor, sampling: SamplingParams, seeds_B: Tensor, positions_B: Tensor
) -> tuple[Tensor, Tensor]:
    """(token ids, logprobs) of one draw per row; logprobs are under the very distribution that was drawn from.

    Greedy (temperature 0) reports the logprob at temperature 1: what it drew from is a point, which says nothing.
    """
    if sampling.temperature == 0:
        log_p = logits_BV.float().log_softmax(dim=-1)
        tokens = log_p.argmax(dim=-1)
    else:
        scaled = logits_BV.float() / sampling.temperature
        log_p = truncate(scaled, sampling.top_k, sampling.top_p, sampling.min_p).log_softmax(dim=-1)
        tokens = _noisy_argmax(log_p, _row_keys(seeds_B, positions_B))
    return tokens, log_p.gather(1, tokens[:, None])[:, 0]


def truncate(logits_BV: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Logits with −inf for what top-k, then top-p, then min-p exclude. The likeliest token always stays."""
    if 0 < top_k < logits_BV.shape[1]:
        smallest_kept = logits_BV.topk(top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < smallest_kept, -torch.inf)
    if top_p < 1:
        ordered, order = logits_BV.sort(dim=-1, descending=True, stable=True)
        p = ordered.softmax(dim=-1)
        # A token stays while what lies above it has not yet reached top_p, so the first one always does.
        is_out = p.cumsum(dim=-1) - p >= top_p
        is_out[:, 0] = False
        logits_BV = logits_BV.masked_fill(torch.zeros_like(is_out).scatter(1, order, is_out), -torch.inf)
    if min_p > 0:
        log_p = logits_BV.log_softmax(dim=-1)
        threshold = log_p.max(dim=-1, keepdim=True).values + torch.log(torch.tensor(min_p))
        logits_BV = logits_BV.masked_fill(log_p < threshold, -torch.inf)
    return logits_BV


def _noisy_argmax(log_p_BV: Tensor, keys_B: Tensor) -> Tensor:
    """The token with the largest log p + noise. The noise is bounded, so most of the vocabulary cannot win.

    What the likeliest token scores is a lower bound on the winner; only tokens within the largest possible noise of it
    get theirs computed. The result is that of computing it for all.
    """
    likeliest = log_p_BV.argmax(dim=-1)
    bound = log_p_BV.gather(1, likeliest[:, None])[:, 0] + _noise(keys_B, likeliest)
    rows, tokens = torch.nonzero(log_p_BV >= (bound - MAX_NOISE)[:, None], as_tuple=True)
    scores = torch.full_like(log_p_BV, -torch.inf)
    scores[rows, tokens] = log_p_BV[rows, tokens] + _noise(keys_B[rows], tokens)
    return scores.argmax(dim=-1)


def gumbel_noise(seeds_B: Tensor, positions_B: Tensor, vocab_size: int) -> Tensor:
    """[B, V] standard Gumbel noise, a function of (seed, position, token id)."""
    tokens = torch.arange(vocab_size, device=seeds_B.device, dtype=torch.int64)
    return _noise(_row_keys(seeds_B, positions_B)[:, None], tokens[None, :])


def _row_keys(seeds_B: Tensor, positions_B: Tensor) -> Tensor:
    low, high = seeds_B & _MASK, (seeds_B >> 32) & _MASK
    return _mix(_mix(low ^ _mix(positions_B + 1)) ^ high)


def _noise(keys: Tensor, tokens: Tensor) -> Tensor:
    bits = _mix(keys ^ _mix(tokens * 0x9E3779B9 & _MASK))
    # 23 bits and a half: the largest value below 1 that float32 still tells from 1, so the logs stay finite.
    uniform = ((bits >> 9).float() + 0.5) / 2**23
    return -(-uniform.log()).log()


def _mix(x: Tensor) -> Tensor:
    """A 32-bit avalanche hash (the low-bias constants of Wellons' hash prospector) on non-negative int64 tensors."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)
