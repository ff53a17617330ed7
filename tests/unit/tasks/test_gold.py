"""Gates on real data: every gold answer scores correct. Skipped where the data is not beside the checkout."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from groupwise.rewards.countdown import score_countdown
from groupwise.rewards.math import is_equal, score_math
from groupwise.tasks import Demonstrator, check_splits, make_task
from groupwise.tasks.countdown_solver import solve
from groupwise.types import Verdict

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA}")


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().split("\n") if line]


def test_gsm8k() -> None:
    files = {"train": str(DATA / "gsm8k/train.jsonl"), "held_out": str(DATA / "gsm8k/test.jsonl")}
    task = make_task("gsm8k", files)
    assert isinstance(task, Demonstrator)
    train, held_out = check_splits(task)
    assert (len(train), len(held_out)) == (7473, 1319)
    for problem in [*train, *held_out]:
        for completion in (task.demonstrate(problem), str(problem.meta["solution"])):
            assert task.score(problem, completion).reward == 1.0, problem


def test_math() -> None:
    files = {"train": str(DATA / "math/train.jsonl"), "held_out": str(DATA / "math/test.jsonl")}
    task = make_task("math", files)
    assert isinstance(task, Demonstrator)
    train, held_out = check_splits(task)
    # 7,500 less two without an answer, two without a level, one that is there twice and one that is held out.
    assert (len(train), len(held_out)) == (7494, 5000)
    for problem in [*train, *held_out]:
        assert task.score(problem, task.demonstrate(problem)).verdict is Verdict.CORRECT, problem


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


def test_countdown() -> None:
    rows = _rows("countdown/train_head.jsonl")
    worked = [row for row in rows if row.get("solution")]
    assert len(worked) == 10_235
    for row in worked:
        completion = f"<answer>{row['solution']}</answer>"
        assert score_countdown(row["nums"], row["target"], completion, "").reward == 1.0, row


def test_countdown_solver_on_real_puzzles() -> None:
    rows = _rows("countdown/train_head.jsonl")[::40]
    for row in rows:
        solution = solve(row["nums"], row["target"])
        assert solution is not None
        completion = f"<answer>{solution.expression}</answer>"
        assert score_countdown(row["nums"], row["target"], completion, "").reward == 1.0


def test_countdown_as_a_task() -> None:
    source = str(DATA / "countdown/train_head.jsonl")
    train, held_out = check_splits(make_task("countdown", {"train": source, "num_train": 0, "num_held_out": 200}))
    assert (len(train), len(held_out)) == (11_258 - 27 - 200, 200)
