"""How far logprobs of the same tokens differ, and how much of that rounding explains."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Gap(NamedTuple):
    """Differences between two rows of logprobs, in nats per token."""

    mean: float
    largest: float

    def is_within(self, bound: Gap) -> bool:
        return self.mean <= bound.mean and self.largest <= bound.largest

    def __str__(self) -> str:
        return f"{self.mean:.2g} nats per token on average and {self.largest:.2g} at most"


def gap_between(ours: Tensor, theirs: Tensor) -> Gap:
    gaps = (ours - theirs).abs()
    return Gap(float(gaps.mean()), float(gaps.max()))


def rounding_gap(dtype: torch.dtype, device: torch.device, temperature: float = 1.0) -> Gap:
    """Return the largest gap that rounding explains."""
    # Rounding errors of logits are divided by the temperature like the logits.
    return Gap(*(limit / min(temperature, 1.0) for limit in _BOUNDS[dtype, device.type]))


SHARED_ROUNDING = Gap(1e-3, 0.3)
"""The largest gap in bf16 where the engine and the learner round alike (`Policy.rounds_like_native`). It has been 0."""

_BOUNDS = {
    (torch.float32, "cpu"): Gap(5e-5, 5e-4),
    (torch.float32, "cuda"): Gap(0.01, 0.3),
    (torch.bfloat16, "cpu"): Gap(0.1, 3.0),
    (torch.bfloat16, "cuda"): Gap(0.1, 3.0),
}
"""By dtype and device, at temperature 1.

fp32: 1e-7 on average with tiny models, 6e-6 to 9e-6 (3e-5 at most) with SmolLM2-135M and Qwen2.5-0.5B. On a GPU the
native engine has made 1.4e-4 on average with 12 small layers, probably because its attention multiplies in TF32, which
rounds an eighth as much as bf16. bf16: where kernels are not shared, the mean has been 0.04 (SmolLM2-135M, reference
engine), and single unlikely tokens may differ by a nat or more.
"""
