"""Which tokens of a step count, by their entropy or by how their logprobs and advantages vary together.

Shapes: N completion tokens of a step. Choices are [N] bool.
"""

from __future__ import annotations

import torch
from torch import Tensor


def largest(values: Tensor, share: float) -> Tensor:
    """Choose this share of the tokens, at least one: those with the largest values, and of equal ones the first."""
    return _chosen(values, values.argsort(descending=True, stable=True), share)


def covariances(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Cui et al. eq. 10: (log π − mean)(A − mean). Where it is large, learning lowers the entropy most."""
    logprobs, advantages = logprobs.double(), advantages.double()
    return (logprobs - logprobs.mean()) * (advantages - advantages.mean())


def drawn_between(values: Tensor, low: float, high: float, share: float, seed: int) -> Tensor:
    """Clip-Cov: draw this share of all tokens, at least one, from those with a value from low to high."""
    inside = ((values >= low) & (values <= high)).nonzero()[:, 0]
    order = torch.randperm(len(inside), generator=torch.Generator().manual_seed(seed))
    return _chosen(values, inside[order], share)


def _chosen(values: Tensor, order: Tensor, share: float) -> Tensor:
    chosen = torch.zeros(len(values), dtype=torch.bool)
    chosen[order[: max(round(share * len(values)), 1)]] = True
    return chosen
