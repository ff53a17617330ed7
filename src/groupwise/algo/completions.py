"""Sums over the tokens of each completion of a microbatch, which holds every completion whole.

Shapes: N completion tokens of a microbatch, back to back; S completions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Completions:
    sequence: Tensor
    """[N] long: index of the token's completion, ascending."""
    lengths: tuple[int, ...]
    """Number of tokens of each completion."""

    def sums(self, values: Tensor) -> Tensor:
        """Return [S, 1] from [N]. Sums along rows have a fixed order, unlike those of index_add on a GPU."""
        rows = values.new_zeros(len(self.lengths), max(self.lengths)).index_put(self._cells, values)
        return rows.sum(1, keepdim=True)

    def means(self, values: Tensor) -> Tensor:
        """Return [S, 1] from [N]. The mean of a completion without tokens is 0."""
        return self.sums(values) / self._counts[:, None].clamp(min=1)

    def spread(self, per_completion: Tensor) -> Tensor:
        """Return [N] from [S, 1]: to each token the value of its completion."""
        return per_completion.expand(len(self.lengths), max(self.lengths))[self._cells]

    @cached_property
    def _counts(self) -> Tensor:
        return torch.tensor(self.lengths, device=self.sequence.device)

    @cached_property
    def _cells(self) -> tuple[Tensor, Tensor]:
        """Row and column of each token, with a row per completion."""
        starts = self._counts.cumsum(0) - self._counts
        places = torch.arange(len(self.sequence), device=self.sequence.device)
        return self.sequence, places - starts[self.sequence]
