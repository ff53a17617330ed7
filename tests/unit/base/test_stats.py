"""Intervals against numbers worked out by hand, and against how often they really hold the truth."""

from __future__ import annotations

import math
import random

import pytest

from groupwise.base.stats import (
    bootstrap_interval,
    f_tail,
    holm,
    incomplete_beta,
    mcnemar_p,
    mean,
    mean_interval,
    paired_bootstrap_p,
    paired_interval,
    std,
    student_interval,
    student_p,
    student_quantile,
    wilson_interval,
)


def test_mean_and_std_by_hand() -> None:
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert std([1.0, 2.0, 6.0]) == math.sqrt((4 + 1 + 9) / 2)
    assert std([7.0]) == 0.0
    assert math.isnan(mean([]))
    assert math.isnan(std([]))


def test_mean_does_not_depend_on_the_order() -> None:
    values = [1e16, 1.0, -1e16, 1.0]
    assert mean(values) == mean(sorted(values)) == 0.5


def test_wilson_by_hand() -> None:
    # 8 of 10 with z = 2: spread 1.4, centre (0.8 + 0.2) / 1.4, half 2/1.4 · sqrt(0.016 + 0.01).
    low, high = wilson_interval(8, 10, z=2.0)
    assert low == pytest.approx(1.0 / 1.4 - 2 / 1.4 * math.sqrt(0.026), abs=1e-12)
    assert high == pytest.approx(1.0 / 1.4 + 2 / 1.4 * math.sqrt(0.026), abs=1e-12)
    # The textbook example: 0 of 10 at 95 % is [0, z²/(10 + z²)] = [0, 0.2775].
    assert wilson_interval(0, 10) == (0.0, pytest.approx(0.27754, abs=1e-5))
    assert wilson_interval(10, 10) == (pytest.approx(0.72246, abs=1e-5), 1.0)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(-1, 10), (11, 10), (1, 0), (0, -1)])
def test_wilson_refuses_what_is_no_share(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="not a share"):
        wilson_interval(successes, n)


def test_mean_interval_by_hand() -> None:
    # 0, 0.5, 1 with 0, 0, 1, 1 added: mean 0.5, squares 6 · 0.25 = 1.5, s² = 1.5 / 6 = 0.25, half = 2 · 0.5 / √7.
    low, high = mean_interval([0.0, 0.5, 1.0], z=2.0)
    assert low == pytest.approx(0.5 - 1 / math.sqrt(7), abs=1e-12)
    assert high == pytest.approx(0.5 + 1 / math.sqrt(7), abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 50, 1000])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_mean_interval_has_width_and_holds_the_mean(share: float, n: int) -> None:
    low, high = mean_interval([share] * n)
    assert 0.0 <= low <= share <= high <= 1.0
    assert high - low > 1 / (n + 4)


def test_mean_interval_narrows_with_more_problems() -> None:
    few, many = mean_interval([0.0, 1.0] * 10), mean_interval([0.0, 1.0] * 1000)
    assert many[1] - many[0] < (few[1] - few[0]) / 5


def test_mean_interval_of_nothing_is_everything_and_of_no_share_an_error() -> None:
    assert mean_interval([]) == (0.0, 1.0)
    with pytest.raises(ValueError, match="not a share"):
        mean_interval([0.5, 1.5])
    with pytest.raises(ValueError, match="not a share"):
        mean_interval([math.nan])


@pytest.mark.parametrize("n", [10, 40, 200])
@pytest.mark.parametrize("truth", [0.03, 0.3, 0.5, 0.95])
def test_coverage(truth: float, n: int) -> None:
    """Problems differ (their pass rates follow a beta distribution) and each is tried four times."""
    generator = random.Random(f"{truth}/{n}")
    trials = 600
    covered_mean = covered_wilson = 0
    for _ in range(trials):
        rates = [generator.betavariate(truth, 1 - truth) for _ in range(n)]
        shares = [sum(generator.random() < rate for _ in range(4)) / 4 for rate in rates]
        low, high = mean_interval(shares)
        covered_mean += low <= truth <= high
        wins = sum(generator.random() < truth for _ in range(n))
        low, high = wilson_interval(wins, n)
        covered_wilson += low <= truth <= high
    # 600 trials of a true 95 % stray by about 0.9 %; small n near the edge costs Wilson a few points by its nature.
    assert covered_mean / trials > 0.925
    assert covered_wilson / trials > 0.89


