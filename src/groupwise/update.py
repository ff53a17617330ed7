"""One optimizer update: microbatches in, gradients added up, weights moved once. Shared by every kind of stage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from groupwise.algo.schedules import learning_rate as rate_at
from groupwise.config import OptimizerConfig
from groupwise.data.batch import Microbatch, Update
from groupwise.models.policy import Policy
from groupwise.types import UpdateStats


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """What a loss function says of each token of a microbatch."""

    loss: Tensor
    """[N], with gradient; weighted and divided by the update's denominator here, never there."""
    means: dict[str, Tensor] = field(default_factory=dict)
    """[N] each, detached: metrics whose mean over tokens is shown."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """[N] each, detached: metrics whose maximum over tokens is shown."""


LossFunction = Callable[[Tensor, Tensor, Microbatch], TokenLoss]
"""(logprobs [N] with gradient, entropies [N], microbatch) → TokenLoss."""


def update_policy(
    policy: Policy,
    update: Update,
    loss_function: LossFunction,
    *,
    temperature: float,
    learning_rate: float,
    max_tokens: int,
) -> UpdateStats:
    """A loss or gradient that is not finite leaves weights, optimizer and version as they were, and says so.

    So does an update with nothing to learn from (all groups dead), which is no fault and counts as finite.
    """
    if not update.examples:
        return UpdateStats(0.0, 0.0, True, learning_rate, 0)
    start = time.perf_counter()
    policy.clear_gradients()
    loss, num_tokens = 0.0, 0
    sums: dict[str, float] = {}
    maxima: dict[str, float] = {}
    with policy.training():
        for microbatch in policy.world.share(policy.microbatches(update.examples, update.token_weights, max_tokens)):
            logprobs, entropies = policy.logprobs(microbatch, temperature)
            terms = loss_function(logprobs, entropies, microbatch)
            weighted = (terms.loss * microbatch.weights).sum() / update.denominator
            policy.backward(weighted)
            loss += float(weighted.detach())
            num_tokens += microbatch.num_tokens
            for name, values in terms.means.items():
                sums[name] = sums.get(name, 0.0) + float(values.double().sum())
            for name, values in terms.maxima.items():
                maxima[name] = max(maxima.get(name, -math.inf), float(values.max()))
    loss, num_tokens, sums, maxima = _over_ranks(policy.world.gather((loss, num_tokens, sums, maxima)))
    if math.isfinite(loss):
        grad_norm, is_finite = policy.step(learning_rate)
    else:
        policy.clear_gradients()
        grad_norm, is_finite = math.nan, False
    means = {name: total / max(num_tokens, 1) for name, total in sums.items()}
    seconds = time.perf_counter() - start
    return UpdateStats(loss, grad_norm, is_finite, learning_rate, num_tokens, means | maxima, seconds)


Totals = tuple[float, int, dict[str, float], dict[str, float]]
"""Of some microbatches: loss, tokens, sums and maxima of the metrics."""


def _over_ranks(parts: Sequence[Totals]) -> Totals:
    if len(parts) == 1:
        return parts[0]
    sums: dict[str, float] = {}
    maxima: dict[str, float] = {}
    for _, _, part_sums, part_maxima in parts:
        for name, value in part_sums.items():
            sums[name] = sums.get(name, 0.0) + value
        for name, value in part_maxima.items():
            maxima[name] = max(maxima.get(name, -math.inf), value)
    return sum(part[0] for part in parts), sum(part[1] for part in parts), sums, maxima


def scheduled_rate(optimizer: OptimizerConfig, stage_step: int, total_steps: int) -> float:
    """The learning rate of a step of a stage."""
    return rate_at(
        stage_step,
        peak=optimizer.learning_rate,
        schedule=optimizer.schedule,
        warmup_steps=optimizer.warmup_steps,
        total_steps=total_steps,
        final_share=optimizer.final_share,
    )
