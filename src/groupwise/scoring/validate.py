"""A test of a task's verifier: every gold answer must be judged correct, and standard wrong ones not.

A gold answer must get the verdict correct and a reward of at least 1. A wrong answer must get another verdict, without
the verifier failing. The wrong ones are what policies try when they do not know: nothing, a phrase, the prompt, empty
marks, and the answer of another problem. Where two problems' gold answers are right for each other, they have the same
answer, which is no fault of the verifier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.config import ConfigError
from groupwise.scoring.scorer import PooledScorer, ScoreFunction, delayed
from groupwise.tasks.task import Demonstrator, GoldWriter, Task
from groupwise.types import Problem, Score, Verdict
from groupwise.workers import Limits

WRONG_ANSWERS = {
    "nothing": "",
    "a phrase": "I do not know the answer.",
    "empty box": "The answer is \\boxed{}.",
    "empty hashes": "#### ",
    "empty tag": "<answer></answer>",
    "empty code": "```python\n```",
    "not an answer": "\\boxed{wrong} #### wrong <answer>wrong</answer>",
    "always true": "```python\nclass T:\n    def __eq__(self, other): return True\n\ndef f(*a, **k): return T()\n```",
}
PROBLEMS_AHEAD = 500


@dataclass(frozen=True, slots=True)
class GoldFailure:
    problem_id: str
    split: str
    kind: str
    """`gold`, or the name of the wrong answer."""
    score: Score
    completion: str

    def to_json(self) -> dict[str, Any]:
        place = {"id": self.problem_id, "split": self.split, "kind": self.kind}
        score = {"verdict": self.score.verdict.value, "reward": self.score.reward, "detail": self.score.detail}
        return {**place, **score, "completion": self.completion[:400]}


@dataclass(frozen=True, slots=True)
class Validation:
    num_problems: int
    num_gold: int
    """Problems with a gold answer."""
    num_wrong: int
    """Wrong answers tried."""
    failures: tuple[GoldFailure, ...]

    @property
    def is_sound(self) -> bool:
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        kinds = Counter(failure.kind for failure in self.failures)
        gold = {"gold": self.num_gold, "gold_failed": kinds["gold"]}
        wrong = {"wrong": self.num_wrong, "wrong_failed": len(self.failures) - kinds["gold"]}
        failures = [failure.to_json() for failure in self.failures]
        return {"problems": self.num_problems, **gold, **wrong, "is_sound": self.is_sound, "failures": failures}


@dataclass(frozen=True, slots=True)
class _Case:
    problem: Problem
    split: str
    completions: dict[str, str]
    """By kind."""
    ticket: Any
    swapped: Any
    """Ticket of this gold answer on the other problem; None where there is no other."""


def validate(task: Task, *, limit: int, workers: int, limits: Limits) -> Validation:
    """Test the first `limit` problems of each split; 0: all."""
    failures: list[GoldFailure] = []
    num_problems = num_gold = num_tried = 0
    with PooledScorer(ScoreFunction(task), workers, limits) as scorer:
        for case in delayed(_cases(task, scorer, limit), PROBLEMS_AHEAD):
            num_problems += 1
            num_gold += "gold" in case.completions
            num_tried += len(case.completions)
            failures += _failures(scorer, case)
    return Validation(num_problems, num_gold, num_tried - num_gold, tuple(failures))


def _cases(task: Task, scorer: PooledScorer, limit: int) -> Iterator[_Case]:
    if isinstance(task, GoldWriter):
        write_gold: Callable[[Problem], str | None] = task.gold_completion
    elif isinstance(task, Demonstrator):
        write_gold = task.demonstrate
    else:
        raise ConfigError(
            f"{type(task).__name__} has neither gold_completion(problem) nor demonstrate(problem), so there is no gold "
            "answer to test its verifier with; add one of them (see groupwise.tasks.task)"
        )
    for split in ("train", "held_out"):
        problems: Sequence[Problem] = task.problems(split)[: limit or None]
        golds = [write_gold(problem) for problem in problems]
        for index, (problem, gold) in enumerate(zip(problems, golds, strict=True)):
            other = _other(problems, golds, index)
            own = {
                "the prompt": problem.question if problem.messages else None,
                "another problem's answer": None if other is None else golds[other],
                "gold": gold,
            }
            tried = WRONG_ANSWERS | {kind: text for kind, text in own.items() if text is not None}
            swapped = None if other is None or gold is None else scorer.submit(problems[other], [gold])
            yield _Case(problem, split, tried, scorer.submit(problem, list(tried.values())), swapped)


def _other(problems: Sequence[Problem], golds: Sequence[str | None], index: int) -> int | None:
    """Return the index of the next problem with another gold answer."""
    for step in range(1, min(len(problems), 20)):
        other = (index + step) % len(problems)
        if golds[other] is not None and golds[other] != golds[index]:
            return other
    return None


def _failures(scorer: PooledScorer, case: _Case) -> Iterator[GoldFailure]:
    scores = scorer.scores(case.ticket)
    fits_there = case.swapped is not None and scorer.scores(case.swapped)[0].verdict is Verdict.CORRECT
    for (kind, completion), score in zip(case.completions.items(), scores, strict=True):
        is_correct = score.verdict is Verdict.CORRECT
        if kind == "gold":
            is_sound = is_correct and score.reward >= 1 - 1e-9
        elif kind == "another problem's answer" and is_correct and fits_there:
            continue
        else:
            is_sound = not is_correct and not score.is_error
        if not is_sound:
            yield GoldFailure(case.problem.id, case.split, kind, score, completion)
