"""Comparisons of two arms: a difference of shares with an interval and a p-value, from seeds and from problems.

Contract: a difference counts only if it is significant against both sources of randomness.

- Over seeds: Student's t over the differences by seed if both arms have the same seeds, else Welch's. Three seeds say
  little about their own spread, so arms that are compared together may share it (`Spread`: the residual of arms and
  seeds, with more degrees of freedom). The shared spread never replaces a larger spread of the pair itself, and a pair
  whose own spread is significantly larger (Fisher's F) keeps its own degrees of freedom. Unstable arms (`spread_tests`)
  do not contribute to the shared spread.
- Over problems: the differences on each problem, if both arms kept completions of the same problems (mean over seeds,
  `paired_interval`); else Newcombe's interval from two Wilson intervals, as if the arms had seen different problems,
  which is conservative.

The interval is the wider of the two, the p-value the larger. With one seed each, only the problems count. The caller
adjusts for multiple comparisons (`adjusted`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from groupwise.base.stats import (
    Z_95,
    difference_interval,
    f_tail,
    holm,
    mean,
    paired_interval,
    std,
    student_p,
    student_quantile,
)
from groupwise.sweeps.arm_scores import ArmScore, Shares, kl_metric, score_arms
from groupwise.sweeps.sweep_records import Knob

ALPHA = 0.05
TARGET_SHARE = 0.9
"""An arm reaches the target at this fraction of the best final score."""
SPREAD_RATIO = 3.0
"""Minimum ratio of standard deviations over seeds for an arm to count as unstable."""
LARGEST_Z = 38.0
"""Above it, a p-value is 0 in floating point."""


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """The difference first - second."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    num_seeds: tuple[int, int]
    method: str
    p_adjusted: float = math.nan
    """Holm's adjustment for all comparisons of the same family; see `adjusted`."""

    @property
    def is_clear(self) -> bool:
        return self.p_adjusted < ALPHA


@dataclass(frozen=True, slots=True)
class SeedTest:
    """Test of the difference of two means over seeds. `half` is half the width of the 95 % interval."""

    half: float
    p: float
    method: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance of an arm's score over seeds, estimated from several arms, and its degrees of freedom."""

    square: float
    degrees: float


def compare(names: tuple[str, str], first: Shares, second: Shares, shared: Spread | None = None) -> ArmComparison:
    difference = first.mean - second.mean
    low, high = problems_interval(first, second)
    p = problems_p(first, second)
    method = "paired by problem" if _is_paired(first, second) else "over problems"
    test = seed_test(first.by_seed, second.by_seed, shared)
    if test is not None:
        method = f"{test.method}, and {method}"
        p = max(p, test.p)
        if 2 * test.half > high - low:
            low, high = max(-1.0, difference - test.half), min(1.0, difference + test.half)
    return ArmComparison(*names, difference, low, high, p, (len(first.by_seed), len(second.by_seed)), method)


def shared_spread(arms: Sequence[Shares]) -> Spread | None:
    """Estimate the spread: residual of the table arms × seeds if all arms share seeds, else within arms.

    None if no arm has a second seed.
    """
    tables = [arm.by_seed for arm in arms]
    if len(tables) > 1 and len(tables[0]) > 1 and all(table.keys() == tables[0].keys() for table in tables):
        seed_means = {seed: mean([table[seed] for table in tables]) for seed in tables[0]}
        whole = mean(seed_means.values())
        residuals = [
            table[seed] - mean(table.values()) - seed_means[seed] + whole for table in tables for seed in table
        ]
        degrees = (len(tables) - 1) * (len(tables[0]) - 1)
    else:
        residuals = [value - mean(table.values()) for table in tables for value in table.values()]
        degrees = sum(len(table) - 1 for table in tables)
    return Spread(math.fsum(value * value for value in residuals) / degrees, degrees) if degrees else None


