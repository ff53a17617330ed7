"""Gates on real data: every gold answer scores correct, on the shipped rows and on the full sets where present."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from groupwise.rewards.expression import score_countdown
from groupwise.rewards.math.equality import is_equal, judge
from groupwise.rewards.math.latex import parse_latex
from groupwise.rewards.math.latex_compare import compare
from groupwise.rewards.math.normalize import normalize, split_unit
from groupwise.rewards.math.score_math import score_math
from groupwise.tasks import check_splits, make_task
from groupwise.tasks.countdown import solve
from groupwise.tasks.task import Demonstrator, GoldWriter, Task
from groupwise.types import Problem, Verdict
from tests.real_data import FULL, SHIPPED, needs_full_data, read_rows, shipped_or_full


def _rows(name: str) -> list[dict[str, Any]]:
    return read_rows(FULL / name)


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_shipped_rows(name: str, tmp_path: Path) -> None:
    path = SHIPPED / "gsm8k.jsonl"
    if name == "math":
        # MATH's own problems are not shipped: its answers, each to a question of ours.
        path = tmp_path / "math.jsonl"
        answers = [row["answer"] for row in read_rows(SHIPPED / "math_answers.jsonl")]
        rows = [
            {"problem": f"Problem {n}", "solution": f"So \\boxed{{{answer}}}.", "answer": answer, "level": 1}
            for n, answer in enumerate(answers)
        ]
        path.write_text("".join(json.dumps(row | {"subject": "Algebra"}) + "\n" for row in rows))
    task = make_task(name, {"held_out": str(path)})
    problems = task.problems("held_out")
    assert len(problems) == 50
    for problem in problems:
        for completion in _golds(task, problem):
            score = task.score(problem, completion)
            assert (score.verdict, score.parts["correct"]) == (Verdict.CORRECT, 1.0), problem
    for problem, other in pairwise(problems):
        if problem.answer != other.answer:
            assert task.score(problem, _golds(task, other)[0]).verdict is Verdict.WRONG


def _golds(task: Task, problem: Problem) -> list[str]:
    assert isinstance(task, Demonstrator)
    assert isinstance(task, GoldWriter)
    gold = task.gold_completion(problem)
    assert gold is not None
    return [gold, task.demonstrate(problem)]


@pytest.mark.parametrize("path", shipped_or_full("math_answers.jsonl", "math/test.jsonl"))
def test_math_answers_are_equal_to_themselves_respelled(path: Path) -> None:
    for answer in {row["answer"] for row in read_rows(path)}:
        assert is_equal(answer, " " + answer.replace("\\frac", "\\dfrac")), answer


def test_generated_countdown_puzzles() -> None:
    for problem in make_task("countdown", {"num_train": 1, "num_held_out": 50, "seed": 1}).problems("held_out"):
        solution = solve(problem.meta["nums"], problem.meta["target"])
        assert solution is not None
        completion = f"<answer>{solution.expression}</answer>"
        assert score_countdown(problem.meta["nums"], problem.meta["target"], completion, "").reward == 1.0


@needs_full_data
def test_gsm8k() -> None:
    files = {"train": str(FULL / "gsm8k/train.jsonl"), "held_out": str(FULL / "gsm8k/test.jsonl")}
    task = make_task("gsm8k", files)
    assert isinstance(task, Demonstrator)
    train, held_out = check_splits(task)
    assert (len(train), len(held_out)) == (7473, 1319)
    assert isinstance(task, GoldWriter)
    for problem in [*train, *held_out]:
        for completion in (task.demonstrate(problem), str(problem.meta["solution"]), task.gold_completion(problem)):
            assert completion is not None
            assert task.score(problem, completion).reward == 1.0, problem


@needs_full_data
def test_math() -> None:
    files = {"train": str(FULL / "math/train.jsonl"), "held_out": str(FULL / "math/test.jsonl")}
    task = make_task("math", files)
    assert isinstance(task, Demonstrator)
    train, held_out = check_splits(task)
    # 7,500 less two without an answer, two without a level, one that is there twice and one that is held out.
    assert (len(train), len(held_out)) == (7494, 5000)
    assert isinstance(task, GoldWriter)
    for problem in [*train, *held_out]:
        for completion in (task.demonstrate(problem), task.gold_completion(problem)):
            assert completion is not None
            assert task.score(problem, completion).verdict is Verdict.CORRECT, problem


@needs_full_data
def test_math_answers_are_read_by_our_own_parser() -> None:
    """What it cannot read is compared as text only, so nearly all of it must be words."""
    answers = {row["answer"] for name in ("train", "test") for row in _rows(f"math/{name}.jsonl") if row["answer"]}
    unread = sorted(answer for answer in answers if parse_latex(split_unit(answer)[0]) is None)
    words = [answer for answer in unread if "\\text" in answer or "\\mbox" in answer]
    assert len(answers) == 4339
    assert len(words) <= 59
    assert [answer for answer in unread if answer not in words] == [
        "0.0011_{2}",  # a numeral with a point
        "\\$\\dfrac23 \\approx \\$0.67",  # two answers
        "\\begin{pmatrix} 1 & -1 \\\\ 1 & \\phantom -1 \\end{pmatrix}",
        "\\frac{1}{7}\\triangle ABC",
        "\\overline{CD}",
    ]


@needs_full_data
def test_math_answers_respelled_are_the_same_tree() -> None:
    """Not as text, where it would be too easy: the points alone must find an answer the same as itself, respelled."""

    def refuse(*_: object) -> bool:
        raise AssertionError("algebra was asked")

    answers = sorted({row["answer"] for row in _rows("math/test.jsonl")})
    too_large = {"\\frac{1}{2004!}"}
    num_compared = 0
    for answer in answers:
        body = split_unit(answer)[0]
        respelled = body.replace("\\frac", "\\tfrac").replace("+", " + ").replace("\\left", "").replace("\\right", "")
        trees = parse_latex(body), parse_latex(respelled)
        if trees[0] is not None and trees[1] is not None:
            num_compared += 1
            has_long_number = any(len(digits) > 4 for digits in re.findall("[0-9]+", body))
            if answer not in too_large and not has_long_number:
                assert compare(trees[0], trees[1], refuse), answer
    assert num_compared > 2000


@needs_full_data
def test_math_answers_of_other_problems_are_not_correct() -> None:
    """Neighbours in the file share a subject. Equal pairs are those that a person would call equal: 0.5 and 1/2."""
    answers = [row["answer"] for row in _rows("math/test.jsonl")]
    plain = [answer for answer in answers if answer.lstrip("-").isdecimal()]
    for one, other in pairwise(plain):
        assert is_equal(one, other) == (int(one) == int(other))
    for other in answers[1:1000:7]:
        assert score_math(answers[0], f"\\boxed{{{other}}}", "").verdict is (
            Verdict.CORRECT if other == answers[0] else Verdict.WRONG
        )


@needs_full_data
def test_math_latex_answers_of_other_problems_are_not_correct() -> None:
    """Neighbours whose answers are LaTeX and spelled differently; those few that are equal are listed."""
    answers = [row["answer"] for row in _rows("math/test.jsonl")]
    latex = [answer for answer in answers if not answer.lstrip("-").isdecimal()]
    same = {
        (one, other)
        for step in (1, 2, 3)
        for one, other in zip(latex, latex[step:], strict=False)
        if normalize(one) != normalize(other) and judge(one, other).is_same
    }
    assert same == set()


@needs_full_data
def test_countdown() -> None:
    rows = _rows("countdown/train_head.jsonl")
    worked = [row for row in rows if row.get("solution")]
    assert len(worked) == 10_235
    for row in worked:
        completion = f"<answer>{row['solution']}</answer>"
        assert score_countdown(row["nums"], row["target"], completion, "").reward == 1.0, row


@needs_full_data
def test_countdown_solver_on_real_puzzles() -> None:
    rows = _rows("countdown/train_head.jsonl")[::40]
    for row in rows:
        solution = solve(row["nums"], row["target"])
        assert solution is not None
        completion = f"<answer>{solution.expression}</answer>"
        assert score_countdown(row["nums"], row["target"], completion, "").reward == 1.0


@needs_full_data
def test_countdown_as_a_task() -> None:
    source = str(FULL / "countdown/train_head.jsonl")
    train, held_out = check_splits(make_task("countdown", {"train": source, "num_train": 0, "num_held_out": 200}))
    assert (len(train), len(held_out)) == (11_258 - 27 - 200, 200)
