"""Whether two arms differ: a difference of shares with its interval and a p-value, from seeds and from problems.

Contract: a difference counts only where it stands out against both sources of chance.

- Over seeds: Student's t over the differences by seed where both arms have the same seeds, else Welch's. Three seeds
  say little of their own spread, so arms that are compared together may share it (`Spread`: the residual of arms and
  seeds, more degrees of freedom). The spread is never taken to be less than the pair's own, and a pair whose own is
  clearly wider (Fisher's F) is judged by its own degrees of freedom, so an unsteady arm does not pass for a steady one.
  Nor does an unsteady arm (`spread_tests`) lend its spread to the others.
- Over problems: by the differences on each problem, where both arms kept their completions of the same ones (mean over
  seeds, `paired_interval`); else Newcombe's interval from two Wilson intervals, as if the arms had been asked different
  problems, which errs on the wide side.

The interval is the wider of the two, the p-value the larger. With one seed each only the problems are left. Adjusting
for many comparisons is up to the caller (`adjusted`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    wilson_interval,
)
from groupwise.sweeps.arm_scores import ArmScore, KnobScores, Shares

ALPHA = 0.05
SPREAD_RATIO = 3.0
"""So much further apart, at least, are the seeds of an arm that is called unsteady."""
LARGEST_Z = 38.0
"""Beyond it a p-value is 0 in floating point."""


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """first - second."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    num_seeds: tuple[int, int]
    method: str
    p_adjusted: float = math.nan
    """For all comparisons of the same family; see `adjusted`."""

    @property
    def is_clear(self) -> bool:
        return self.p_adjusted < ALPHA

    def to_json(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "second": self.second,
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "p_adjusted": self.p_adjusted,
            "num_seeds": list(self.num_seeds),
            "method": self.method,
        }


@dataclass(frozen=True, slots=True)
class SeedTest:
    """The difference of two means over seeds: `half` is half the 95 % interval."""

    half: float
    p: float
    method: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one arm's score over seeds, estimated from several arms together: a variance and its degrees of freedom."""

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
    """Of arms and seeds as a two-way table where all arms have the same seeds, else within arms; None of one seed."""
    tables = [arm.by_seed for arm in arms]
    if len(tables) > 1 and len(tables[0]) > 1 and all(table.keys() == tables[0].keys() for table in tables):
        seed_means = {seed: mean([table[seed] for table in tables]) for seed in tables[0]}
        whole = mean(list(seed_means.values()))
        residuals = [
            table[seed] - mean(list(table.values())) - seed_means[seed] + whole for table in tables for seed in table
        ]
        degrees = (len(tables) - 1) * (len(tables[0]) - 1)
    else:
        residuals = [value - mean(list(table.values())) for table in tables for value in table.values()]
        degrees = sum(len(table) - 1 for table in tables)
    return Spread(math.fsum(value * value for value in residuals) / degrees, degrees) if degrees else None


@dataclass(frozen=True, slots=True)
class SpreadTest:
    """One arm's seeds against those of the others."""

    ratio: float
    """Of the standard deviations."""
    p_adjusted: float

    @property
    def is_unsteady(self) -> bool:
        return self.ratio > SPREAD_RATIO and self.p_adjusted < ALPHA


def spread_tests(arms: Sequence[Shares]) -> list[SpreadTest]:
    """For each arm how far its seeds disagree, and how easily chance gives as much. Arms of one seed say nothing."""
    tests = [_spread_test(arm, [other for other in arms if other is not arm]) for arm in arms]
    return [SpreadTest(ratio, p) for (ratio, _), p in zip(tests, holm([p for _, p in tests]), strict=True)]


def _spread_test(arm: Shares, others: Sequence[Shares]) -> tuple[float, float]:
    degrees = sum(len(other.by_seed) - 1 for other in others)
    if len(arm.by_seed) < 2 or not degrees:
        return 0.0, 1.0
    squares = math.fsum((len(other.by_seed) - 1) * _square(other) for other in others) / degrees
    # Scores at the ceiling do not vary at all; that is no measure of what the problems' noise does to this arm.
    below = max(squares, arm.mean * (1 - arm.mean) / arm.num_problems)
    if below == 0:
        return 0.0, 1.0
    return math.sqrt(_square(arm) / below), f_tail(_square(arm) / below, len(arm.by_seed) - 1, degrees)


def _square(arm: Shares) -> float:
    """Of the standard deviation over seeds; 0 of one seed."""
    return std(list(arm.by_seed.values())) ** 2 if len(arm.by_seed) > 1 else 0.0


def steady(arms: Sequence[Shares]) -> list[Shares]:
    """Without the unsteady ones; all of them where fewer than two would be left."""
    kept = [arm for arm, test in zip(arms, spread_tests(arms), strict=True) if not test.is_unsteady]
    return kept if len(kept) > 1 else list(arms)


