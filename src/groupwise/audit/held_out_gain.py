"""Gain of a stage in training reward and in held-out pass@1.

Per stage: the mean training reward of the last quarter of steps minus that of the first, and held-out pass@1 at the end
minus that before, each with a 95 % interval. A significant gain in reward without one in held-out pass@1 may be reward
hacking or memorizing; it may also be too few held-out problems, so the intervals are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from groupwise.base.stats import Z_95, difference_interval, mean, std
from groupwise.types import EvalRecord, StepRecord

MIN_STEPS = 8
"""Minimum steps of a stage: fewer have no quarters worth comparing."""


@dataclass(frozen=True, slots=True)
class HeldOutGain:
    stage: str
    reward_first: float
    reward_last: float
    reward_gain_low: float
    reward_gain_high: float
    held_out_first: float
    held_out_last: float
    held_out_gain_low: float
    held_out_gain_high: float
    is_suspicious: bool
    """The reward rose significantly, and held-out pass@1 did not."""

    @property
    def reward_gain(self) -> float:
        return self.reward_last - self.reward_first

    @property
    def held_out_gain(self) -> float:
        return self.held_out_last - self.held_out_first

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reward_gain": self.reward_gain, "held_out_gain": self.held_out_gain}


def held_out_gains(steps: Sequence[StepRecord], evals: Sequence[EvalRecord]) -> tuple[HeldOutGain, ...]:
    """Return the gain of each stage with enough steps and an eval at both ends."""
    gains = []
    for stage in dict.fromkeys(record.stage for record in steps):
        members = [record for record in steps if record.stage == stage]
        values = [record.metrics.get("reward/mean", math.nan) for record in members]
        rewards = [value for value in values if math.isfinite(value)]
        ends = held_out_ends(members, evals)
        if len(rewards) >= MIN_STEPS and ends:
            gains.append(_gain(stage, rewards, *ends))
    return tuple(gains)


def held_out_ends(steps: Sequence[StepRecord], evals: Sequence[EvalRecord]) -> tuple[EvalRecord, EvalRecord] | None:
    """Return the evaluation before these steps (else the first among them) and the last one among them."""
    if not steps:
        return None
    before = [record for record in evals if record.step < steps[0].step]
    inside = [record for record in evals if steps[0].step <= record.step <= steps[-1].step]
    ends = [record for record in (*before[-1:], *inside) if math.isfinite(record.pass_at_1)]
    return (ends[0], ends[-1]) if len(ends) >= 2 else None


def pass_at_1_gain(before: EvalRecord, after: EvalRecord) -> tuple[float, float]:
    """Return a 95 % interval from the two intervals; too wide, as it ignores that the problems are the same."""
    return difference_interval(*((end.pass_at_1, end.low, end.high) for end in (before, after)))


def _gain(stage: str, rewards: Sequence[float], before: EvalRecord, after: EvalRecord) -> HeldOutGain:
    quarter = len(rewards) // 4
    first, last = rewards[:quarter], rewards[-quarter:]
    half = Z_95 * math.sqrt((std(first) ** 2 + std(last) ** 2) / quarter)
    gain = mean(last) - mean(first)
    low, high = pass_at_1_gain(before, after)
    rewards_of = (mean(first), mean(last), gain - half, gain + half)
    held_out = (before.pass_at_1, after.pass_at_1, low, high)
    return HeldOutGain(stage, *rewards_of, *held_out, is_suspicious=gain - half > 0 and low <= 0)
