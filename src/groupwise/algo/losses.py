"""Surrogates, KL estimators and importance weights: per-token functions whose weighted sum is the loss.

Shapes: N completion tokens of a microbatch, back to back; S completions. `sequence_N` names each token's completion.
Signs: an objective to maximize is returned as a loss to minimize. Nothing is averaged here. The batch's weights and one
denominator for the whole update do that, so the gradient does not depend on how the batch was split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SurrogateInputs:
    logprobs: Tensor
    """[N], with gradient."""
    old_logprobs: Tensor
    """[N], constant."""
    advantages: Tensor
    """[N], constant."""
    sequence: Tensor
    """[N] long: index of the token's completion."""
    num_sequences: int
    clip_low: float
    clip_high: float
    dual_clip: float


@dataclass(frozen=True, slots=True)
class SurrogateOutputs:
    loss: Tensor
    """[N], with gradient."""
    ratio: Tensor
    """[N], detached: π / π_old of the token, or of its whole completion."""
    is_clipped_low: Tensor
    """[N] bool: the low clip removed this token's gradient."""
    is_clipped_high: Tensor
    """[N] bool: the high clip removed this token's gradient."""


def clipped(inputs: SurrogateInputs) -> SurrogateOutputs:
    """PPO's clipped objective: min(ρA, clip(ρ, 1 − low, 1 + high)A), optionally bounded for A < 0 (dual clip)."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    return _clip(ratio, inputs)


def sequence_clipped(inputs: SurrogateInputs) -> SurrogateOutputs:
    """GSPO eq. 5–7: one ratio per completion, the geometric mean of its tokens' ratios, clipped as a whole."""
    log_ratio = inputs.logprobs - inputs.old_logprobs
    # A row per completion: sums along rows have a fixed order, unlike those of index_add on a GPU.
    place = torch.arange(len(log_ratio), device=log_ratio.device)
    first = place.new_full((inputs.num_sequences,), len(log_ratio)).scatter_reduce(0, inputs.sequence, place, "amin")
    spots = inputs.sequence, place - first[inputs.sequence]
    counts = torch.bincount(inputs.sequence, minlength=inputs.num_sequences)
    rows = log_ratio.new_zeros(inputs.num_sequences, int(counts.max())).index_put(spots, log_ratio)
    means = rows.sum(1, keepdim=True) / counts[:, None].clamp(min=1)
    ratio = means.exp().expand_as(rows)[spots]
    return _clip(ratio, inputs)


def cispo(inputs: SurrogateInputs) -> SurrogateOutputs:
    """MiniMax-M1 eq. 4–5: the clipped ratio is a constant weight on A log π, so every token keeps a gradient."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp().detach()
    weight = ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateOutputs(-weight * inputs.advantages * inputs.logprobs, ratio, never, never)


def policy_gradient(inputs: SurrogateInputs) -> SurrogateOutputs:
    """REINFORCE: A log π, one on-policy pass, no ratio."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp().detach()
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateOutputs(-inputs.advantages * inputs.logprobs, ratio, never, never)


SURROGATES: dict[str, Callable[[SurrogateInputs], SurrogateOutputs]] = {
    "clipped": clipped,
    "sequence_clipped": sequence_clipped,
    "cispo": cispo,
    "policy_gradient": policy_gradient,
}


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda difference: difference,
    "k2": lambda difference: difference.square() / 2,
    # expm1 keeps k3 ≥ 0 near 0, where exp(−d) − 1 would round to a negative number.
    "k3": lambda difference: torch.expm1(-difference) + difference,
}
"""Schulman's estimators of the KL of the sampled token, from d = log π − log π_ref."""


def kl_estimate(estimator: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return a per-token estimate of KL(π ‖ π_ref) from the sampled token."""
    return KL_ESTIMATORS[estimator](logprobs - ref_logprobs)


def with_divergence(loss: Tensor, divergence: Tensor, coefficient: float) -> Tensor:
    """Return loss + β·KL. For β = ∞ return the limit of that divided by β: the divergence alone."""
    return divergence if math.isinf(coefficient) else loss + coefficient * divergence


IMPORTANCE: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda ratio, cap: torch.ones_like(ratio),
    "truncated": lambda ratio, cap: ratio.clamp(max=cap),
    "masked": lambda ratio, cap: torch.where((ratio <= cap) & (ratio >= 1 / cap), ratio, torch.zeros_like(ratio)),
}
"""Weights from the ratio π_old / π_engine and the cap."""


def importance_weights(mode: str, old_logprobs: Tensor, rollout_logprobs: Tensor, cap: float) -> Tensor:
    """Return π_old / π_engine per token, truncated or masked: corrects for an engine that differs from the trainer."""
    return IMPORTANCE[mode]((old_logprobs - rollout_logprobs).exp(), cap)


def _clip(ratio: Tensor, inputs: SurrogateInputs) -> SurrogateOutputs:
    advantages = inputs.advantages
    low, high = 1 - inputs.clip_low, 1 + inputs.clip_high
    loss = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    if inputs.dual_clip != float("inf"):
        bound = -inputs.dual_clip * advantages
        loss = torch.where(advantages < 0, torch.minimum(loss, bound), loss)
    detached = ratio.detach()
    return SurrogateOutputs(
        loss=loss,
        ratio=detached,
        is_clipped_low=(detached < low) & (advantages < 0),
        is_clipped_high=(detached > high) & (advantages > 0),
    )
