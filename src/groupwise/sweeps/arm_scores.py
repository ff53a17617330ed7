"""Results of each arm of a knob: its final score with an interval, how fast it got there, and what it cost.

Contract: pure functions of what `read_study` returns. Only finished runs count: arms are compared at the end of their
recipes. The unit is the seed. The interval of a score is the wider of Student's over seeds and Wilson's over problems
at the mean of the seeds: seeds that agree exactly do not make a score exact, because all see the same problems. With
one seed it is Wilson's interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any

from groupwise.base.json_values import finite_or_none, plain
from groupwise.base.stats import Z_95, IntervalEstimate, mean, student_interval, wilson_interval
from groupwise.sweeps.sweep_records import Arm, Knob, SeedRun
from groupwise.types import EvalRecord, StepRecord

TAIL_SHARE = 0.1
"""Noisy quantities are averaged over the end of a run: this fraction of its steps, at least MIN_TAIL_STEPS."""
MIN_TAIL_STEPS = 3

KL_FROM_REFERENCE = "kl/ref_k3"
KL_OF_UPDATES = "policy/approx_kl"
REWARD = "reward/mean"
CLIP = "policy/clip_share"
GRAD_NORM = "policy/grad_norm"


@dataclass(frozen=True, slots=True)
class Shares:
    """One number between 0 and 1 per seed, all over the same number of held-out problems."""

    by_seed: Mapping[int, float]
    num_problems: int
    by_problem: Mapping[str, float] = field(default_factory=dict)
    """Each problem's share, averaged over seeds; {} unless all of it is known."""

    @property
    def mean(self) -> float:
        return mean(self.by_seed.values())

    def over_problems(self, z: float = Z_95) -> tuple[float, float]:
        """Return Wilson's interval at the mean. More seeds do not narrow it: they see the same problems."""
        return wilson_interval(self.mean * self.num_problems, self.num_problems, z)

    def estimate(self) -> IntervalEstimate:
        values = list(self.by_seed.values())
        low, high = (min(1.0, max(0.0, end)) for end in student_interval(values))
        problems_low, problems_high = self.over_problems()
        if len(values) == 1 or high - low < problems_high - problems_low:
            low, high = problems_low, problems_high
        return IntervalEstimate(self.mean, low, high)


@dataclass(frozen=True, slots=True)
class ArmScore(Arm):
    """An arm with a score. `runs` has the finished runs that were evaluated, and is never empty."""

    final: Shares = field(kw_only=True)

    @property
    def before(self) -> Shares | None:
        """Scores before training, for the seeds that measured them."""
        return self.at(0)

    def at(self, step: int) -> Shares | None:
        """Return the scores at one evaluation step; None if no seed has it."""
        records = {run.seed: record for run in self.runs for record in run.evals if record.step == step}
        return _shares(records) if records else None

    def steps_to(self, target: float) -> float:
        """Return the median over seeds; infinity if at least half of them did not reach the target."""
        return median([steps_to(run, target) for run in self.runs])

    def tail(self, metric: str) -> dict[int, float]:
        """Return seed → mean of a metric over the end of the run, for finished runs that recorded it."""
        found = {run.seed: mean(values) for run in self.runs if (values := tail_values(run.steps, metric))}
        return {seed: value for seed, value in found.items() if math.isfinite(value)}

    def figures(self) -> dict[str, Any]:
        """Return the scores behind a finding."""
        final, before = self.final, self.before
        return {
            "arm": self.name,
            "label": self.label,
            "final": final.estimate()._asdict(),
            "final_by_seed": plain(final.by_seed),
            "before_by_seed": {} if before is None else plain(before.by_seed),
            "num_problems": final.num_problems,
        }

    def to_json(self, target: float, kl_metric: str) -> dict[str, Any]:
        final, before = self.final, self.before
        best = {run.seed: best_of(run) for run in self.runs}
        return self.figures() | {
            "seeds": sorted(final.by_seed),
            "final_min": min(final.by_seed.values()),
            "final_max": max(final.by_seed.values()),
            "before": None if before is None else before.mean,
            "best": mean([record.pass_at_1 for record in best.values()]),
            "best_step_by_seed": {str(seed): record.step for seed, record in best.items()},
            "best_step": median([float(record.step) for record in best.values()]),
            "steps_to_target": finite_or_none(self.steps_to(target)),
            "final_kl": _mean_or_none(self.tail(kl_metric).values()),
            "final_clip_share": _mean_or_none(self.tail(CLIP).values()),
            "largest_grad_norm": _largest(self.runs, GRAD_NORM),
            "tokens": _mean_or_none(_tokens(run) for run in self.runs),
            "seconds": _mean_or_none(_seconds(run) for run in self.runs),
        }


