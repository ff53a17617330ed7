"""One optimizer update: sum gradients over microbatches, then move the weights once. Used by every kind of stage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from groupwise.config import OptimizerConfig
from groupwise.data.batch import Microbatch, Update
from groupwise.models.policy import Measured, Policy
from groupwise.types import UpdateStats

LOSS = "policy/loss"


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A loss function's result for each token of a microbatch."""

    loss: Tensor
    """[N], with gradient. `update_policy` weights it and divides by the denominator, never the loss function."""
    means: dict[str, Tensor] = field(default_factory=dict)
    """[N] each: metrics that are averaged over tokens, without gradient."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """[N] each: metrics whose maximum over tokens is taken."""


LossFunction = Callable[[Measured, Microbatch], TokenLoss]


def update_policy(
    policy: Policy,
    update: Update,
    loss_function: LossFunction,
    *,
    temperature: float,
    learning_rate: float,
    max_tokens: int,
) -> UpdateStats:
    """Update the policy once.

    If the loss or gradient is not finite, weights, optimizer and version are unchanged and the result says so. An
    update with nothing to learn from (only zero-variance groups) changes nothing either, but counts as finite.
    """
    if not update.examples:
        return UpdateStats(0.0, 0.0, True, learning_rate, 0)
    start = time.perf_counter()
    policy.optimizer.begin_gradients()
    totals = Totals()
    with policy.training():
        microbatches = policy.microbatches(update.examples, update.token_weights, max_tokens)
        for microbatch, counts in policy.world.in_step(microbatches):
            measured = policy.logprobs(microbatch, temperature)
            if not counts:  # padding: another rank has one more, and all ranks run the same number of passes
                policy.backward((measured.logprobs * 0).sum())
                continue
            terms = loss_function(measured, microbatch)
            weighted = (terms.loss * microbatch.weights).sum() / update.denominator
            policy.backward(weighted)
            totals.add(weighted.detach(), terms, microbatch.num_tokens)
    num_tokens, sums, maxima = _over_ranks(policy.world.gather(totals.read()))
    loss = sums.pop(LOSS, 0.0)
    if math.isfinite(loss):
        grad_norm, is_finite = policy.step(learning_rate)
    else:
        policy.optimizer.clear_gradients()
        grad_norm, is_finite = math.nan, False
    means = {name: total / max(num_tokens, 1) for name, total in sums.items()}
    seconds = time.perf_counter() - start
    return UpdateStats(loss, grad_norm, is_finite, learning_rate, num_tokens, means | maxima, seconds)


Read = tuple[int, dict[str, float], dict[str, float]]
"""Tokens, sums and maxima of some microbatches. The loss is one of the sums."""


class Totals:
    """Sums on the model's device, read once at the end: reading waits for the GPU."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, loss: Tensor, terms: TokenLoss, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        for name, values in {LOSS: loss, **terms.means}.items():
            total = values.detach().double().sum()
            self._sums[name] = self._sums[name] + total if name in self._sums else total
        for name, values in terms.maxima.items():
            most = values.max().double()
            self._maxima[name] = torch.maximum(self._maxima[name], most) if name in self._maxima else most

    def read(self) -> Read:
        if not self._sums:
            return 0, {}, {}
        values = torch.stack([*self._sums.values(), *self._maxima.values()]).tolist()
        count = len(self._sums)
        sums = dict(zip(self._sums, values[:count], strict=True))
        return self._num_tokens, sums, dict(zip(self._maxima, values[count:], strict=True))


def _over_ranks(parts: Sequence[Read]) -> Read:
    if len(parts) == 1:
        return parts[0]
    sums: dict[str, float] = {}
    maxima: dict[str, float] = {}
    for _, part_sums, part_maxima in parts:
        for name, value in part_sums.items():
            sums[name] = sums.get(name, 0.0) + value
        for name, value in part_maxima.items():
            maxima[name] = max(maxima.get(name, -math.inf), value)
    return sum(part[0] for part in parts), sums, maxima


def scheduled_rate(optimizer: OptimizerConfig, stage_step: int, total_steps: int) -> float:
    """Return the learning rate: a linear warm-up to the peak, then constant, or linear or cosine decay to the end."""
    peak, warmup_steps = optimizer.learning_rate, optimizer.warmup_steps
    if stage_step < warmup_steps:
        return peak * (stage_step + 1) / warmup_steps
    if optimizer.schedule == "constant":
        return peak
    # The last step has the final value. A single step after the warm-up keeps the peak.
    progress = (stage_step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1)
    fall = 1 - progress if optimizer.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (optimizer.final_share + (1 - optimizer.final_share) * fall)