@dataclass(frozen=True, slots=True)
class SpreadTest:
    """Spread of one arm's seeds against those of the others."""

    ratio: float
    """Ratio of the standard deviations."""
    p_adjusted: float

    @property
    def is_unstable(self) -> bool:
        return self.ratio > SPREAD_RATIO and self.p_adjusted < ALPHA


def spread_tests(arms: Sequence[Shares]) -> list[SpreadTest]:
    """Test for each arm whether its seeds vary more than those of the others. Arms with one seed never do."""
    tests = [_spread_test(arm, [other for other in arms if other is not arm]) for arm in arms]
    return [SpreadTest(ratio, p) for (ratio, _), p in zip(tests, holm([p for _, p in tests]), strict=True)]


def _spread_test(arm: Shares, others: Sequence[Shares]) -> tuple[float, float]:
    degrees = sum(len(other.by_seed) - 1 for other in others)
    if len(arm.by_seed) < 2 or not degrees:
        return 0.0, 1.0
    squares = math.fsum((len(other.by_seed) - 1) * _square(other) for other in others) / degrees
    # Scores at the ceiling do not vary at all, which says nothing about the noise of problems in this arm.
    below = max(squares, arm.mean * (1 - arm.mean) / arm.num_problems)
    if below == 0:
        return 0.0, 1.0
    return math.sqrt(_square(arm) / below), f_tail(_square(arm) / below, len(arm.by_seed) - 1, degrees)


def _square(arm: Shares) -> float:
    """Return the variance over seeds; 0 for one seed."""
    return std(arm.by_seed.values()) ** 2 if len(arm.by_seed) > 1 else 0.0


def steady(arms: Sequence[Shares]) -> list[Shares]:
    """Drop unstable arms, unless fewer than two would be left."""
    kept = [arm for arm, test in zip(arms, spread_tests(arms), strict=True) if not test.is_unstable]
    return kept if len(kept) > 1 else list(arms)


def adjusted(comparisons: Sequence[ArmComparison], num_looks: int = 1) -> list[ArmComparison]:
    """Add Holm's p-values over all comparisons. `num_looks`: number of places that each was chosen from."""
    p_values = holm([min(1.0, num_looks * comparison.p) for comparison in comparisons])
    return [replace(one, p_adjusted=p) for one, p in zip(comparisons, p_values, strict=True)]


def seed_test(first: Mapping[int, float], second: Mapping[int, float], shared: Spread | None = None) -> SeedTest | None:
    """Test means over seeds; None without a second seed. One seed against several uses their spread."""
    own = _own_error(first, second)
    if shared is None and own is None:
        return None
    error, degrees, method = own or (0.0, math.inf, "")
    if shared is not None:
        shared_error = math.sqrt(shared.square * (1 / len(first) + 1 / len(second)))
        ratio = (error / shared_error) ** 2 if shared_error else math.inf if error else 0.0
        if own is None or f_tail(ratio, degrees, shared.degrees) >= ALPHA:
            error, degrees = max(error, shared_error), shared.degrees
            method = "over seeds, with the spread of all arms"
    difference = mean(first.values()) - mean(second.values())
    t = difference / error if error else math.inf if difference else 0.0
    return SeedTest(student_quantile(1 - ALPHA / 2, degrees) * error, student_p(t, degrees), method)


