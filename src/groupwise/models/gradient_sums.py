"""Sums of gradients in fp32 that a backward pass of our own adds to directly, instead of handing autograd a gradient.

The optimizer offers a sum for each weight at the start of an update and withdraws them all at its end. The policy makes
one `GradientSums` and passes it to the optimizer, the output head and the layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class GradientSums:
    def __init__(self) -> None:
        self._sums: dict[Tensor, Tensor] = {}
        self._stay = False

    def offer(self, weights: Sequence[Tensor], sums: Sequence[Tensor], *, stay: bool) -> None:
        """Offer a sum for each weight. `stay`: they keep their addresses from update to update."""
        self._sums = dict(zip(weights, sums, strict=True))
        self._stay = stay

    def withdraw(self) -> None:
        self._sums = {}

    def of(self, weight: Tensor) -> Tensor | None:
        return self._sums.get(weight)

    def stays(self, weight: Tensor) -> bool:
        """Whether the weight's sum may be recorded in a CUDA graph, which holds addresses."""
        return self._stay and weight in self._sums
