"""Means, spreads, 95 % intervals and paired tests, from the standard library alone.

Contract: plain numbers in, plain floats out; no state, and the same answer every time: a bootstrap draws from a fixed
seed. A mean or spread of nothing is NaN (the run log stores it as null), and an interval of a share of nothing is
everything, (0, 1).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

Z_95 = 1.96
"""The 97.5 % point of the normal distribution: two-sided 95 %."""

BOOTSTRAP_DRAWS = 1000
"""The ends of an interval then wander by less than a tenth of its width."""


def mean(values: Sequence[float]) -> float:
    """Summed exactly (fsum), so the order of the values cannot change the last bit."""
    return math.fsum(values) / len(values) if values else math.nan


def std(values: Sequence[float]) -> float:
    """The sample's standard deviation (denominator n - 1, as torch.std has it); 0 for a single value."""
    if not values:
        return math.nan
    if len(values) == 1:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def wilson_interval(successes: float, n: float, z: float = Z_95) -> tuple[float, float]:
    """The Wilson score interval of a share: `successes` out of `n` independent trials.

    Wilson (1927), eq. in the usual form: centre (p + z²/2n) / (1 + z²/n), half width
    z / (1 + z²/n) · sqrt(p(1-p)/n + z²/4n²). Never of zero width, never outside [0, 1].
    """
    if n < 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes out of {n} trials is not a share")
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    spread = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / spread
    half = z / spread * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # The two ends are exactly 0 and 1 at the extremes; rounding must not leave 1e-17 there.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def difference_interval(before: tuple[float, float, float], after: tuple[float, float, float]) -> tuple[float, float]:
    """Of after - before, two shares given as (value, low, high). Newcombe (1998), method 10, from the two intervals.

    For shares of the same problems it is on the wide side: use `paired_interval` where the problems are known.
    """
    gain = after[0] - before[0]
    low = gain - math.hypot(after[0] - after[1], before[2] - before[0])
    high = gain + math.hypot(after[2] - after[0], before[0] - before[1])
    return low, high


def mean_interval(values: Sequence[float], z: float = Z_95) -> tuple[float, float]:
    """An interval for the mean of shares in [0, 1], one per problem (say, the share of its completions that are right).

    The problems are the independent draws, however many completions each has. A plain normal interval has zero width
    when all problems agree and covers far less than 95 % near 0 and 1, so two problems of share 0 and two of share 1
    are added first ("plus four", Agresti and Coull 1998: for shares that are all 0 or 1 this is close to Wilson). The
    interval always holds the mean itself.
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
    """The percentile bootstrap interval of a mean (Efron 1979): `values` drawn anew with replacement, many times.

    Makes no assumption about the values, and so knows nothing beyond them: where all are alike it has no width.
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
    """An interval for the mean of paired differences between -1 and 1, one per problem.

    Agresti and Min (2005) for one completion a problem, where each difference is -1, 0 or 1: half a problem is added to
    each of the four cells, which is two problems of difference 0 and mean square 1/2. With several completions
    differences lie between; the same two problems are added. It has width also where nothing differs, which a bootstrap
    would take for certainty, and always holds the mean itself.
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


def mcnemar_p(gained: int, lost: int) -> float:
    """McNemar's exact test: how probable so lopsided a split of the changed problems is if either way were as likely.

    Two-sided: twice the smaller tail of Binomial(gained + lost, 1/2), at most 1.
    """
    changed = gained + lost
    tail = sum(math.comb(changed, count) for count in range(min(gained, lost) + 1))
    # As whole numbers: 2 ** changed is no float beyond 1023 changes.
    return min(1.0, 2 * tail / 2**changed)


def paired_bootstrap_p(differences: Sequence[float], draws: int = 10 * BOOTSTRAP_DRAWS) -> float:
    """How probable a mean difference at least as far from 0 is, if none were there: the differences less their mean,
    drawn anew with replacement. Never below 1 / (draws + 1)."""
    if not differences or min(differences) == max(differences) == 0:
        return 1.0
    centre = mean(differences)
    centred = [difference - centre for difference in differences]
    generator, count = random.Random(len(differences)), len(differences)
    limit = abs(centre) - 1e-12
    far = sum(abs(math.fsum(generator.choices(centred, k=count)) / count) >= limit for _ in range(draws))
    return (far + 1) / (draws + 1)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of sorted values."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