def test_bootstrap_is_the_same_each_time_and_knows_no_more_than_its_values() -> None:
    values = [0.0, 3.0, 5.0, 100.0]
    assert bootstrap_interval(values) == bootstrap_interval(list(values))
    low, high = bootstrap_interval(values)
    assert 0.0 <= low < mean(values) < high <= 100.0
    assert bootstrap_interval([7.0] * 5) == (7.0, 7.0)
    assert all(math.isnan(end) for end in bootstrap_interval([]))


def test_bootstrap_intervals_hold_the_truth_95_times_in_100() -> None:
    """Lengths are skewed: exponential, of mean 100. 1,000 simulations wander by 1.4 % (two deviations)."""
    generator, hits, simulations = random.Random(5), 0, 1000
    for _ in range(simulations):
        low, high = bootstrap_interval([generator.expovariate(0.01) for _ in range(100)], draws=200)
        hits += low <= 100 <= high
    assert 0.92 <= hits / simulations <= 0.97


def test_mcnemar_by_hand() -> None:
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(5, 5) == 1.0
    # Of 5 changes all one way: 2 · (1/2)^5.
    assert mcnemar_p(5, 0) == mcnemar_p(0, 5) == 0.0625
    # Of 10 at most 2: 2 · (1 + 10 + 45) / 1024.
    assert mcnemar_p(2, 8) == pytest.approx(112 / 1024)
    assert 0 < mcnemar_p(900, 700) < 1e-6


def test_mcnemar_is_right_about_its_errors() -> None:
    """Without a difference, p is below 5 % at most 5 times in 100."""
    generator, calls, simulations = random.Random(3), 0, 4000
    for _ in range(simulations):
        gained = sum(generator.random() < 0.5 for _ in range(40))
        calls += mcnemar_p(gained, 40 - gained) < 0.05
    assert calls / simulations <= 0.055


def test_paired_interval_by_hand() -> None:
    # Agresti and Min: 3 gained, 1 lost of 10; cells 3.5 and 1.5 of 12.
    low, high = paired_interval([1.0] * 3 + [-1.0] + [0.0] * 6, z=2.0)
    half = 2 * math.sqrt((5 / 12 - (2 / 12) ** 2) / 12)
    assert (low, high) == (pytest.approx(2 / 12 - half), pytest.approx(2 / 12 + half))
    assert paired_interval([]) == (-1.0, 1.0)
    low, high = paired_interval([0.0] * 10)
    assert low < 0 < high
    with pytest.raises(ValueError, match="not a difference"):
        paired_interval([1.5])


@pytest.mark.parametrize("completions", [1, 4])
@pytest.mark.parametrize(("a", "b", "step"), [(0.5, 0.5, 0.1), (0.3, 2.0, 0.05), (3.0, 0.5, 0.0)])
def test_paired_intervals_hold_the_truth_95_times_in_100(a: float, b: float, step: float, completions: int) -> None:
    """One policy solves each problem with probability p, the other with p + step, cut at 1."""
    generator, hits, simulations = random.Random(f"{a} {b} {completions}"), 0, 2000
    trials = [generator.betavariate(a, b) for _ in range(200_000)]
    truth = mean([min(1.0, p + step) - p for p in trials])  # cutting moves the mean
    for _ in range(simulations):
        differences = []
        for _ in range(150):
            p = generator.betavariate(a, b)
            first = sum(generator.random() < p for _ in range(completions))
            second = sum(generator.random() < p + step for _ in range(completions))
            differences.append((second - first) / completions)
        low, high = paired_interval(differences)
        hits += low <= truth <= high
    assert 0.93 <= hits / simulations <= 0.97


@pytest.mark.parametrize("num_problems", [40, 150])
def test_paired_intervals_hold_the_truth_where_few_problems_flip_whole(num_problems: int) -> None:
    """Three in a hundred go from never right to always right, however often they are asked: 40 often show none."""
    generator, hits, simulations = random.Random(num_problems), 0, 2000
    for _ in range(simulations):
        low, high = paired_interval([float(generator.random() < 0.03) for _ in range(num_problems)])
        hits += low <= 0.03 <= high
    assert hits / simulations >= 0.92


