"""Scores from foreign verifiers: what goes wrong is an error and never a wrong answer, in this process or in a pool."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from groupwise.base.signals import StopRequested
from groupwise.config import ConfigError, VerifierConfig
from groupwise.scoring.scorer import (
    LocalScorer,
    PooledScorer,
    ScoreFunction,
    ScoringBatch,
    make_scorer,
    score_completion,
    verifier_version,
)
from groupwise.tasks import make_task
from groupwise.types import Finish, Group, Message, Problem, Prompt, Rollout, Score, Verdict
from groupwise.workers import Limits, WorkerPool

PROBLEM = Problem("p1", (Message("user", "1 + 1 = ?"),), "2")


class FakeTask:
    """Answers with whatever it was told to, or raises it."""

    verifier = "fake/3"

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[str] = []

    def problems(self, split: str) -> list[Problem]:
        return [PROBLEM]

    def score(self, problem: Problem, completion: str) -> Score:
        self.seen.append(completion)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(completion) if callable(self.answer) else self.answer


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (RecursionError("deep"), "RecursionError: deep"),
        (TimeoutError("30 s"), "TimeoutError: 30 s"),
        (None, "NoneType"),
        (1.0, "float"),
        ({"reward": 1.0}, "dict"),
        (Score(math.nan, Verdict.CORRECT), "reward = nan"),
        (Score(math.inf, Verdict.CORRECT), "reward = inf"),
        (Score(-math.inf, Verdict.WRONG), "reward = -inf"),
        (Score("1", Verdict.CORRECT), "reward = '1'"),  # type: ignore[arg-type]
        (Score(None, Verdict.CORRECT), "reward = None"),  # type: ignore[arg-type]
        (Score(1.0, Verdict.CORRECT, {"answer": math.nan}), "answer = nan"),
        (Score(1.0, Verdict.CORRECT, {"answer": 1.0, "format": "yes"}), "format = 'yes'"),  # type: ignore[dict-item]
    ],
)
def test_nonsense_is_an_error_and_never_a_wrong_answer(answer: Any, detail: str) -> None:
    score = score_completion(FakeTask(answer), PROBLEM, "2")
    assert score.verdict is Verdict.ERROR
    assert score.is_error
    assert (score.reward, dict(score.parts), score.verifier) == (0.0, {}, "fake/3")
    assert detail in score.detail


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Score(1.0, "correct"), id="verdict is a string"),  # type: ignore[arg-type]
        pytest.param(Score(1.0, None), id="verdict is None"),  # type: ignore[arg-type]
        pytest.param(Score(1.0, Verdict.CORRECT, None), id="parts is None"),  # type: ignore[arg-type]
        pytest.param(Score(1.0, Verdict.CORRECT, [1.0]), id="parts is a list"),  # type: ignore[arg-type]
        pytest.param(Score(math.nan, Verdict.CORRECT, {"reward": 1.0}), id="NaN reward hidden by a part of that name"),
        pytest.param(Score(10**400, Verdict.CORRECT), id="an integer beyond float"),
        pytest.param(Score(1.0, Verdict.CORRECT, {"answer": 1.0, "format": 0.1}), id="not the sum of its parts"),
    ],
)
def test_a_malformed_score_is_an_error(answer: Any) -> None:
    try:
        score = score_completion(FakeTask(answer), PROBLEM, "2")
    except (TypeError, OverflowError) as error:
        pytest.fail(f"a verifier's mistake ended the run: {error!r}")
    assert score.verdict is Verdict.ERROR


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, StopRequested])
def test_an_interrupt_is_not_swallowed(interrupt: type[BaseException]) -> None:
    with pytest.raises(interrupt):
        score_completion(FakeTask(interrupt()), PROBLEM, "2")


def test_a_score_passes_through_unchanged() -> None:
    score = Score(1.1, Verdict.CORRECT, {"answer": 1.0, "format": 0.1}, "fake/3", "2")
    assert score_completion(FakeTask(score), PROBLEM, "2") is score


@dataclass(frozen=True)
class Moody:
    """Does what the completion says."""

    verifier: ClassVar[str] = "moody/1"

    def problems(self, split: str) -> list[Problem]:
        return [PROBLEM]

    def score(self, problem: Problem, completion: str) -> Score:
        if completion == "spin":
            while True:
                pass
        if completion == "exit":
            raise SystemExit
        if completion == "raise":
            raise ValueError("no")
        if completion == "nan":
            return Score(math.nan, Verdict.WRONG)
        return Score(1.25, Verdict.CORRECT, {"answer": 1, "bonus": 0.25}, self.verifier, f"{problem.id} \udcff")


def many_zeros(steps: Sequence[str]) -> float | None:
    """A process scorer: the share of steps with a zero in them."""
    if any("break" in step for step in steps):
        raise KeyError("broke")
    if any("two" in step for step in steps):
        return 2.0
    return sum("0" in step for step in steps) / len(steps) if steps else None


def test_the_pool_scores_like_this_process() -> None:
    texts = ["<answer>3</answer>", "<answer>(1 + 2) * 3</answer>", "", "\x00", "\udcff", "x" * 100_000, "raise", "nan"]
    for task in (make_task("countdown", {}), make_task("arithmetic", {}), Moody()):
        problems = list(task.problems("held_out"))[:5]
        local = LocalScorer(ScoreFunction(task, "arithmetic"))
        pooled = PooledScorer(ScoreFunction(task, "arithmetic"), 2, Limits())
        for problem in problems:
            right = [task.demonstrate(problem)] if hasattr(task, "demonstrate") else []
            completions = texts + right
            expected = local.scores(local.submit(problem, completions))
            assert pooled.scores(pooled.submit(problem, completions)) == expected
            assert not right or expected[-1].verdict is Verdict.CORRECT
        pooled.close()


def test_a_time_out_and_a_crash_have_their_own_verdicts() -> None:
    pooled = PooledScorer(ScoreFunction(Moody()), 2, Limits(seconds=0.2))
    start = time.monotonic()
    scores = pooled.scores(pooled.submit(PROBLEM, ["fine", "spin", "exit", "raise", "nan", "fine"]))
    pooled.close()
    assert time.monotonic() - start < 60
    assert [score.verdict.value for score in scores] == ["correct", "timed_out", "error", "error", "error", "correct"]
    assert [score.is_error for score in scores] == [False, True, True, True, True, False]
    assert all(score.reward == 0 for score in scores if score.is_error)
    assert "0.2 s of CPU time" in scores[1].detail
    assert "SystemExit" in scores[2].detail
    assert {score.verifier for score in scores} == {"moody/1"}


def group(problem: Problem, *texts: str) -> Group:
    rollouts = tuple(Rollout((1,), (-1.0,), text, Finish.STOP, 0) for text in texts)
    return Group(Prompt(problem, (1,)), rollouts)


def test_the_same_completion_of_the_same_problem_is_judged_once_in_a_batch() -> None:
    task = FakeTask(lambda text: Score(float(text), Verdict.CORRECT))
    other = Problem("p2", PROBLEM.messages, "3")
    batch = ScoringBatch(LocalScorer(ScoreFunction(task)))
    batch.add(group(PROBLEM, "1", "2", "1", "1", "2"))
    batch.add(group(other, "1", "3"))
    batch.add(group(PROBLEM, "2", "4", "1"))
    assert task.seen == ["1", "2", "1", "3", "4"]
    rewards = [[score.reward for score in scores] for scores in batch.scores()]
    assert rewards == [[1, 2, 1, 1, 2], [1, 3], [2, 4, 1]]


def test_the_process_score_is_kept_beside_the_outcome() -> None:
    task = FakeTask(Score(1.0, Verdict.CORRECT, {"answer": 1.0}))
    name = f"{many_zeros.__module__}:many_zeros"
    score = ScoreFunction(task, name).score(PROBLEM, "10 of them.\nNone here.")
    assert (score.reward, score.process) == (1.0, 0.5)
    failed = ScoreFunction(task, name).score(PROBLEM, "break\nit")
    assert (failed.verdict, failed.reward, dict(failed.parts)) == (Verdict.ERROR, 0.0, {})
    assert "KeyError" in failed.detail
    assert ScoreFunction(task, name).score(PROBLEM, "two\nof").verdict is Verdict.ERROR
    arithmetic = ScoreFunction(task, "arithmetic")
    assert arithmetic.score(PROBLEM, "1 + 1 = 2, and 2 * 3 = 7.").process == 0.5
    assert arithmetic.score(PROBLEM, "No sums here.").process is None


def test_a_process_scorer_that_is_not_there_is_refused() -> None:
    for name, message in (
        ("arithmetics", "expected one of arithmetic, or module:function"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("math:pi", "'math' belongs to Python's standard library"),
        (f"{many_zeros.__module__}:PROBLEM", "not a function that takes the steps"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_scorer(Moody(), VerifierConfig(workers=0, process=name))


def test_the_version_covers_the_process_scorer() -> None:
    assert verifier_version(Moody(), "") == "moody/1"
    assert verifier_version(Moody(), "arithmetic") == "moody/1 + arithmetic/1"
    assert verifier_version(Moody(), "mine:f") == "moody/1 + mine:f"


def test_no_workers_is_this_process() -> None:
    assert isinstance(make_scorer(Moody(), VerifierConfig(workers=0)), LocalScorer)
    scorer = make_scorer(Moody(), VerifierConfig(workers=1))
    assert isinstance(scorer, PooledScorer)
    scorer.close()


@pytest.mark.parametrize(("ranks_here", "expected"), [("1", 6), ("3", 2)])
def test_as_many_workers_as_the_cores_of_a_rank_allow(
    ranks_here: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groupwise.scoring.scorer.num_cores", lambda: 12)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks_here)
    asked = []

    def make_pool(function: ScoreFunction, num_workers: int, limits: Limits) -> WorkerPool:
        asked.append(num_workers)
        return WorkerPool(function, 1, limits)

    make_scorer(Moody(), VerifierConfig(), make_pool).close()
    assert asked == [expected]
