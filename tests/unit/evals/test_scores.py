"""From groups to scores, counted by hand; how often their intervals hold the truth; estimators against all subsets."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest

from groupwise.base.stats import mean_interval, wilson_interval
from groupwise.evals.scores import majority_at_k, pass_at_k, score_groups, share_estimate
from groupwise.runs.results import Estimate
from groupwise.types import Finish, ScoredGroup
from tests.factories import ERROR, LATE, RIGHT, UNPARSED, WRONG, make_scored

BOX = ("boxed",)


def four(key: str, *verdicts: object, **more: object) -> ScoredGroup:
    texts = {RIGHT: "\\boxed{1}", WRONG: "\\boxed{2}", UNPARSED: "hm", ERROR: "\\boxed{1}", LATE: "\\boxed{1}"}
    return make_scored(key, [(texts[verdict], verdict) for verdict in verdicts], **more)  # type: ignore[arg-type, index]


def test_scores_by_hand() -> None:
    groups = [
        four("a", RIGHT, RIGHT, WRONG, UNPARSED),
        four("b", WRONG, WRONG, RIGHT, UNPARSED),
        four("c", WRONG, WRONG, WRONG, WRONG),
        four("d", RIGHT, ERROR, LATE, ERROR),
    ]
    scores, by = score_groups(groups, n=4, ks=(1, 2, 4), marks=BOX)
    assert scores["pass@1"].value == pytest.approx((0.5 + 0.25 + 0 + 1) / 4)
    assert (scores["pass@1"].n, scores["pass@1"].method) == (4, "plus_four")
    # d has one completion that could be judged: too few for two.
    assert scores["pass@2"].value == pytest.approx((pass_at_k(4, 2, 2) + pass_at_k(4, 1, 2) + 0) / 3)
    assert (scores["pass@2"].n, scores["pass@2"].left_out) == (3, 1)
    # Of all four completions: right wins in a (2 : 1), loses in b (1 : 2) and in c.
    assert scores["maj@4"] == scores["best_of_4_by_majority"]
    assert scores["maj@4"].value == pytest.approx(1 / 3)
    assert scores["best_of_4_by_verifier"] == Estimate(2 / 3, *wilson_interval(2, 3), 3, "wilson", 1)
    assert scores["unparsed_share"].value == pytest.approx((0.25 + 0.25) / 4)
    assert scores["error_share"].value == pytest.approx(0.5 / 4)
    assert scores["timed_out_share"].value == pytest.approx(0.25 / 4)
    assert scores["truncated_share"].value == 0
    assert scores["mean_reward"].value == pytest.approx((0.5 + 0.25 + 0 + 1) / 4)
    assert by == {}


def test_one_completion_a_problem_is_a_plain_share() -> None:
    groups = [four(str(key), RIGHT if key < 3 else WRONG, finish=Finish.LENGTH) for key in range(10)]
    scores, _ = score_groups(groups, n=1, ks=(1,), marks=BOX)
    assert scores["pass@1"] == Estimate(0.3, *wilson_interval(3, 10), 10, "wilson")
    assert scores["truncated_share"] == Estimate(1.0, *wilson_interval(10, 10), 10, "wilson")
    assert not any(name.startswith(("maj", "best_of")) for name in scores)


def test_answers_that_are_written_differently_are_one_vote() -> None:
    texts = ["\\boxed{\\frac12}", "\\boxed{\\dfrac{1}{2}}", "\\boxed{ 7 }"]
    group = make_scored("a", [(texts[0], WRONG), (texts[1], WRONG), (texts[2], RIGHT)])
    scores, _ = score_groups([group], n=3, ks=(3,), marks=BOX)
    assert scores["maj@3"].value == 0.0


def test_a_task_without_marked_answers_has_no_majority() -> None:
    groups = [make_scored("a", [("def f(): pass", RIGHT), ("def g(): pass", WRONG)])]
    scores, _ = score_groups(groups, n=2, ks=(1, 2), marks=("tag",))
    assert not any("maj" in name for name in scores)
    assert scores["best_of_2_by_verifier"].value == 1.0


def test_by_level_and_subject() -> None:
    groups = [
        four("a", RIGHT, meta={"level": 10, "subject": "Geometry"}),
        four("b", WRONG, meta={"level": 2, "subject": "Geometry"}),
        four("c", RIGHT, meta={"level": 2, "subject": "Algebra"}),
    ]
    _, by = score_groups(groups, n=1, ks=(1,), marks=BOX)
    assert list(by["level"]) == ["2", "10"]
    assert list(by["subject"]) == ["Algebra", "Geometry"]
    assert by["level"]["2"]["pass@1"].value == 0.5
    assert by["subject"]["Algebra"]["pass@1"].n == 1


def test_the_order_of_completion_does_not_matter() -> None:
    groups = [four(str(key), *([RIGHT] * (key % 3) + [WRONG] * (4 - key % 3))) for key in range(30)]
    shuffled = random.Random(1).sample(groups, len(groups))
    asked = {"n": 4, "ks": (1, 4), "marks": BOX}
    assert score_groups(groups, **asked) == score_groups(shuffled, **asked)  # type: ignore[arg-type]


def test_nothing_that_could_be_judged_is_nan_with_every_value_possible() -> None:
    scores, _ = score_groups([four("a", ERROR)], n=1, ks=(1,), marks=BOX)
    found = scores["pass@1"]
    assert math.isnan(found.value)
    assert (found.low, found.high, found.n, found.left_out) == (0.0, 1.0, 0, 1)


def beta_pass_at_k(a: float, b: float, k: int) -> float:
    """E[1 - (1-p)^k] for p ~ Beta(a, b)."""
    return 1 - math.exp(math.lgamma(b + k) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + k))


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (0.3, 1.5), (2.0, 2.0), (2.0, 0.2)])
@pytest.mark.parametrize("k", [1, 4])
def test_intervals_hold_the_truth_95_times_in_100(a: float, b: float, k: int) -> None:
    """Problems of random difficulty, eight completions each. 2,000 simulations wander by 1 % (two deviations)."""
    generator, truth, hits, simulations = random.Random(f"{a} {b} {k}"), beta_pass_at_k(a, b, k), 0, 2000
    values_of = [pass_at_k(8, correct, k) for correct in range(9)]
    for _ in range(simulations):
        difficulties = [generator.betavariate(a, b) for _ in range(200)]
        values = [values_of[sum(generator.random() < p for _ in range(8))] for p in difficulties]
        low, high = mean_interval(values)
        hits += low <= truth <= high
    assert 0.93 <= hits / simulations <= 0.97


def test_wilson_intervals_hold_the_truth_95_times_in_100() -> None:
    generator, simulations = random.Random(6), 4000
    for share in (0.05, 0.3, 0.9):
        draws = ([float(generator.random() < share) for _ in range(200)] for _ in range(simulations))
        found = [share_estimate(values, 200) for values in draws]
        hits = sum(estimate.low <= share <= estimate.high for estimate in found)
        assert 0.93 <= hits / simulations <= 0.97


def every_pass(n: int, correct: int, k: int) -> float:
    subsets = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
    return sum(any(subset) for subset in subsets) / len(subsets)


def every_majority(correct: int, wrong: tuple[int, ...], silent: int, k: int) -> float:
    named = ["right"] * correct + [str(index) for index, size in enumerate(wrong) for _ in range(size)]
    total, count = 0.0, 0
    for subset in itertools.combinations([*named, *[None] * silent], k):
        count += 1
        votes = Counter(answer for answer in subset if answer is not None)
        first = [answer for answer in votes if votes[answer] == max(votes.values())]
        total += ("right" in first) / max(len(first), 1)
    return total / count


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one() -> None:
    for n in range(1, 9):
        for correct in range(n + 1):
            for k in range(1, n + 1):
                assert pass_at_k(n, correct, k) == pytest.approx(every_pass(n, correct, k), abs=1e-15)


def test_pass_at_1_is_the_plain_share_to_the_last_bit() -> None:
    assert all(pass_at_k(n, c, 1) == c / n for n in range(1, 65) for c in range(n + 1))


def test_majority_is_the_share_of_subsets_that_it_wins() -> None:
    generator = random.Random(0)
    tried = 0
    while tried < 300:
        correct, silent = generator.randint(0, 4), generator.randint(0, 2)
        wrong = tuple(generator.randint(1, 3) for _ in range(generator.randint(0, 3)))
        n = correct + sum(wrong) + silent
        if n == 0:
            continue
        k = generator.randint(1, n)
        expected = every_majority(correct, wrong, silent, k)
        assert majority_at_k(correct, wrong, silent, k) == pytest.approx(expected, abs=1e-12)
        tried += 1


def test_majority_by_hand() -> None:
    # All four: two right, two of one wrong answer. A tie, so half.
    assert majority_at_k(2, (2,), 0, 4) == 0.5
    # One vote beats three completions that say nothing.
    assert majority_at_k(1, (), 3, 4) == 1.0
    # Nobody votes: nobody is right.
    assert majority_at_k(0, (), 4, 2) == 0.0
    assert majority_at_k(3, (1,), 0, 1) == 0.75


@pytest.mark.parametrize("k", [0, 5, -1])
def test_more_than_there_are_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="k = "):
        pass_at_k(4, 1, k)
    with pytest.raises(ValueError, match="k = "):
        majority_at_k(2, (1,), 1, k)
