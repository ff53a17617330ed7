"""Means, spreads and 95 % intervals, from the standard library alone.

Contract: plain numbers in, plain floats out; no state, no randomness. A mean or spread of nothing is NaN (the run log
stores it as null), and an interval of nothing is everything, (0, 1). It does not test hypotheses and does not draw
bootstrap samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Z_95 = 1.96
"""The 97.5 % point of the normal distribution: two-sided 95 %."""


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
