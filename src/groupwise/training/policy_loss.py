"""The loss of an RL stage per token, and the metrics of its parts:

    surrogate × rollout weight + τ·pull − bonus·entropy + balance·imbalance + β·KL

The parts are pure functions of `groupwise.algo` that the stage names. Nothing is averaged here: `update_policy` weights
the tokens and divides by the update's denominator.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from groupwise.algo.completions import Completions
from groupwise.algo.importance import IMPORTANCE, IMPORTANCE_LEVELS, off_policy
from groupwise.algo.losses import (
    KL_ESTIMATORS,
    SURROGATES,
    SurrogateInputs,
    kl_estimate,
    pull,
    with_divergence,
)
from groupwise.config import LossConfig, RlStage
from groupwise.data.batch import Microbatch
from groupwise.models.policy import Measured
from groupwise.training.update import LossFunction, TokenLoss


def policy_loss(stage: RlStage, beta: float, bonus: float = 0.0) -> LossFunction:
    """Return the stage's loss function, with the KL coefficient and the entropy bonus of the step."""
    config = stage.loss

    def token_loss(measured: Measured, microbatch: Microbatch) -> TokenLoss:
        logprobs, entropies, imbalance = measured
        assert microbatch.advantages is not None
        assert microbatch.rollout_logprobs is not None
        now = logprobs.detach()
        # With one update per step the old policy is the current one, and the ratio is exactly 1.
        old = now if microbatch.old_logprobs is None else microbatch.old_logprobs
        completions = Completions(microbatch.sequence, microbatch.lengths)
        surrogate = SURROGATES[config.surrogate](
            SurrogateInputs(
                logprobs=logprobs,
                old_logprobs=old,
                advantages=microbatch.advantages,
                completions=completions,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                dual_clip=config.dual_clip,
                gate_positive=config.gate_positive,
                gate_negative=config.gate_negative,
            )
        )
        weight, weight_means = rollout_weights(config, now, old, microbatch, completions)
        loss = surrogate.loss * weight
        gap = (old - microbatch.rollout_logprobs).abs()
        means = {
            "policy/entropy_nats": entropies,
            "policy/ratio_mean": surrogate.ratio,
            "policy/clip_low_share": surrogate.is_clipped_low,
            "policy/clip_high_share": surrogate.is_clipped_high,
            "policy/clip_share": surrogate.is_clipped_low | surrogate.is_clipped_high,
            "policy/approx_kl": kl_estimate("k3", old, now),
            **weight_means,
            "engine/logprob_gap_mean": gap,
        }
        if microbatch.learned_tokens is not None:
            loss = loss * microbatch.learned_tokens
            means["policy/learned_share"] = microbatch.learned_tokens
        if config.pull > 0:
            is_pulled = 1 if microbatch.pulled_tokens is None else microbatch.pulled_tokens
            loss = loss + config.pull * is_pulled * pull(logprobs, old)
        if bonus > 0:
            loss = loss - bonus * entropies
            means["policy/entropy_bonus"] = torch.full_like(now, bonus)
        if imbalance is not None:
            loss = loss + config.router_balance * imbalance
            means["policy/router_imbalance"] = imbalance
        if microbatch.ref_logprobs is not None:
            for estimator in KL_ESTIMATORS:
                means[f"kl/ref_{estimator}"] = kl_estimate(estimator, now, microbatch.ref_logprobs)
            if stage.kl.place == "loss":
                divergence = kl_estimate(stage.kl.estimator, logprobs, microbatch.ref_logprobs)
                if stage.kl.unbiased:
                    divergence = divergence * (logprobs - old).exp()
                loss = with_divergence(loss, divergence, beta)
        return TokenLoss(loss, means, {"policy/ratio_max": surrogate.ratio, "engine/logprob_gap_max": gap})

    return token_loss


def rollout_weights(
    config: LossConfig, now: Tensor, old: Tensor, microbatch: Microbatch, completions: Completions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return each token's weight in the surrogate, for rollouts of another policy than this one, and its metrics."""
    assert microbatch.advantages is not None
    assert microbatch.rollout_logprobs is not None
    floor, cap = config.importance_floor or 1 / config.importance_cap, config.importance_cap
    ratio = IMPORTANCE_LEVELS[config.importance_level](old - microbatch.rollout_logprobs, completions).exp()
    weight = IMPORTANCE[config.importance](ratio, floor, cap)
    means = {"policy/importance_weight_mean": weight}
    if config.importance != "none":
        means["policy/importance_zero_share"] = weight == 0
    if math.isfinite(config.off_policy_mask):
        log_ratio = microbatch.rollout_logprobs - now
        is_off = off_policy(log_ratio, microbatch.advantages, completions, config.off_policy_mask)
        weight = weight * ~is_off
        means["policy/off_policy_share"] = is_off
    return weight, means
