"""The generated tasks: the same seed gives the same problems, the splits are apart, and what they show is right."""

import json
import re
from dataclasses import make_dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.config.build import ConfigError
from groupwise.tasks import check_splits, make_task
from groupwise.tasks.task import Demonstrator, GeneratedTask
from groupwise.types import Verdict

GENERATED = ["arithmetic", "countdown", "format-copy"]
SMALL = {"num_train": 60, "num_held_out": 20}


@pytest.mark.parametrize("name", GENERATED)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), style=st.sampled_from(["chat", "terse"]))
def test_deterministic_disjoint_and_demonstrable(name: str, seed: int, style: str) -> None:
    options = {**SMALL, "seed": seed, "style": style}
    task, again = make_task(name, options), make_task(name, options)
    train, held_out = check_splits(task)
    assert (len(train), len(held_out)) == (60, 20)
    assert (train, held_out) == check_splits(again)
    assert isinstance(task, Demonstrator)
    for problem in [*train[:10], *held_out[:5]]:
        assert json.loads(json.dumps(problem.meta)) == problem.meta
        assert isinstance(problem.meta["level"], int)
        score = task.score(problem, task.demonstrate(problem))
        assert score.verdict is Verdict.CORRECT
        assert score.parts["correct"] == 1.0
        assert score.verifier == task.verifier


@pytest.mark.parametrize("name", GENERATED)
def test_seeds_matter_and_counts_do_not_move_the_held_out_problems(name: str) -> None:
    task = make_task(name, SMALL)
    assert task.problems("held_out") == make_task(name, {**SMALL, "num_train": 200}).problems("held_out")
    assert task.problems("train") == make_task(name, {**SMALL, "num_train": 200}).problems("train")[:60]
    assert task.problems("train") != make_task(name, {**SMALL, "seed": 1}).problems("train")


@pytest.mark.parametrize("name", GENERATED)
def test_another_problem_s_demonstration_is_not_correct(name: str) -> None:
    task = make_task(name, SMALL)
    assert isinstance(task, Demonstrator)
    problems = task.problems("train")
    pairs = [(one, other) for one in problems[:20] for other in problems[:20] if one.answer != other.answer]
    assert len(pairs) > 100
    assert all(task.score(one, task.demonstrate(other)).verdict is not Verdict.CORRECT for one, other in pairs)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("format-copy", {"max_digits": 1}, r"1000 \+ 100 = 1100, but there are at most 10 distinct.*raise max_digits"),
        (
            "format-copy",
            {"min_digits": 3, "max_digits": 2},
            "min_digits = 3, max_digits = 2: the first must not be larger",
        ),
        ("format-copy", {"min_digits": 0}, "min_digits = 0: must be from 1 to 18"),
        ("format-copy", {"num_train": 0}, "num_train = 0: must be"),
        ("arithmetic", {"levels": [1]}, r"2000 \+ 200 = 2200, but there are at most 55 distinct.*add levels"),
        ("arithmetic", {"levels": []}, r"levels = \[\]: name at least one"),
        ("arithmetic", {"levels": [1, 1]}, "and each only once"),
        ("arithmetic", {"levels": [6]}, "levels.0 = 6: must be from 1 to 5"),
        ("arithmetic", {"format_bonus": 1.0}, "format_bonus = 1.0"),
        ("arithmetic", {"num_held_out": -1}, "num_held_out = -1"),
        ("countdown", {"max_numbers": 5}, "max_numbers = 5: must be from 2 to 4"),
        ("countdown", {"min_number": 0}, "min_number = 0: must be from 1 to 1,000,000,000"),
        ("countdown", {"min_target": 20, "max_target": 10}, "min_target = 20, max_target = 10"),
        ("countdown", {"num_train": 0}, "num_train = 0"),
        ("countdown", {"max_number": 2, "max_numbers": 3}, "2200, but there are at most 364 distinct.*widen the range"),
        (
            "countdown",
            {"max_number": 9, "min_numbers": 2, "max_numbers": 2, "min_target": 82, "num_train": 9, "num_held_out": 1},
            r"9 \+ 1 = 10, but 12000 draws gave 0 distinct",
        ),
    ],
)
def test_what_cannot_be_generated_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_splits(make_task(name, options))