def _own_error(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[float, float, str] | None:
    """Return the standard error of the difference of means, its degrees of freedom, and the method."""
    if len(first) < 2 and len(second) < 2:
        return None
    if first.keys() == second.keys():
        differences = [first[seed] - second[seed] for seed in first]
        return std(differences) / math.sqrt(len(differences)), len(differences) - 1, "paired by seed"
    squares = [std(values.values()) ** 2 for values in (first, second)]
    if len(first) < 2 or len(second) < 2:
        squares = [max(squares)] * 2
        degrees = float(max(len(first), len(second)) - 1)
    else:
        degrees = _welch_degrees(squares, (len(first), len(second)))
    return math.sqrt(squares[0] / len(first) + squares[1] / len(second)), degrees, "over unpaired seeds"


def problems_interval(first: Shares, second: Shares, z: float = Z_95) -> tuple[float, float]:
    """Return the interval of first - second over problems."""
    if _is_paired(first, second):
        differences = [share - second.by_problem[problem_id] for problem_id, share in first.by_problem.items()]
        return paired_interval(differences, z)
    return difference_interval((second.mean, *second.over_problems(z)), (first.mean, *first.over_problems(z)))


def _is_paired(first: Shares, second: Shares) -> bool:
    return bool(first.by_problem) and first.by_problem.keys() == second.by_problem.keys()


def problems_p(first: Shares, second: Shares) -> float:
    """Return the p-value over problems: that of the widest interval that excludes 0."""
    inside, outside = LARGEST_Z, 0.0
    if first.mean == second.mean:
        return 1.0
    if not _includes_zero(problems_interval(first, second, LARGEST_Z)):
        return 0.0
    while inside - outside > 1e-9:
        middle = (inside + outside) / 2
        if _includes_zero(problems_interval(first, second, middle)):
            inside = middle
        else:
            outside = middle
    return math.erfc(inside / math.sqrt(2))


def _includes_zero(interval: tuple[float, float]) -> bool:
    return interval[0] <= 0 <= interval[1]


def _welch_degrees(squares: Sequence[float], counts: Sequence[int]) -> float:
    parts = [square / count for square, count in zip(squares, counts, strict=True)]
    if not any(parts):
        return float(sum(counts) - 2)
    below = math.fsum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return math.fsum(parts) ** 2 / below


@dataclass(frozen=True, slots=True)
class KnobScores:
    """The scored arms of a knob, all pairs compared.

    Best and worst are chosen by their measured scores, so Holm's adjustment counts every pair.
    """

    knob: Knob
    arms: tuple[ArmScore, ...]
    pairs: Mapping[tuple[str, str], ArmComparison]
    """Comparison by the names of both arms, in either order."""

    @property
    def best(self) -> ArmScore:
        """The arm with the highest final mean. Ties: the base, else the first."""
        return max(self.arms, key=lambda arm: (arm.final.mean, arm.is_base))

    @property
    def target(self) -> float:
        return TARGET_SHARE * self.best.final.mean

    @property
    def kl_metric(self) -> str:
        return kl_metric(self.knob)

    @property
    def reference(self) -> ArmScore:
        """Baseline for side effects and speed: the base recipe, else the best arm."""
        return next((arm for arm in self.arms if arm.is_base), self.best)

    def against_best(self, arm: ArmScore) -> ArmComparison:
        return self.pairs[arm.name, self.best.name]

    @property
    def others(self) -> tuple[ArmScore, ...]:
        return tuple(arm for arm in self.arms if arm.name != self.best.name)

    @property
    def worse(self) -> tuple[ArmScore, ...]:
        """Arms that are significantly worse than the best one."""
        return tuple(arm for arm in self.others if self.against_best(arm).is_clear)

    @property
    def tied(self) -> tuple[ArmScore, ...]:
        """Arms that are statistically indistinguishable from the best one, which is not among them."""
        return tuple(arm for arm in self.others if not self.against_best(arm).is_clear)


def score_knob(knob: Knob) -> KnobScores:
    arms = score_arms(knob)
    shared = shared_spread(steady([arm.final for arm in arms]))
    found = adjusted([compare((a.name, b.name), a.final, b.final, shared) for a, b in itertools.combinations(arms, 2)])
    pairs = {(one.first, one.second): one for one in found}
    return KnobScores(knob, arms, pairs | {(one.second, one.first): _turned(one) for one in found})


def _turned(one: ArmComparison) -> ArmComparison:
    turned = replace(one, first=one.second, second=one.first, num_seeds=(one.num_seeds[1], one.num_seeds[0]))
    return replace(turned, difference=-one.difference, low=-one.high, high=-one.low)
