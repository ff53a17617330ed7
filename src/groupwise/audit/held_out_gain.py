"""Gain of a stage in training reward and in held-out pass@1, and a warning when only the reward rose.

Per stage: the mean training reward of the last quarter of its steps minus that of the first quarter, and held-out
pass@1 at its end minus that before it, each with a 95 % interval. A reward that rose while held-out pass@1 may not have
is what reward hacking and memorizing look like. Too few held-out problems look the same, which is why the intervals are
shown.

Training rewards are of sampled completions. Against a greedy held-out score their gain says little: sampling that gets
sharper raises them and leaves the greedy answers unchanged. A reward that was earned by right answers is then
suspicious only when the policy ends up right more often on training problems than on held-out ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from groupwise.base.stats import Z_95, difference_interval, mean, std
from groupwise.base.text_layout import percent, points
from groupwise.runs.reader import Run
from groupwise.runs.records import by_stage
from groupwise.runs.writer import RunLog
from groupwise.types import EvalRecord, StepRecord

logger = logging.getLogger(__name__)

SUSPICIOUS = "The reward rose, but held-out pass@1 may not have."
"""What to say of a suspicious gain."""

MIN_STEPS = 8
"""With fewer, quarters of the steps are not worth comparing."""
MIN_GAIN = 0.02
"""A reward that rose by less is not worth a warning."""
EARNED_SHARE = 0.25
"""The reward was earned by right answers when training pass@1 gained at least this share of what the reward gained."""


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
    """The reward rose, and held-out pass@1 may not have; see the module for greedy evaluations."""

    @property
    def reward_gain(self) -> float:
        return self.reward_last - self.reward_first

    @property
    def held_out_gain(self) -> float:
        return self.held_out_last - self.held_out_first

    def sentence(self) -> str:
        return (
            f"Stage {self.stage}: reward {self.reward_first:.3f} → {self.reward_last:.3f} (gain "
            f"{self.reward_gain_low:+.3f} to {self.reward_gain_high:+.3f}), held-out pass@1 "
            f"{percent(self.held_out_first)} → {percent(self.held_out_last)} (gain {points(self.held_out_gain_low)} to "
            f"{points(self.held_out_gain_high)} points)."
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reward_gain": self.reward_gain, "held_out_gain": self.held_out_gain}


def evaluates_greedily(recipe: Mapping[str, Any]) -> bool:
    """Return whether a run's held-out completions are greedy, which is the default."""
    return not recipe.get("evaluation", {}).get("temperature", 0.0)


def held_out_gains(
    steps: Sequence[StepRecord], evals: Sequence[EvalRecord], is_greedy: bool = True
) -> tuple[HeldOutGain, ...]:
    """Return one gain for each stage with enough steps and an eval at both ends; other stages are left out."""
    gains = []
    for stage, members in by_stage(steps).items():
        rewards, passes = (_quarters(members, name) for name in ("reward/mean", "score/pass_at_1"))
        ends = held_out_ends(members, evals)
        if rewards and ends:
            gains.append(_gain(stage, rewards, passes, *ends, is_greedy))
    return tuple(gains)


def held_out_ends(steps: Sequence[StepRecord], evals: Sequence[EvalRecord]) -> tuple[EvalRecord, EvalRecord] | None:
    """Return the evaluation before these steps (else the first among them) and the last one among them."""
    ends = [record for record in evals_around(steps, evals) if math.isfinite(record.pass_at_1)]
    return (ends[0], ends[-1]) if len(ends) >= 2 else None


def evals_around(steps: Sequence[StepRecord], evals: Sequence[EvalRecord]) -> list[EvalRecord]:
    """Return the last evaluation before these steps and all among them."""
    if not steps:
        return []
    before = [record for record in evals if record.step < steps[0].step]
    return before[-1:] + [record for record in evals if steps[0].step <= record.step <= steps[-1].step]


def pass_at_1_gain(before: EvalRecord, after: EvalRecord) -> tuple[float, float]:
    """Return a 95 % interval from the two intervals; too wide, as it ignores that the problems are the same."""
    return difference_interval(*((end.pass_at_1, end.low, end.high) for end in (before, after)))


Quarters = tuple[Sequence[float], Sequence[float]]
"""The values of a metric in the first and the last quarter of a stage's steps."""


def _quarters(steps: Sequence[StepRecord], name: str) -> Quarters | None:
    values = [value for record in steps if math.isfinite(value := record.metrics.get(name, math.nan))]
    quarter = len(values) // 4
    return (values[:quarter], values[-quarter:]) if len(values) >= MIN_STEPS else None


def _gain(
    stage: str, rewards: Quarters, passes: Quarters | None, before: EvalRecord, after: EvalRecord, is_greedy: bool
) -> HeldOutGain:
    first, last = rewards
    half = Z_95 * math.sqrt((std(first) ** 2 + std(last) ** 2) / len(last))
    gain = mean(last) - mean(first)
    low, high = pass_at_1_gain(before, after)
    is_explained = False
    if is_greedy and passes and mean(passes[1]) - mean(passes[0]) >= EARNED_SHARE * gain:
        error = Z_95 * std(passes[1]) / math.sqrt(len(passes[1]))
        is_explained = mean(passes[1]) - error <= after.high
    return HeldOutGain(
        stage=stage,
        reward_first=mean(first),
        reward_last=mean(last),
        reward_gain_low=gain - half,
        reward_gain_high=gain + half,
        held_out_first=before.pass_at_1,
        held_out_last=after.pass_at_1,
        held_out_gain_low=low,
        held_out_gain_high=high,
        is_suspicious=gain - half > 0 and gain >= MIN_GAIN and low <= 0 and not is_explained,
    )


class HeldOutWatch:
    """Write the event `hollow_reward`, and a warning, when a stage ends with a suspicious gain. The run continues."""

    _log: RunLog

    def watch(self, log: RunLog) -> None:
        self._log = log

    def write_event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind != "stage_finished":
            return
        run = Run(self._log.run_dir)
        for gain in held_out_gains(run.steps(), run.evals(), evaluates_greedily(run.recipe_if_any)):
            if gain.stage == fields["name"] and gain.is_suspicious:
                self._log.write_event("hollow_reward", step=fields["step"], **gain.to_json())
                logger.warning(
                    "stage %s: training reward rose by %.3f, held-out pass@1 by %.1f points (95 %% interval %.1f to "
                    "%.1f, which includes 0 or less); look for the cause with `groupwise audit %s`",
                    *(gain.stage, gain.reward_gain, 100 * gain.held_out_gain),
                    *(100 * gain.held_out_gain_low, 100 * gain.held_out_gain_high, run.path),
                )

    def ignore(self, *_: object) -> None:
        """Ignore metrics and evals: they are read from the run's files when a stage ends."""

    write = write_eval = close = ignore
