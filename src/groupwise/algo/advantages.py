"""Advantages from rewards: how much better a rollout is than those it is compared with.

Shapes: G rollouts of one group (groups may differ in size), T tokens of one completion.
Only rollouts with a valid score are passed in; callers leave errors out, so these change no mean.
Everything is float64: groups are small, and equal rewards must give exactly equal advantages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

# Below this standard deviation, rewards are equal up to rounding. Keeps the division finite.
EPSILON = 1e-6


def group_mean_std(rewards: Sequence[Tensor]) -> list[Tensor]:
    """GRPO: (r − mean) / std within the group. The variance is divided by G, not G − 1."""
    return [_centered(group) / (_std(group) + EPSILON) for group in rewards]


def group_mean(rewards: Sequence[Tensor]) -> list[Tensor]:
    """Dr. GRPO: r − mean within the group; no std, so hard and easy problems weigh the same."""
    return [_centered(group) for group in rewards]


def group_mean_relative(rewards: Sequence[Tensor]) -> list[Tensor]:
    """MaxRL: (r − mean) / mean within the group, so a problem weighs more the fewer rollouts solve it.

    Rewards are meant to be at least 0. The divisor is the mean of |r|, which is then the mean; with negative rewards it
    keeps advantages within ±(G + 1) where the mean is near 0. A group without any reward gets 0.
    """
    return [_centered(group) / (group.abs().mean() + EPSILON) for group in rewards]


def leave_one_out(rewards: Sequence[Tensor]) -> list[Tensor]:
    """RLOO: r minus the mean of the others. A group of one has no others and gets 0."""
    return [_centered(group) * len(group) / max(len(group) - 1, 1) for group in rewards]


def group_mean_batch_std(rewards: Sequence[Tensor]) -> list[Tensor]:
    """REINFORCE++ with baseline: r − group mean, divided by the std of that over the whole batch."""
    return over_batch_std([_centered(group) for group in rewards])


def over_batch_std(advantages: Sequence[Tensor]) -> list[Tensor]:
    """GDPO: divide by the standard deviation over the whole batch.

    Group rules give each group a mean of 0, so that of the batch is 0 as well and need not be subtracted.
    """
    if not advantages:
        return []
    scale = _std(torch.cat(list(advantages))) + EPSILON
    return [group / scale for group in advantages]


GROUP_RULES: dict[str, Callable[[Sequence[Tensor]], list[Tensor]]] = {
    "group_mean_std": group_mean_std,
    "group_mean": group_mean,
    "group_mean_relative": group_mean_relative,
    "leave_one_out": leave_one_out,
    "group_mean_batch_std": group_mean_batch_std,
}
"""Rules that give one advantage per rollout."""


def batch_mean_std(returns_T: Sequence[Tensor]) -> list[Tensor]:
    """REINFORCE++: returns of all tokens of the batch, normalized to mean 0 and std 1 over those tokens."""
    if not returns_T:
        return []
    tokens = torch.cat(list(returns_T))
    mean, scale = tokens.mean(), _std(tokens) + EPSILON
    return [(returns - mean) / scale for returns in returns_T]


def optimal_token(returns_T: Sequence[Tensor], logprobs_T: Sequence[Tensor]) -> list[Tensor]:
    """OTB: the returns of one group minus, at each position t, their mean with weights W_t.

    W_t is the sum of 1 − π(token) up to t, whose mean at a prefix is that of the squared gradient of log π by the
    logits. Completions that have ended are left out; one that is alone gets 0.
    """
    returns = pad_sequence(list(returns_T), batch_first=True)
    is_there = pad_sequence([torch.ones_like(row) for row in returns_T], batch_first=True).bool()
    spent = pad_sequence([(1 - row.double().exp()).clamp(min=0) for row in logprobs_T], batch_first=True)
    weights = (spent.cumsum(1) + EPSILON) * is_there
    # Relative to the smallest, so that equal returns give exactly 0.
    above = (returns - returns.masked_fill(~is_there, math.inf).amin(0)) * is_there
    advantages = above - (weights * above).sum(0) / weights.sum(0)
    return [row[: len(own)] for row, own in zip(advantages, returns_T, strict=True)]


def returns_to_go(reward: float, penalties_T: Tensor) -> Tensor:
    """Return the return of each token: the reward, which comes with the last token, minus all penalties from t on."""
    to_go = penalties_T.double().flip(0).cumsum(0).flip(0)
    return reward - to_go


def soft_length_penalty(length: int, max_length: int, buffer: int, penalty: float) -> float:
    """DAPO eq. 13: 0 up to max_length − buffer, then linear down to −penalty at max_length."""
    over = length - (max_length - buffer)
    return -penalty * min(max(over / buffer, 0.0), 1.0) if buffer > 0 else 0.0


def _centered(group: Tensor) -> Tensor:
    return group - group.mean()


def _std(values: Tensor) -> Tensor:
    return values.std(correction=0)
