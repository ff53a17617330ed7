"""Copies are found, near copies too, and a shared instruction is neither. The slow way agrees."""

from __future__ import annotations

import random

from groupwise.evals.contamination import NEAR_SHARE, find_contamination
from groupwise.types import Problem
from tests.factories import make_problem

TAIL = " Reason step by step, and put your final answer within \\boxed{}."
WORDS = [f"word{number}" for number in range(300)]


def problem(key: str, text: str) -> Problem:
    return make_problem(key, text + TAIL)


def sentence(generator: random.Random, length: int = 25) -> list[str]:
    return [generator.choice(WORDS) for _ in range(length)]


def many(prefix: str, count: int, seed: int) -> list[Problem]:
    generator = random.Random(seed)
    return [problem(f"{prefix}{number}", " ".join(sentence(generator))) for number in range(count)]


def test_nothing_but_the_instruction_in_common_is_nothing() -> None:
    found = find_contamination(many("test", 50, 0), many("train", 200, 1))
    assert found.overlaps == ()
    assert (found.num_problems, found.num_training) == (50, 200)


def test_a_few_problems_of_a_template_are_not_near_to_all_others_of_it() -> None:
    """Too few to show what they have in common: the training problems show it."""

    def puzzle(key: str, generator: random.Random) -> Problem:
        numbers, target = [generator.randint(1, 99) for _ in range(3)], generator.randint(10, 99)
        rules = "Use + - * / and parentheses, and use each number exactly once, and no others besides. " * 2
        return problem(key, f"Using the numbers {numbers}, write an expression that equals {target}. {rules}")

    generator = random.Random(0)
    training = [puzzle(f"train{number}", generator) for number in range(500)]
    assert find_contamination([puzzle(f"test{number}", generator) for number in range(3)], training).overlaps == ()


def test_a_training_problem_that_is_repeated_is_no_template() -> None:
    (copied,) = many("test", 1, 0)
    near = make_problem("near", copied.messages[0].content.replace("word", "Word", 1) + " Now.")
    found = find_contamination([copied], [*many("train", 100, 1), *[near] * 20])
    assert [(overlap.kind, overlap.training_id) for overlap in found.overlaps] == [("near", "near")]


def test_copies_are_found_whatever_their_spacing_and_punctuation() -> None:
    tests = [*many("test", 20, 0), problem("copied", "A train travels $3\\times 4$ miles. How far is that?")]
    training = [*many("train", 20, 1), problem("original", "a train travels 3 \\times 4  miles how FAR is that")]
    (overlap,) = find_contamination(tests, training).overlaps
    assert (overlap.kind, overlap.problem_id, overlap.training_id, overlap.share) == ("exact", "copied", "original", 1)
    assert overlap.problem.startswith("A train")


def test_a_sign_makes_another_problem() -> None:
    tests, training = [problem("plus", "What is 59+28?")], [problem("minus", "What is 59-28?")]
    assert find_contamination(tests, training).num_exact == 0


def test_a_problem_with_one_word_changed_is_near_and_the_closest_is_told() -> None:
    generator = random.Random(4)
    words = sentence(generator, 40)
    once, twice = list(words), list(words)
    once[3] = "other"
    twice[3] = twice[30] = "other"
    training = [*many("train", 30, 1), problem("twice", " ".join(twice)), problem("once", " ".join(once))]
    found = find_contamination([*many("test", 30, 2), problem("first", " ".join(words))], training)
    (overlap,) = found.overlaps
    assert (overlap.kind, overlap.problem_id, overlap.training_id) == ("near", "first", "once")
    assert NEAR_SHARE <= overlap.share < 1
    assert "0 of 31 problems are training problems word for word, and 1 nearly so" in str(found)


def test_it_agrees_with_comparing_every_pair() -> None:
    """Share of five-word sequences in common, by plain sets, on problems without a common phrase."""
    generator = random.Random(7)
    tests, training = [], []
    for number in range(40):
        words = sentence(generator, 30)
        tests.append(make_problem(f"test{number}", " ".join(words)))
        for place in generator.sample(range(30), number % 6):
            words[place] = f"changed{generator.random()}"
        training.append(make_problem(f"train{number}", " ".join(words)))

    def runs(entry: Problem) -> set[tuple[str, ...]]:
        words = entry.messages[0].content.replace(".", " ").split()
        return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}

    expected = {}
    for test in tests:
        shares = {train.id: len(runs(test) & runs(train)) / len(runs(test)) for train in training}
        best = max(shares, key=lambda key: shares[key])
        if shares[best] >= NEAR_SHARE:
            expected[test.id] = (best, shares[best])
    found = {
        entry.problem_id: (entry.training_id, entry.share) for entry in find_contamination(tests, training).overlaps
    }
    assert found == expected
    assert 5 < len(expected) < 40