def score_arms(knob: Knob) -> tuple[ArmScore, ...]:
    """Score the arms of a knob that have finished runs, in the order of the knob."""
    arms = []
    for arm in knob.arms:
        runs = tuple(run for run in arm.runs if run.is_finished and run.evals)
        if runs:
            final = _shares({run.seed: run.evals[-1] for run in runs}, _mean_by_problem(runs))
            known = {one.name: getattr(arm, one.name) for one in fields(arm)}
            arms.append(ArmScore(**known | {"runs": runs}, final=final))
    return tuple(arms)


def kl_metric(knob: Knob) -> str:
    """Return KL from the reference if any arm recorded it, else KL of updates. The two never share an axis."""
    has_reference = any(
        KL_FROM_REFERENCE in record.metrics
        for arm in knob.arms
        for run in arm.runs
        for record in (*run.steps[:1], *run.steps[-1:])
    )
    return KL_FROM_REFERENCE if has_reference else KL_OF_UPDATES


def best_of(run: SeedRun) -> EvalRecord:
    """Return the first evaluation with the highest score; the checkpoint `best` is chosen in the same way."""
    return max(run.evals, key=lambda record: record.pass_at_1)


def steps_to(run: SeedRun, target: float) -> float:
    """Return the step of the first evaluation at or above `target`; infinity if there is none, or at target 0."""
    return next((record.step for record in run.evals if record.pass_at_1 >= target > 0), math.inf)


def tail_values(steps: Sequence[StepRecord], metric: str) -> list[float]:
    """Return the values at the end of a run; [] if the metric was not recorded."""
    known = [record.metrics[metric] for record in steps if metric in record.metrics]
    count = max(MIN_TAIL_STEPS, math.ceil(TAIL_SHARE * len(known)))
    return [value for value in known[-count:] if math.isfinite(value)]


def _shares(records: Mapping[int, EvalRecord], by_problem: Mapping[str, float] | None = None) -> Shares:
    num_problems = min(record.num_problems for record in records.values())
    return Shares({seed: record.pass_at_1 for seed, record in records.items()}, num_problems, by_problem or {})


def _mean_by_problem(runs: Sequence[SeedRun]) -> dict[str, float]:
    tables = [run.pass_rates for run in runs]
    if any(table.keys() != tables[0].keys() for table in tables):
        return {}
    return {problem_id: mean([table[problem_id] for table in tables]) for problem_id in tables[0]}


def _largest(runs: Sequence[SeedRun], metric: str) -> float | None:
    values = [r.metrics[metric] for run in runs for r in run.steps if math.isfinite(r.metrics.get(metric, math.nan))]
    return max(values, default=None)


def _tokens(run: SeedRun) -> float | None:
    return max((record.metrics.get("tokens/total", 0.0) for record in run.steps), default=0.0) or None


def _seconds(run: SeedRun) -> float | None:
    names = ("time/step_s", "time/eval_s", "time/checkpoint_s")
    values = [record.metrics.get(name, 0.0) for record in run.steps for name in names]
    return math.fsum(value for value in values if math.isfinite(value)) or None


def _mean_or_none(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