def test_paired_bootstrap_finds_what_is_there_and_nothing_else() -> None:
    assert paired_bootstrap_p([]) == paired_bootstrap_p([0.0] * 20) == 1.0
    assert paired_bootstrap_p([0.25] * 40 + [0.0] * 10, draws=500) == pytest.approx(1 / 501)
    assert paired_bootstrap_p([0.5, -0.5] * 20, draws=500) == 1.0
    generator, calls = random.Random(9), 0
    for _ in range(300):
        differences = [generator.choice((-0.5, -0.25, 0.0, 0.25, 0.5)) for _ in range(60)]
        calls += paired_bootstrap_p(differences, draws=200) < 0.05
    assert 0.02 <= calls / 300 <= 0.09


@pytest.mark.parametrize(
    ("degrees", "share", "quantile"),
    [
        (1, 0.975, 12.7062),
        (2, 0.975, 4.30265),
        (3, 0.975, 3.18245),
        (4, 0.95, 2.13185),
        (5, 0.995, 4.03214),
        (10, 0.975, 2.22814),
        (30, 0.975, 2.04227),
        (120, 0.995, 2.61742),
    ],
)
def test_student_against_the_printed_tables(degrees: int, share: float, quantile: float) -> None:
    assert student_quantile(share, degrees) == pytest.approx(quantile, rel=2e-6)
    assert student_quantile(1 - share, degrees) == pytest.approx(-quantile, rel=2e-6)
    assert student_p(quantile, degrees) == pytest.approx(2 * (1 - share), rel=2e-5)


def test_student_where_it_is_known_in_closed_form() -> None:
    for t in (0.01, 0.5, 1.0, 7.0, 300.0):
        # One degree is Cauchy's distribution; two have the distribution function 1/2 + t / (2 sqrt(2 + t²)).
        assert student_p(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-9)
        assert student_p(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-9)
    assert student_p(0.0, 3) == 1.0
    assert student_p(math.inf, 3) == 0.0
    # Many degrees: the normal distribution.
    assert student_quantile(0.975, 1e7) == pytest.approx(1.959964, abs=1e-5)
    with pytest.raises(ValueError, match="not a share"):
        student_quantile(1.0, 3)


def test_student_interval_by_hand() -> None:
    # 1, 2, 6: mean 3, s² = 7, two degrees.
    low, high = student_interval([1.0, 2.0, 6.0])
    half = 4.302653 * math.sqrt(7 / 3)
    assert (low, high) == (pytest.approx(3 - half, abs=1e-5), pytest.approx(3 + half, abs=1e-5))
    assert student_interval([5.0]) == (-math.inf, math.inf)
    assert student_interval([5.0, 5.0]) == (5.0, 5.0)


def test_student_intervals_hold_the_truth_95_times_in_100() -> None:
    generator, hits, simulations = random.Random(11), 0, 2000
    for _ in range(simulations):
        low, high = student_interval([generator.gauss(3.0, 2.0) for _ in range(3)])
        hits += low <= 3.0 <= high
    assert 0.935 <= hits / simulations <= 0.965


def test_f_against_the_printed_tables_and_student() -> None:
    assert f_tail(5.14325, 2, 6) == pytest.approx(0.05, abs=1e-6)
    assert f_tail(3.32583, 5, 10) == pytest.approx(0.05, abs=1e-6)
    assert f_tail(19.0, 2, 2) == pytest.approx(0.05, abs=1e-9)
    # The square of Student's t is F with one degree above.
    assert f_tail(2.5**2, 1, 7) == pytest.approx(student_p(2.5, 7), rel=1e-12)
    assert f_tail(math.inf, 2, 2) == 0.0


def test_incomplete_beta_against_a_sum() -> None:
    """For whole a and b it is the upper tail of a binomial: P(at least a of a + b - 1)."""
    for a, b, x in ((1, 1, 0.3), (2, 5, 0.1), (7, 3, 0.9), (40, 60, 0.41), (3, 200, 0.02)):
        n = a + b - 1
        tail = math.fsum(math.comb(n, count) * x**count * (1 - x) ** (n - count) for count in range(a, n + 1))
        assert incomplete_beta(a, b, x) == pytest.approx(tail, rel=1e-11)
    assert (incomplete_beta(2, 3, 0.0), incomplete_beta(2, 3, 1.0)) == (0.0, 1.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        incomplete_beta(1, 1, 1.5)


def test_holm_by_hand() -> None:
    assert holm([]) == []
    assert holm([0.03]) == [0.03]
    # 3 · 0.01, then 2 · 0.02, then 0.03, which may not be below the one before it.
    assert holm([0.03, 0.01, 0.02]) == [pytest.approx(0.04), pytest.approx(0.03), pytest.approx(0.04)]
    assert holm([0.6, 0.7]) == [1.0, 1.0]
