"""Comparison of two evaluations, with an interval of the difference.

If the completions of both were saved, they are compared problem by problem (`stats.paired_interval`), so that hard
problems cancel. If only the scores are known, the interval comes from their two intervals (Newcombe 1998, method 10)
and is wider. Values are shares from 0 to 1; only texts have percentages and points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.audit.held_out_gain import held_out_ends
from groupwise.base.stats import (
    difference_interval,
    mean,
    mean_interval,
    paired_interval,
    student_interval,
    wilson_interval,
)
from groupwise.base.text_layout import percent, points
from groupwise.runs.reader import by_experiment
from groupwise.runs.records import by_stage
from groupwise.types import EvalRecord
from groupwise.web.report.inputs import CompletionPanel, RunSource


@dataclass(frozen=True, slots=True)
class PassShare:
    """pass@1 with its 95 % interval."""

    value: float
    low: float
    high: float
    num_problems: int


@dataclass(frozen=True, slots=True)
class Gain:
    before: PassShare
    after: PassShare
    low: float
    """Lower end of the 95 % interval of the difference."""
    high: float
    num_problems: int
    is_paired: bool

    @property
    def difference(self) -> float:
        return self.after.value - self.before.value

    @property
    def verdict(self) -> str:
        return _verdict(self.low, self.high)

    def sentence(self) -> str:
        """Return a sentence such as "held-out pass@1 6.0 % → 35.0 %, +29.0 points (95 % interval …), 200 problems"."""
        how = "paired by problem" if self.is_paired else "from the two intervals"
        return (
            f"held-out pass@1 {percent(self.before.value)} → {percent(self.after.value)}, {points(self.difference)} "
            f"points (95 % interval {points(self.low)} to {points(self.high)}, {how}), {self.num_problems} problems"
        )


@dataclass(frozen=True, slots=True)
class SeedsGain:
    """The gain of runs that differ only in their seed."""

    runs: tuple[str, ...]
    """Labels of the runs."""
    gains: tuple[Gain, ...]
    low: float
    """Lower end of the 95 % interval of the mean difference: the wider of the intervals over seeds and over problems,
    as in a sweep. All seeds have the same problems, so their agreement does not make the score exact."""
    high: float

    @property
    def difference(self) -> float:
        return mean([gain.difference for gain in self.gains])

    @property
    def verdict(self) -> str:
        return _verdict(self.low, self.high)

    def sentence(self) -> str:
        before = mean([gain.before.value for gain in self.gains])
        scores = ", ".join(f"{100 * gain.after.value:.1f}" for gain in self.gains)
        return (
            f"held-out pass@1 {percent(before)} → {scores} %, {points(self.difference)} points on average "
            f"(95 % interval {points(self.low)} to {points(self.high)}, over {len(self.gains)} seeds or over problems, "
            f"whichever is wider), {min(gain.num_problems for gain in self.gains)} problems"
        )


VERDICT_WORDS = {
    "better": "The model got better",
    "worse": "The model got worse",
    "unclear": "No clear change: the interval includes 0",
}


def _verdict(low: float, high: float) -> str:
    if low > 0:
        return "better"
    return "worse" if high < 0 else "unclear"


def pass_rates(panel: CompletionPanel) -> dict[str, float]:
    rates = {problem_id: scored.pass_rate for problem_id, scored in panel.groups.items()}
    return {problem_id: rate for problem_id, rate in rates.items() if rate is not None}


def share_of(values: Sequence[float]) -> PassShare:
    """Return the score, with Wilson's interval if each problem is right or wrong, otherwise a mean's."""
    is_plain = all(value in (0.0, 1.0) for value in values)
    low, high = wilson_interval(sum(values), len(values)) if is_plain else mean_interval(values)
    return PassShare(mean(values), low, high, len(values))


def paired_gain(before: CompletionPanel, after: CompletionPanel) -> Gain | None:
    """Return the gain over the problems judged in both; None without such problems."""
    rates_before, rates_after = pass_rates(before), pass_rates(after)
    shared = [problem_id for problem_id in rates_before if problem_id in rates_after]
    if not shared:
        return None
    low, high = paired_interval([rates_after[problem_id] - rates_before[problem_id] for problem_id in shared])
    first, last = (share_of([rates[problem_id] for problem_id in shared]) for rates in (rates_before, rates_after))
    return Gain(first, last, low, high, len(shared), is_paired=True)


def unpaired_gain(before: EvalRecord, after: EvalRecord) -> Gain | None:
    """Return the gain from the scores alone; None if one is unknown."""
    if math.isnan(before.pass_at_1) or math.isnan(after.pass_at_1):
        return None
    low, high = difference_interval(*((end.pass_at_1, end.low, end.high) for end in (before, after)))
    num_problems = min(before.num_problems, after.num_problems)
    first, last = (PassShare(r.pass_at_1, r.low, r.high, r.num_problems) for r in (before, after))
    return Gain(first, last, low, high, num_problems, is_paired=False)


def run_gain(run: RunSource) -> Gain | None:
    """Return the gain from the first to the last evaluation; the best one would be selected by its score."""
    if run.end_panels:
        return paired_gain(*run.end_panels)
    return unpaired_gain(run.evals[0], run.evals[-1]) if len(run.evals) >= 2 else None


def seeds_gains(runs: Sequence[RunSource]) -> list[SeedsGain]:
    """Return the gain of each recipe that was run with several seeds, if all of them reached the same step."""
    found = []
    for same in by_experiment(runs):
        gains = [gain for run in same if (gain := run_gain(run)) is not None]
        # The same seed twice is not a second sample.
        is_fair = len({run.recipe.get("seed") for run in same}) == len(same) == len(gains)
        if len(same) < 2 or not is_fair or len({run.evals[-1].step for run in same}) > 1:
            continue
        over_seeds = student_interval([gain.difference for gain in gains])
        over_problems = mean([gain.low for gain in gains]), mean([gain.high for gain in gains])
        low, high = max(over_seeds, over_problems, key=lambda ends: ends[1] - ends[0])
        found.append(SeedsGain(tuple(run.label for run in same), tuple(gains), low, high))
    return found


def stage_gains(run: RunSource) -> list[tuple[str, Gain]]:
    """Return the gain of each stage, from the evaluation before it to its last one, by the scores."""
    gains = []
    for name, members in by_stage(run.steps).items():
        ends = held_out_ends(members, run.evals)
        if ends and (gain := unpaired_gain(*ends)):
            gains.append((name, gain))
    return gains