def adjusted(comparisons: Sequence[ArmComparison], num_looks: int = 1) -> list[ArmComparison]:
    """The same with Holm's p-values over all of them. `num_looks`: how many places each was picked from."""
    p_values = holm([min(1.0, num_looks * comparison.p) for comparison in comparisons])
    return [replace(one, p_adjusted=p) for one, p in zip(comparisons, p_values, strict=True)]


def seed_test(first: Mapping[int, float], second: Mapping[int, float], shared: Spread | None = None) -> SeedTest | None:
    """None where there is no second seed to learn a spread from. One seed against several borrows theirs."""
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
    difference = mean(list(first.values())) - mean(list(second.values()))
    t = difference / error if error else math.inf if difference else 0.0
    return SeedTest(student_quantile(1 - ALPHA / 2, degrees) * error, student_p(t, degrees), method)


def _own_error(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[float, float, str] | None:
    """Standard error of the difference of the means, degrees of freedom, and how it was found."""
    if len(first) < 2 and len(second) < 2:
        return None
    if first.keys() == second.keys():
        differences = [first[seed] - second[seed] for seed in first]
        return std(differences) / math.sqrt(len(differences)), len(differences) - 1, "paired by seed"
    squares = [std(list(values.values())) ** 2 for values in (first, second)]
    if len(first) < 2 or len(second) < 2:
        squares = [max(squares)] * 2
        degrees = float(max(len(first), len(second)) - 1)
    else:
        degrees = _welch_degrees(squares, (len(first), len(second)))
    return math.sqrt(squares[0] / len(first) + squares[1] / len(second)), degrees, "over unpaired seeds"


def problems_interval(first: Shares, second: Shares, z: float | None = None) -> tuple[float, float]:
    """Of first - second, over problems; 95 % unless another `z` is asked for."""
    if _is_paired(first, second):
        differences = [share - second.by_problem[problem_id] for problem_id, share in first.by_problem.items()]
        return paired_interval(differences, Z_95 if z is None else z)
    ends = []
    for shares in (second, first):
        n = shares.num_problems
        low, high = shares.over_problems if z is None else wilson_interval(shares.mean * n, n, z)
        ends.append((shares.mean, low, high))
    return difference_interval(ends[0], ends[1])


def _is_paired(first: Shares, second: Shares) -> bool:
    return bool(first.by_problem) and first.by_problem.keys() == second.by_problem.keys()


def problems_p(first: Shares, second: Shares) -> float:
    """The p-value of the problems: from the widest interval that still leaves 0 out."""
    inside, outside = LARGEST_Z, 0.0
    if first.mean == second.mean:
        return 1.0
    if not _holds_zero(problems_interval(first, second, LARGEST_Z)):
        return 0.0
    while inside - outside > 1e-9:
        middle = (inside + outside) / 2
        if _holds_zero(problems_interval(first, second, middle)):
            inside = middle
        else:
            outside = middle
    return math.erfc(inside / math.sqrt(2))


def _holds_zero(interval: tuple[float, float]) -> bool:
    return interval[0] <= 0 <= interval[1]


def _welch_degrees(squares: Sequence[float], counts: Sequence[int]) -> float:
    parts = [square / count for square, count in zip(squares, counts, strict=True)]
    if not any(parts):
        return float(sum(counts) - 2)
    below = math.fsum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return math.fsum(parts) ** 2 / below


@dataclass(frozen=True, slots=True)
class ComparedArms:
    """The final scores of a knob's arms, each pair compared. Best and worst are picked by what was measured, so every
    pair counts in Holm's adjustment, whichever is spoken of."""

    scores: KnobScores
    pairs: Mapping[tuple[str, str], ArmComparison]
    """By the names of both arms, in either order."""

    def against_best(self, arm: ArmScore) -> ArmComparison:
        return self.pairs[arm.name, self.scores.best.name]

    @property
    def others(self) -> tuple[ArmScore, ...]:
        return tuple(arm for arm in self.scores.arms if arm.name != self.scores.best.name)

    @property
    def worse(self) -> tuple[ArmScore, ...]:
        """Clearly worse than the best arm."""
        return tuple(arm for arm in self.others if self.against_best(arm).is_clear)

    @property
    def tied(self) -> tuple[ArmScore, ...]:
        """Not to be told from the best arm, which is not among them."""
        return tuple(arm for arm in self.others if not self.against_best(arm).is_clear)


def compare_knob(scores: KnobScores) -> ComparedArms:
    shared = shared_spread(steady([arm.final for arm in scores.arms]))
    found = adjusted(
        [compare((a.name, b.name), a.final, b.final, shared) for a, b in itertools.combinations(scores.arms, 2)]
    )
    pairs = {(one.first, one.second): one for one in found}
    return ComparedArms(scores, pairs | {(one.second, one.first): _turned(one) for one in found})


def _turned(one: ArmComparison) -> ArmComparison:
    return replace(
        one,
        first=one.second,
        second=one.first,
        difference=-one.difference,
        low=-one.high,
        high=-one.low,
        num_seeds=(one.num_seeds[1], one.num_seeds[0]),
    )
