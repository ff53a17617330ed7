"""Named algorithms: each one is a choice of (advantage, surrogate, weights, KL), and nothing else.

A preset only fills in defaults: a key written in the recipe wins. docs/explanation/algorithms.md names each paper and
the departures from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def _loss(advantage: str, surrogate: str, weights: str, **others: float) -> dict[str, Any]:
    return {"advantage": advantage, "surrogate": surrogate, "weights": weights, **others}


ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {
        "loss": _loss("group_mean_std", "clipped", "sequence_mean"),
        "kl": {"coefficient": 0.04, "estimator": "k3", "place": "loss"},
    },
    "dr_grpo": {"loss": _loss("group_mean", "clipped", "constant")},
    "dapo": {
        "loss": _loss("group_mean_std", "clipped", "token_mean", clip_low=0.2, clip_high=0.28),
        "reward": {"overlong_filter": True, "overlong_buffer_share": 0.2},
        "refill_rounds": 4,
    },
    "gspo": {"loss": _loss("group_mean_std", "sequence_clipped", "sequence_mean", clip_low=3e-4, clip_high=4e-4)},
    "cispo": {"loss": _loss("group_mean_std", "cispo", "token_mean", clip_low=math.inf, clip_high=4.0)},
    "rloo": {
        "loss": _loss("leave_one_out", "policy_gradient", "sequence_sum"),
        "kl": {"coefficient": 0.03, "estimator": "k1", "place": "reward"},
    },
    "reinforce++": {
        "loss": _loss("batch_mean_std", "clipped", "token_mean"),
        "kl": {"coefficient": 0.01, "estimator": "k1", "place": "reward"},
    },
    "gdpo": {
        "loss": _loss("group_mean_std", "clipped", "sequence_mean", normalize_batch=True),
        "reward": {"normalize_parts": True},
    },
    "maxrl": {"loss": _loss("group_mean_relative", "clipped", "token_mean")},
    "luspo": {"loss": _loss("group_mean_std", "sequence_clipped", "sequence_sum", clip_low=3e-4, clip_high=4e-4)},
    "gmpo": {"loss": _loss("group_mean_std", "geometric_mean", "sequence_mean", clip_low=0.4, clip_high=0.4)},
    "sapo": {
        "loss": _loss("group_mean_std", "soft_gate", "sequence_mean", gate_positive=1.0, gate_negative=1.05),
    },
    "dppo": {"loss": _loss("group_mean_std", "probability_masked", "token_mean", clip_low=0.2, clip_high=0.2)},
    "clip_cov": {
        "loss": _loss("group_mean_std", "clipped", "token_mean"),
        "entropy": {"covariance_share": 2e-4, "covariance_low": 1.0, "covariance_high": 5.0},
    },
    "kl_cov": {
        "loss": _loss("group_mean_std", "clipped", "token_mean", clip_low=math.inf, clip_high=math.inf, pull=0.5),
        "entropy": {"pull_share": 2e-3},
    },
    "otb": {"loss": _loss("optimal_token", "clipped", "constant")},
    "gr_reinforce": {"loss": _loss("group_mean_std", "policy_gradient", "sequence_mean")},
}

ENGINE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    # vLLM has other kernels than the trainer, so its probabilities differ a little from the policy's.
    "vllm": {"loss": {"importance": "truncated"}},
}
"""Defaults of an RL stage that depend on the engine; the algorithm's preset and the recipe win."""

SUMMARIES: Mapping[str, str] = {
    "sft": "imitate demonstrations; loss on the completion only",
    "grpo": "group mean and std, clipped ratio, mean per completion, k3 estimate of the KL in the loss (DeepSeekMath)",
    "dr_grpo": "group mean without std, constant length: no bias toward long answers or easy problems (Dr. GRPO)",
    "dapo": "token mean, clip-higher, resampling of zero-variance groups, overlong filter and soft penalty (DAPO)",
    "gspo": "one clipped ratio per completion (GSPO)",
    "cispo": "clipped importance weight on the log-likelihood; no token loses its gradient (MiniMax-M1)",
    "rloo": "leave-one-out baseline, sequence log-likelihood, KL in the reward (RLOO)",
    "reinforce++": "reward-to-go with the KL in the reward, normalized over the whole batch (REINFORCE++)",
    "gdpo": "group mean and std of each part of the reward, their weighted sum normalized over the batch (GDPO)",
    "maxrl": "group mean, divided by the group mean: the fewer rollouts solve a problem, the more it weighs (MaxRL)",
    "luspo": "GSPO without the division by the length, so that long completions weigh as much per token (LUSPO)",
    "gmpo": "one ratio per completion, the geometric mean of token ratios that are clipped one by one (GMPO)",
    "sapo": "a soft gate on the ratio instead of a clip; it closes sooner for negative advantages (SAPO)",
    "dppo": "tokens are dropped by how far their probability moved, not by its ratio (DPPO)",
    "clip_cov": "GRPO with a token mean, without a few tokens whose logprob and advantage vary together (Clip-Cov)",
    "kl_cov": "no clip; the few tokens whose logprob and advantage vary together most are pulled back (KL-Cov)",
    "otb": "a baseline per token, from completions weighted by the gradient they have spent so far (OTB)",
    "gr_reinforce": "one on-policy update, mean token logprob per completion, no ratio and no clipping",
}
