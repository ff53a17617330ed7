"""Weights that correct for rollouts from another policy than the one that learns.

Shapes: N completion tokens of a microbatch; S completions. Weights are constants: no gradient flows through them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from groupwise.algo.completions import Completions


def truncated(ratio: Tensor, floor: float, cap: float) -> Tensor:
    return ratio.clamp(max=cap)


def masked(ratio: Tensor, floor: float, cap: float) -> Tensor:
    return torch.where((ratio <= cap) & (ratio >= floor), ratio, torch.zeros_like(ratio))


def rejected(ratio: Tensor, floor: float, cap: float) -> Tensor:
    return ((ratio <= cap) & (ratio >= floor)).to(ratio.dtype)


IMPORTANCE: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "none": lambda ratio, floor, cap: torch.ones_like(ratio),
    "truncated": truncated,
    "masked": masked,
    "rejected": rejected,
}
"""Weight from the ratio π_old / π_engine, its lower and its upper bound."""

IMPORTANCE_LEVELS: dict[str, Callable[[Tensor, Completions], Tensor]] = {
    "token": lambda log_ratio, completions: log_ratio,
    "sequence": lambda log_ratio, completions: completions.spread(completions.sums(log_ratio)),
    "geometric": lambda log_ratio, completions: completions.spread(completions.means(log_ratio)),
}
"""Logarithm of the ratio [N] that a token is judged by: its own, its completion's, or the geometric mean of those."""


def off_policy(log_ratio: Tensor, advantages: Tensor, completions: Completions, limit: float) -> Tensor:
    """DeepSeek-V3.2 eq. 8–9: tokens [N] with A < 0 of completions whose mean of log(π_engine / π) exceeds the limit."""
    return (advantages < 0) & (completions.spread(completions.means(log_ratio)) > limit)