def test_a_whole_space_can_be_used() -> None:
    train, held_out = check_splits(make_task("format-copy", {"max_digits": 1, "num_train": 8, "num_held_out": 2}))
    assert sorted(int(problem.answer) for problem in [*train, *held_out]) == list(range(10))


def test_the_order_of_operands_does_not_make_another_problem() -> None:
    task = make_task("arithmetic", {"levels": [1], "num_train": 45, "num_held_out": 10, "style": "terse"})
    train, held_out = check_splits(task)
    sums = {tuple(sorted(re.findall(r"\d", problem.messages[0].content))) for problem in [*train, *held_out]}
    assert len(sums) == 55
    options = {"max_numbers": 3, "max_number": 6, "min_target": 1, "num_train": 200, "num_held_out": 50}
    train, held_out = check_splits(make_task("countdown", options))
    assert len({(*sorted(problem.meta["nums"]), problem.answer) for problem in [*train, *held_out]}) == 250


LEVEL_SHAPES = {
    1: r"\d\+\d",
    2: r"\d{2}[+-]\d{2}",
    3: r"\d{3}[+-]\d{3}",
    4: r"\d{2}\*\d{1,2}",
    5: r"\(\d+[-+*]\d+\)[-+*]\d+|\d+[-+*]\(\d+[-+*]\d+\)",
}


def test_arithmetic_levels_and_answers() -> None:
    problems = make_task("arithmetic", {"style": "terse", "num_train": 500}).problems("train")
    assert {problem.meta["level"] for problem in problems} == {1, 2, 3, 4, 5}
    for problem in problems:
        expression = problem.messages[0].content.removesuffix("=")
        assert re.fullmatch(LEVEL_SHAPES[problem.meta["level"]], expression)
        assert eval(expression) == int(problem.answer)  # our own text, never a model's
        assert problem.meta["level"] == 5 or int(problem.answer) >= 0


def test_arithmetic_rewards() -> None:
    task = make_task("arithmetic", {"format_bonus": 0.25})
    problem = task.problems("train")[0]
    right, wrong = f"<answer>{problem.answer}</answer>", f"<answer>{int(problem.answer) + 1}</answer>"
    assert task.score(problem, right).reward == 1.25
    assert (task.score(problem, wrong).reward, task.score(problem, wrong).verdict) == (0.25, Verdict.WRONG)
    assert task.score(problem, "<answer>?</answer>").verdict is Verdict.UNPARSED
    assert (task.score(problem, problem.answer).reward, task.score(problem, problem.answer).verdict) == (
        0.0,
        Verdict.UNPARSED,
    )


def test_format_copy_lengths() -> None:
    problems = make_task("format-copy", {"min_digits": 2, "max_digits": 3, "num_train": 200}).problems("train")
    assert {len(problem.answer) for problem in problems} == {2, 3} == {problem.meta["level"] for problem in problems}
    assert all(problem.answer in problem.messages[0].content for problem in problems)


def test_prompts_hide_the_answer_of_countdown_and_show_the_rest() -> None:
    for style in ("chat", "terse"):
        for problem in make_task("countdown", {**SMALL, "style": style}).problems("train"):
            shown = [int(number) for number in re.findall(r"\d+", problem.messages[0].content)]
            assert shown[: problem.meta["level"]] == problem.meta["nums"]
            assert shown[problem.meta["level"]] == problem.meta["target"]


def test_terse_prompts_are_short() -> None:
    problem = make_task("countdown", {**SMALL, "style": "terse"}).problems("train")[0]
    assert re.fullmatch(r"numbers:( \d+)+ target: \d+", problem.messages[0].content)


def test_limits_hold_for_your_own_task_whose_types_cannot_be_found() -> None:
    mine = make_dataclass("Mine", [("size", "OnlyInAFunction", 1)], bases=(GeneratedTask,), frozen=True)
    assert mine(num_train=3).num_train == 3
    with pytest.raises(ConfigError, match="num_train = 0: must be"):
        mine(num_train=0)
