"""Surrogates, the pull to the old policy and KL estimators: per-token functions whose weighted sum is the loss.

Shapes: N completion tokens of a microbatch, back to back.
Signs: an objective to maximize is returned as a loss to minimize. Nothing is averaged here. The batch's weights and one
denominator for the whole update do that, so the gradient does not depend on how the batch was split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.algo.completions import Completions


@dataclass(frozen=True, slots=True)
class SurrogateInputs:
    logprobs: Tensor
    """[N], with gradient."""
    old_logprobs: Tensor
    """[N], constant."""
    advantages: Tensor
    """[N], constant."""
    completions: Completions
    clip_low: float
    clip_high: float
    dual_clip: float
    gate_positive: float
    gate_negative: float


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
    completions = inputs.completions
    means = completions.means(inputs.logprobs - inputs.old_logprobs)
    return _clip(completions.spread(means.exp()), inputs)


def probability_masked(inputs: SurrogateInputs) -> SurrogateOutputs:
    """DPPO's binary total variation: ρA, without tokens whose probability moved too far in the direction of A."""
    now, old = inputs.logprobs.detach(), inputs.old_logprobs
    moved = now.exp() - old.exp()
    is_low = (moved < -inputs.clip_low) & (inputs.advantages < 0)
    is_high = (moved > inputs.clip_high) & (inputs.advantages > 0)
    ratio = torch.where(is_low | is_high, torch.zeros_like(now), (inputs.logprobs - old).exp())
    return SurrogateOutputs(-ratio * inputs.advantages, (now - old).exp(), is_low, is_high)


def soft_gate(inputs: SurrogateInputs) -> SurrogateOutputs:
    """SAPO eq. 5–6: 4/τ·σ(τ(ρ − 1))·A. The gradient fades with the distance of ρ from 1, and no token is clipped."""
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    tau = torch.where(inputs.advantages > 0, inputs.gate_positive, inputs.gate_negative)
    gate = 4 / tau * torch.sigmoid(tau * (ratio - 1))
    never = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateOutputs(-gate * inputs.advantages, ratio.detach(), never, never)


def geometric_mean(inputs: SurrogateInputs) -> SurrogateOutputs:
    """GMPO eq. 4: one ratio per completion, the geometric mean of its tokens' ratios, each clipped by itself before.

    The clip is in log space, on the side that A allows: log ρ ≤ high for A > 0, log ρ ≥ −low for A < 0.
    """
    log_ratio, completions = inputs.logprobs - inputs.old_logprobs, inputs.completions
    is_low = (log_ratio < -inputs.clip_low) & (inputs.advantages < 0)
    is_high = (log_ratio > inputs.clip_high) & (inputs.advantages > 0)
    clipped_ratio = torch.where(
        is_low | is_high, log_ratio.detach().clamp(-inputs.clip_low, inputs.clip_high), log_ratio
    )
    mean = completions.spread(completions.means(clipped_ratio).exp())
    return SurrogateOutputs(-mean * inputs.advantages, log_ratio.detach().exp(), is_low, is_high)


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
    "probability_masked": probability_masked,
    "soft_gate": soft_gate,
    "geometric_mean": geometric_mean,
    "cispo": cispo,
    "policy_gradient": policy_gradient,
}


def pull(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Kimi K2.5: (log π/π_old)² [N], which draws each token's probability back to where the step began."""
    return (logprobs - old_logprobs).square()


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


def router_imbalance(logits: Tensor, num_chosen: int, completions: Completions) -> Tensor:
    """Return a value per token [N] from the logits [N, E] of one layer's router: Switch Transformers eq. 4–6.

    Its mean over a completion is E · Σ_i f_i P_i, with the share f_i of the completion's tokens that choose expert i
    and the mean P_i of its probability. A balanced router has `num_chosen`, the experts that each token chooses.
    Summed over a completion and not over a batch, it depends on neither microbatches nor ranks.
    """
    p = logits.float().softmax(dim=-1)
    rows = completions.sequence
    # Whole numbers, whose sum is the same in any order.
    counts = p.new_zeros(len(completions.lengths), p.shape[1])
    counts.index_put_((rows[:, None], p.topk(num_chosen, dim=-1).indices), p.new_ones(()), accumulate=True)
    shares = num_chosen * counts / counts.sum(dim=1, keepdim=True)
    return p.shape[1] * (shares[rows] * p).sum(dim=1)


def with_divergence(loss: Tensor, divergence: Tensor, coefficient: float) -> Tensor:
    """Return loss + β·KL. For β = ∞ return the limit of that divided by β: the divergence alone."""
    return divergence if math.isinf(coefficient) else loss + coefficient * divergence


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
