"""Coefficients as functions of the step; steps count from 0."""

from __future__ import annotations

import math


def learning_rate(
    step: int, *, peak: float, schedule: str, warmup_steps: int, total_steps: int, final_share: float
) -> float:
    """Return the rate: linear warm-up to the peak, then constant, or linear or cosine down to final_share of it."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    # The last step has the final value. A single step after the warm-up keeps the peak.
    progress = (step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1)
    fall = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (final_share + (1 - final_share) * fall)


def kl_coefficient(step: int, *, coefficient: float, schedule: str, schedule_steps: int) -> float:
    """Return the coefficient of an open-loop schedule. For "target" see `seek_target`, which needs the KL."""
    if schedule == "warmup":
        return coefficient * min((step + 1) / schedule_steps, 1.0)
    if schedule == "anneal":
        return coefficient * max(1 - step / schedule_steps, 0.0)
    return coefficient


def seek_target(coefficient: float, kl: float, *, target: float, schedule_steps: int) -> float:
    """Do one step of the proportional controller of Ziegler et al. (2019), with its relative error clipped to ±0.2.

    The gain makes a KL far above the target multiply the coefficient by about e in schedule_steps.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coefficient * math.exp(error / 0.2 / schedule_steps)


def falling(step: int, over_steps: int) -> float:
    """Return 1 at step 0, falling linearly to 0 at over_steps; always 1 if over_steps is 0."""
    return 1.0 if over_steps == 0 else max(1 - step / over_steps, 0.0)
