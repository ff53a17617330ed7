"""Scores, intervals and comparisons against numbers worked out by hand and against slow, obvious twins."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy
import pytest

from groupwise.base.stats import paired_interval, student_quantile, wilson_interval
from groupwise.sweeps.arm_scores import KL_FROM_REFERENCE, KL_OF_UPDATES, Shares, median
from groupwise.sweeps.compare_arms import (
    adjusted,
    compare,
    problems_interval,
    problems_p,
    score_knob,
    seed_test,
    shared_spread,
    steady,
)
from groupwise.sweeps.findings_effects import steps_words
from tests.unit.sweeps.made_up import (
    NUM_STEPS,
    Truth,
    evaluation,
    knob_of_answers,
    knob_of_finals,
    make_knob,
    slow_student_p,
)


def shares(*values: float, num_problems: int = 200) -> Shares:
    return Shares(dict(enumerate(values)), num_problems)


def test_one_seed_has_the_interval_of_its_problems() -> None:
    estimate = shares(0.9).estimate()
    assert (estimate.low, estimate.high) == wilson_interval(180, 200)


def test_seeds_that_agree_do_not_make_a_score_exact() -> None:
    estimate = shares(0.9, 0.9, 0.9).estimate()
    assert (estimate.low, estimate.high) == pytest.approx(wilson_interval(180, 200))


def test_seeds_that_disagree_widen_it_within_0_and_1() -> None:
    # 0.7, 0.8, 0.9: mean 0.8, s = 0.1, half = 4.302653 · 0.1 / √3.
    estimate = shares(0.7, 0.8, 0.9).estimate()
    assert estimate.value == pytest.approx(0.8)
    assert estimate.low == pytest.approx(0.8 - 4.302653 * 0.1 / math.sqrt(3), abs=1e-6)
    assert estimate.high == 1.0


def test_median_and_steps_to_a_target() -> None:
    assert median([3.0, 1.0, math.inf]) == 3.0
    assert median([1.0, 2.0]) == 1.5
    scores = score_knob(make_knob([Truth("fast", 1.0, time_constant=3.0), Truth("never", 2.0, final=0.2)]))
    fast, never = scores.arms
    assert scores.best is fast
    assert scores.target == pytest.approx(0.9 * fast.final.mean)
    by_hand = sorted(next(e.step for e in run.evals if e.pass_at_1 >= scores.target) for run in fast.runs)
    assert fast.steps_to(scores.target) == by_hand[1]
    assert math.isinf(never.steps_to(scores.target))
    assert never.to_json(scores.target, KL_OF_UPDATES)["steps_to_target"] is None


def test_where_nothing_was_learned_there_is_nothing_to_reach() -> None:
    scores = score_knob(knob_of_finals([[0.0, 0.0], [0.0, 0.0]], before=0.0))
    assert scores.target == 0
    assert steps_words(scores, scores.arms[0]) == "–"
    assert scores.arms[0].to_json(scores.target, KL_OF_UPDATES)["steps_to_target"] is None


def test_an_arm_as_json() -> None:
    (arm,) = score_knob(make_knob([Truth("a", 1.0)])).arms
    found = arm.to_json(0.5, KL_FROM_REFERENCE)
    runs = arm.runs
    # 40 steps: the last tenth is four of them.
    tails = [[r.metrics["kl/ref_k3"] for r in run.steps[-4:]] for run in runs]
    assert found["final_kl"] == pytest.approx(numpy.mean(tails))
    assert found["largest_grad_norm"] == max(r.metrics["policy/grad_norm"] for run in runs for r in run.steps)
    assert found["tokens"] == 1000 * NUM_STEPS
    assert found["seconds"] == pytest.approx(0.5 * NUM_STEPS)
    assert found["final_by_seed"] == {str(run.seed): run.evals[-1].pass_at_1 for run in runs}
    assert found["best"] == pytest.approx(numpy.mean([max(e.pass_at_1 for e in run.evals) for run in runs]))
    assert found["before"] == pytest.approx(numpy.mean([run.evals[0].pass_at_1 for run in runs]))


def test_only_finished_runs_count() -> None:
    knob = make_knob([Truth("a", 1.0, stops_after={1: 20}), Truth("b", 2.0, stops_after={0: 5, 1: 5, 2: 5})])
    (arm,) = score_knob(knob).arms
    assert sorted(arm.final.by_seed) == [0, 2]


def test_which_kl_is_shown() -> None:
    both = make_knob([Truth("a", 1.0, has_reference=False), Truth("b", 2.0)])
    assert score_knob(both).kl_metric == KL_FROM_REFERENCE
    neither = make_knob([Truth("a", 1.0, has_reference=False)])
    assert score_knob(neither).kl_metric == KL_OF_UPDATES


def test_the_base_is_best_where_scores_are_equal() -> None:
    knob = knob_of_finals([[0.5], [0.5]])
    first, second = knob.arms
    turned = replace(knob, arms=(second, first))
    assert score_knob(turned).best.is_base


def test_two_arms_by_hand() -> None:
    """Differences 0.1, 0.2, 0.3: mean 0.2, s = 0.1, t = 2√3 with two degrees."""
    first, second = shares(0.6, 0.8, 0.9), shares(0.5, 0.6, 0.6)
    test = seed_test(first.by_seed, second.by_seed)
    assert test is not None
    t = 0.2 / (0.1 / math.sqrt(3))
    assert test.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert test.half == pytest.approx(4.302653 * 0.1 / math.sqrt(3), abs=1e-6)
    # Two arms have nobody else to share a spread with: the two-way table is the paired test.
    shared = shared_spread([first, second])
    again = seed_test(first.by_seed, second.by_seed, shared)
    assert again is not None
    assert (again.p, again.half) == (pytest.approx(test.p), pytest.approx(test.half))
    found = compare(("a", "b"), first, second, shared)
    assert found.p == pytest.approx(max(test.p, problems_p(first, second)))
    assert (found.low, found.high) == (pytest.approx(0.2 - test.half), pytest.approx(0.2 + test.half))


def test_the_shared_spread_is_the_residual_of_a_two_way_table() -> None:
    generator = numpy.random.default_rng(3)
    table = generator.uniform(0.2, 0.8, size=(5, 3))
    shared = shared_spread([shares(*row) for row in table])
    assert shared is not None
    residual = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    assert (shared.square, shared.degrees) == (pytest.approx((residual**2).sum() / 8), 8)
    # An arm that lacks a seed: within arms.
    uneven = [shares(0.1, 0.2, 0.3), Shares({0: 0.5, 2: 0.9}, 200)]
    within = shared_spread(uneven)
    assert within is not None
    assert (within.square, within.degrees) == (pytest.approx((0.02 + 0.08) / 3), 3)
    assert shared_spread([shares(0.5), shares(0.6)]) is None


def test_an_unsteady_pair_is_judged_by_its_own_spread() -> None:
    wild, calm = shares(0.2, 0.9, 0.5), shares(0.9, 0.91, 0.9)
    others = [shares(0.9, 0.9, 0.91), shares(0.91, 0.9, 0.9), shares(0.9, 0.91, 0.91)] * 3
    shared = shared_spread([wild, calm, *others])
    with_others, alone = (seed_test(wild.by_seed, calm.by_seed, spread) for spread in (shared, None))
    assert with_others == alone
    steady = seed_test(calm.by_seed, others[0].by_seed, shared)
    assert steady is not None
    assert steady.method == "over seeds, with the spread of all arms"


def test_unequal_seeds() -> None:
    # Welch: variances 0.01 / 3 and 0.08 / 2.
    found = seed_test({0: 0.1, 1: 0.2, 2: 0.3}, {5: 0.5, 6: 0.9})
    assert found is not None
    parts = (0.01 / 3, 0.08 / 2)
    degrees = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2)
    assert found.p == pytest.approx(slow_student_p(0.5 / math.sqrt(sum(parts)), degrees), abs=1e-7)
    # One seed borrows the spread of three.
    lone = seed_test({0: 0.9}, {0: 0.1, 1: 0.2, 2: 0.3})
    assert lone is not None
    assert lone.half == pytest.approx(student_quantile(0.975, 2) * 0.1 * math.sqrt(1 + 1 / 3))
    assert seed_test({0: 0.9}, {0: 0.1}) is None


def test_the_p_value_of_problems_is_the_turning_point_of_its_interval() -> None:
    generator = random.Random(5)
    for _ in range(50):
        first, second = (shares(round(200 * generator.random()) / 200) for _ in range(2))
        p = problems_p(first, second)
        low, high = problems_interval(first, second, z=1.959964)
        assert (p < 0.05) == (not low <= 0 <= high), (first, second, p)
    assert problems_p(shares(0.4), shares(0.4)) == 1.0
    assert problems_p(shares(1.0, num_problems=10**6), shares(0.0, num_problems=10**6)) < 1e-100


def test_problems_are_paired_where_both_arms_have_the_same() -> None:
    """600 of 1,000 against 560: 50 won and 10 lost, or 240 and 200, is not the same."""
    rights = [1.0] * 600 + [0.0] * 400
    few = [0.0] * 50 + rights[50:600] + [1.0] * 10 + [0.0] * 390
    many = [0.0] * 240 + rights[240:600] + [1.0] * 200 + [0.0] * 200

    def arm(values: list[float]) -> Shares:
        by_problem = {f"p{place}": value for place, value in enumerate(values)}
        return Shares({0: sum(values) / 1000}, 1000, by_problem)

    found = {name: compare(("a", "b"), arm(rights), arm(other)) for name, other in (("few", few), ("many", many))}
    for name, (won, lost) in {"few": (50, 10), "many": (240, 200)}.items():
        assert (found[name].low, found[name].high) == paired_interval(
            [1.0] * won + [-1.0] * lost + [0.0] * (1000 - won - lost)
        )
        assert found[name].method == "paired by problem"
    assert found["few"].p < 1e-6
    assert 0.04 < found["many"].p < 0.08
    # Other problems, or answers that were not kept: as if they were different ones.
    others = replace(arm(few), by_problem={f"q{place}": value for place, value in enumerate(few)})
    unpaired = compare(("a", "b"), shares(0.6, num_problems=1000), shares(0.56, num_problems=1000))
    assert compare(("a", "b"), arm(rights), others) == unpaired
    assert unpaired.method == "over problems"


def test_a_problem_counts_by_the_mean_of_its_seeds() -> None:
    knob = knob_of_answers([[[True, True, False], [True, False, False]], [[True] * 3, [True] * 3]])
    first, second = score_knob(knob).arms
    assert first.final.by_problem == {"p0": 1.0, "p1": 0.5, "p2": 0.0}
    assert "paired by problem" in compare(("a", "b"), first.final, second.final).method
    # A seed whose answers were not kept, or were to other problems: the arm has none.
    run, *others = knob.arms[0].runs
    for rates in ({}, {"p0": 1.0, "p1": 1.0, "x": 0.0}):
        lacking = replace(knob.arms[0], runs=(replace(run, pass_rates=rates), *others))
        assert score_knob(replace(knob, arms=(lacking, knob.arms[1]))).arms[0].final.by_problem == {}


def test_holm_counts_every_pair() -> None:
    compared = score_knob(knob_of_finals([[0.9, 0.91, 0.92], [0.9, 0.9, 0.91], [0.3, 0.31, 0.3]]))
    pairs = {tuple(sorted(names)): one for names, one in compared.pairs.items()}
    ranked = sorted(pairs.values(), key=lambda one: one.p)
    largest = 0.0
    for rank, one in enumerate(ranked):
        largest = max(largest, min(1.0, (3 - rank) * one.p))
        assert one.p_adjusted == pytest.approx(largest)
    assert [arm.name for arm in compared.worse] == ["arm-2"]
    assert [arm.name for arm in compared.tied] == ["arm-1"]
    there, back = compared.pairs["arm-0", "arm-2"], compared.pairs["arm-2", "arm-0"]
    assert (there.difference, there.low, there.high) == (-back.difference, -back.high, -back.low)
    assert adjusted([there], num_looks=3)[0].p_adjusted == pytest.approx(min(1.0, 3 * there.p))


def test_an_evaluation_that_is_made_up_is_one() -> None:
    record = evaluation(5, 50, 200)
    assert (record.pass_at_1, record.low < 0.25 < record.high) == (0.25, True)


def test_an_unsteady_arm_does_not_lend_its_spread_to_the_others() -> None:
    """One value never learns, one always does, one is a matter of luck."""
    never, lucky, always = (shares(*values) for values in ((0.0,) * 3, (1.0, 1.0, 0.0), (1.0,) * 3))
    assert steady([never, lucky, always]) == [never, always]
    with_it, without_it = (
        seed_test(always.by_seed, never.by_seed, shared_spread(arms))
        for arms in ([never, lucky, always], steady([never, lucky, always]))
    )
    assert with_it is not None
    assert without_it is not None
    assert with_it.p > 0.01
    assert without_it.p == 0.0
    assert steady([lucky, never]) == [lucky, never], "of two nobody can say which is the odd one"
