"""Means, spreads, 95 % intervals and paired tests, with the standard library only.

Contract: plain numbers in, plain floats out; no state, and the same answer every time: a bootstrap has a fixed seed.
The mean or spread of no values is NaN (null in the run log), and the interval of a share of no values is (0, 1).
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from typing import NamedTuple

Z_95 = 1.96
"""The 97.5 % point of the normal distribution: two-sided 95 %."""

BOOTSTRAP_DRAWS = 1000
"""Number of resamples: the ends of an interval then vary by less than a tenth of its width."""


class IntervalEstimate(NamedTuple):
    """A value and the two ends of its 95 % interval."""

    value: float
    low: float
    high: float


def mean(values: Collection[float]) -> float:
    """Return the mean, summed exactly (fsum), so that the order of the values cannot change the last bit."""
    return math.fsum(values) / len(values) if values else math.nan


def std(values: Collection[float]) -> float:
    """Return the sample standard deviation (denominator n - 1, as torch.std); 0 for a single value."""
    if not values:
        return math.nan
    if len(values) == 1:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def wilson_interval(successes: float, n: float, z: float = Z_95) -> tuple[float, float]:
    """Return the Wilson score interval of a share: `successes` out of `n` independent trials.

    Wilson (1927), in the usual form: centre (p + z²/2n) / (1 + z²/n), half width
    z / (1 + z²/n) · sqrt(p(1-p)/n + z²/4n²). Its width is never 0, and it is always within [0, 1].
    """
    if n < 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes out of {n} trials is not a share")
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    spread = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / spread
    half = z / spread * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the extremes the ends are exactly 0 and 1; rounding must not leave 1e-17 there.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def difference_interval(before: tuple[float, float, float], after: tuple[float, float, float]) -> tuple[float, float]:
    """Return an interval of after - before, two shares as (value, low, high): Newcombe (1998), method 10.

    It is too wide for shares of the same problems; use `paired_interval` when the problems are known.
    """
    gain = after[0] - before[0]
    low = gain - math.hypot(after[0] - after[1], before[2] - before[0])
    high = gain + math.hypot(after[2] - after[0], before[0] - before[1])
    return low, high


def mean_interval(values: Sequence[float], z: float = Z_95) -> tuple[float, float]:
    """Return an interval of the mean of shares in [0, 1], one per problem (such as its share of right completions).

    The problems are the independent samples, however many completions each has. A normal interval has zero width when
    all problems agree, and covers far less than 95 % near 0 and 1. So two problems of share 0 and two of share 1 are
    added first ("plus four", Agresti and Coull 1998; close to Wilson when all shares are 0 or 1). The interval always
    includes the mean.
    """
    for value in values:
        if not 0 <= value <= 1:
            raise ValueError(f"{value} is not a share between 0 and 1")
    if not values:
        return 0.0, 1.0
    padded = [*values, 0.0, 0.0, 1.0, 1.0]
    centre = mean(padded)
    half = z * std(padded) / math.sqrt(len(padded))
    actual = mean(values)
    return max(0.0, min(actual, centre - half)), min(1.0, max(actual, centre + half))


def bootstrap_interval(values: Sequence[float], draws: int = BOOTSTRAP_DRAWS) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a mean (Efron 1979): `values` resampled with replacement.

    It assumes nothing about the values, so its width is 0 when all of them are equal.
    """
    if not values:
        return math.nan, math.nan
    lowest, highest = min(values), max(values)
    if lowest == highest:
        return float(lowest), float(highest)
    generator, count = random.Random(len(values)), len(values)
    means = sorted(math.fsum(generator.choices(values, k=count)) / count for _ in range(draws))
    return _quantile(means, 0.025), _quantile(means, 0.975)


