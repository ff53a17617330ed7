"""The loss of an RL stage per token: surrogate × importance weight + β·KL, and the metrics of its parts.

The parts are pure functions of `groupwise.algo` that the stage names. Nothing is averaged here: `update_policy` weights
the tokens and divides by the update's denominator.
"""

from __future__ import annotations

from torch import Tensor

from groupwise.algo.losses import (
    KL_ESTIMATORS,
    SURROGATES,
    SurrogateInputs,
    importance_weights,
    kl_estimate,
    with_divergence,
)
from groupwise.config import RlStage
from groupwise.data.batch import Microbatch
from groupwise.training.update import LossFunction, TokenLoss


def policy_loss(stage: RlStage, beta: float) -> LossFunction:
    """Return the stage's loss function, with the KL coefficient of the step."""
    config = stage.loss

    def token_loss(logprobs: Tensor, entropies: Tensor, microbatch: Microbatch) -> TokenLoss:
        assert microbatch.advantages is not None
        assert microbatch.rollout_logprobs is not None
        now = logprobs.detach()
        # With one update per step the old policy is the current one, and the ratio is exactly 1.
        old = now if microbatch.old_logprobs is None else microbatch.old_logprobs
        surrogate = SURROGATES[config.surrogate](
            SurrogateInputs(
                logprobs=logprobs,
                old_logprobs=old,
                advantages=microbatch.advantages,
                sequence=microbatch.sequence,
                num_sequences=microbatch.num_sequences,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                dual_clip=config.dual_clip,
            )
        )
        importance = importance_weights(config.importance, old, microbatch.rollout_logprobs, config.importance_cap)
        loss = surrogate.loss * importance
        gap = (old - microbatch.rollout_logprobs).abs()
        means = {
            "policy/entropy_nats": entropies,
            "policy/ratio_mean": surrogate.ratio,
            "policy/clip_low_share": surrogate.is_clipped_low,
            "policy/clip_high_share": surrogate.is_clipped_high,
            "policy/clip_share": surrogate.is_clipped_low | surrogate.is_clipped_high,
            "policy/approx_kl": kl_estimate("k3", old, now),
            "policy/importance_weight_mean": importance,
            "engine/logprob_gap_mean": gap,
        }
        if microbatch.ref_logprobs is not None:
            for estimator in KL_ESTIMATORS:
                means[f"kl/ref_{estimator}"] = kl_estimate(estimator, now, microbatch.ref_logprobs)
            if stage.kl.place == "loss":
                divergence = kl_estimate(stage.kl.estimator, logprobs, microbatch.ref_logprobs)
                loss = with_divergence(loss, divergence, beta)
        return TokenLoss(loss, means, {"policy/ratio_max": surrogate.ratio, "engine/logprob_gap_max": gap})

    return token_loss
