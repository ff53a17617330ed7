"""pass@k and maj@k against trying out every subset."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from groupwise.evals.scores import majority_at_k, pass_at_k


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