def paired_interval(differences: Sequence[float], z: float = Z_95) -> tuple[float, float]:
    """Return an interval of the mean of paired differences between -1 and 1, one per problem.

    Agresti and Min (2005) treat one completion per problem, where each difference is -1, 0 or 1: half a problem is
    added to each of the four cells, which amounts to two problems of difference 0 and mean square 1/2. With several
    completions the same two problems are added: right when a few problems flip completely, too wide when all shift a
    little. Unlike a bootstrap it has a width when nothing differs, and it always includes the mean.
    """
    for difference in differences:
        if not -1 <= difference <= 1:
            raise ValueError(f"{difference} is not a difference of shares, between -1 and 1")
    if not differences:
        return -1.0, 1.0
    n = len(differences) + 2
    centre = math.fsum(differences) / n
    square = (math.fsum(difference * difference for difference in differences) + 1) / n
    half = z * math.sqrt((square - centre * centre) / n)
    actual = mean(differences)
    return max(-1.0, min(actual, centre - half)), min(1.0, max(actual, centre + half))


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean of independent, roughly normal values (n - 1 degrees of freedom).

    A single value has no known spread: its interval is infinite. The width is 0 when all values are equal.
    """
    if len(values) < 2:
        return -math.inf, math.inf
    half = student_quantile(0.975, len(values) - 1) * std(values) / math.sqrt(len(values))
    centre = mean(values)
    return centre - half, centre + half


def student_p(t: float, degrees: float) -> float:
    """Return the two-sided p-value of Student's t."""
    if math.isinf(t):
        return 0.0
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def student_quantile(share: float, degrees: float) -> float:
    """Return the t below which Student's distribution has `share` of its mass, by bisection to the last bits."""
    if not 0 < share < 1:
        raise ValueError(f"{share} is not a share between 0 and 1")
    if share < 0.5:
        return -student_quantile(1 - share, degrees)
    tail = 2 * (1 - share)
    high = 1.0
    while student_p(high, degrees) > tail:
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if student_p(middle, degrees) > tail else (low, middle)
    return high


def f_tail(ratio: float, degrees: float, degrees_below: float) -> float:
    """Return the probability of a ratio of two variances above `ratio` when both are equal (Fisher's F)."""
    if math.isinf(ratio):
        return 0.0
    return incomplete_beta(degrees_below / 2, degrees / 2, degrees_below / (degrees_below + degrees * ratio))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b), to about 1e-14 (continued fraction, DLMF 8.17.22)."""
    if not 0 <= x <= 1 or a <= 0 or b <= 0:
        raise ValueError(f"I_{x}({a}, {b}): x is between 0 and 1, a and b are positive")
    if x in (0.0, 1.0):
        return x
    # Above the mean the fraction converges slowly; 1 - I_{1-x}(b, a) does not.
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # Lentz: numerators and denominators of the convergents as two ratios; neither is 0 in this range.
    ratio, inverse, fraction = 1.0, 1 / (1 - (a + b) * x / (a + 1)), 1 / (1 - (a + b) * x / (a + 1))
    for m in range(1, 10_000):
        before = fraction
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            inverse = 1 / (1 + term * inverse)
            ratio = 1 + term / ratio
            fraction *= ratio * inverse
        if abs(fraction - before) <= 1e-16 * abs(fraction):
            break
    return math.exp(log_front) * fraction / a


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for multiple testing (Holm 1979), in the same order.

    Reporting those below 5 % makes any false report in at most 5 % of cases, however the tests are correlated.
    """
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def mcnemar_p(gained: int, lost: int) -> float:
    """Return the p-value of McNemar's exact test: are changed problems as likely to be gained as to be lost?

    Two-sided: twice the smaller tail of Binomial(gained + lost, 1/2), at most 1.
    """
    changed = gained + lost
    tail = sum(math.comb(changed, count) for count in range(min(gained, lost) + 1))
    # In integers: 2 ** changed overflows a float beyond 1023 changes.
    return min(1.0, 2 * tail / 2**changed)


def paired_bootstrap_p(differences: Sequence[float], draws: int = 10 * BOOTSTRAP_DRAWS) -> float:
    """Return the probability of a mean difference at least this far from 0 if the true one is 0: the differences minus
    their mean are resampled with replacement. Never below 1 / (draws + 1)."""
    if not differences or min(differences) == max(differences) == 0:
        return 1.0
    centre = mean(differences)
    centred = [difference - centre for difference in differences]
    generator, count = random.Random(len(differences)), len(differences)
    limit = abs(centre) - 1e-12
    far = sum(abs(math.fsum(generator.choices(centred, k=count)) / count) >= limit for _ in range(draws))
    return (far + 1) / (draws + 1)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolated between the two nearest."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
