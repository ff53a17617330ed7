"""Runs a task's verifier on completions: in killable worker processes, or here.

    submit(problem, completions) ─▶ ticket        returns at once: scoring goes on while the engine samples
    scores(ticket) ─▶ one Score per completion    waits

A verifier is foreign code: it may raise, hang, crash, return NaN or nonsense. None of that is a wrong answer. It
becomes the verdict `error` (or `timed_out`), with the reason, and no other completion's score is touched.

Nothing here imports torch: this module is what a worker imports.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from groupwise.config import ConfigError, VerifierConfig
from groupwise.rewards.process.score_process import arithmetic_score, split_steps
from groupwise.tasks.task import Task
from groupwise.types import Group, Problem, Score, Verdict
from groupwise.workers import Answer, Limits, Outcome, Pool, WorkerPool, num_cores, usual_workers

ProcessScorer = Callable[[Sequence[str]], float | None]
"""The steps of a completion in, how sound they are from 0 to 1 out; None where there is nothing to judge."""

PoolMaker = Callable[["ScoreFunction", int, Limits], Pool]
ScorerMaker = Callable[[Task, VerifierConfig], "Scorer"]

PROCESS_SCORERS = {"arithmetic": "arithmetic/1"}
"""The built-in ones, with their versions."""


_VERDICTS = {verdict.value: verdict for verdict in Verdict}


class Scorer(Protocol):
    def submit(self, problem: Problem, completions: Sequence[str]) -> Any: ...

    def scores(self, ticket: Any) -> list[Score]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class ScoreFunction:
    """What runs in a worker."""

    task: Task
    process: str = ""
    """A name of PROCESS_SCORERS, `module:function`, or "" for none."""

    def __call__(self, problem: Problem, completion: str) -> list[Any]:
        score = self.score(problem, completion)
        return [score.reward, score.verdict.value, dict(score.parts), score.verifier, score.detail, score.process]

    def score(self, problem: Problem, completion: str) -> Score:
        score = score_completion(self.task, problem, completion)
        if not self.process or score.is_error:
            return score
        return _with_process(score, self.process, completion)


class LocalScorer:
    """Scores in this process, without deadlines: for verifiers that are trusted, and as the oracle for the pool."""

    def __init__(self, function: ScoreFunction) -> None:
        self._function = function

    def submit(self, problem: Problem, completions: Sequence[str]) -> list[Score]:
        return [self._function.score(problem, completion) for completion in completions]

    def scores(self, ticket: list[Score]) -> list[Score]:
        return ticket

    def close(self) -> None:
        pass


class PooledScorer:
    def __init__(
        self, function: ScoreFunction, num_workers: int, limits: Limits, make_pool: PoolMaker = WorkerPool
    ) -> None:
        self._verifier = function.task.verifier
        self._pool = make_pool(function, num_workers, limits)

    def start(self) -> None:
        self._pool.start()

    def submit(self, problem: Problem, completions: Sequence[str]) -> tuple[int, ...]:
        return self._pool.submit(problem, completions)

    def scores(self, ticket: tuple[int, ...]) -> list[Score]:
        return [self._score(answer) for answer in self._pool.answers(ticket)]

    def timed_scores(self, ticket: tuple[int, ...]) -> list[tuple[Score, float]]:
        """Each with the CPU seconds it took."""
        return [(self._score(answer), answer.seconds) for answer in self._pool.answers(ticket)]

    def close(self) -> None:
        self._pool.close()

    def _score(self, answer: Answer) -> Score:
        if answer.outcome is Outcome.DONE:
            reward, verdict, parts, verifier, detail, process = answer.value
            return Score(reward, _VERDICTS[verdict], parts, verifier, detail, process)
        verdict = Verdict.TIMED_OUT if answer.outcome is Outcome.TIMED_OUT else Verdict.ERROR
        return Score(0.0, verdict, {}, self._verifier, answer.detail)


def make_scorer(task: Task, config: VerifierConfig, make_pool: PoolMaker = WorkerPool) -> Scorer:
    """As the recipe says. The workers are started, so that what cannot start fails before the run begins.

    `make_pool` says where they are: by default on this machine.
    """
    load_process_scorer(config.process)
    function = ScoreFunction(task, config.process)
    if config.workers == 0:
        return LocalScorer(function)
    limits = Limits(config.seconds, config.wall_seconds, config.memory_mb)
    scorer = PooledScorer(function, _num_workers(config.workers), limits, make_pool)
    scorer.start()
    return scorer


def _num_workers(workers: int | Literal["auto"]) -> int:
    if workers != "auto":
        return workers
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # as torchrun says it
    return usual_workers(num_cores(), ranks_here)


def verifier_version(task: Task, process: str) -> str:
    """Name and version of all that decides a score, as in "math/2 + arithmetic/1"."""
    return f"{task.verifier} + {PROCESS_SCORERS.get(process, process)}" if process else task.verifier


class ScoringBatch:
    """The scores of one batch of groups: each is asked for as its group comes, and the same completion only once."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._groups: list[Group] = []
        self._asked: dict[tuple[str, str], tuple[int, int]] = {}
        """(problem, text) → (number of the ticket, position in it)."""
        self._tickets: list[Any] = []

    def add(self, group: Group) -> None:
        problem = group.prompt.problem
        new = dict.fromkeys(rollout.text for rollout in group.rollouts if (problem.id, rollout.text) not in self._asked)
        for position, text in enumerate(new):
            self._asked[problem.id, text] = (len(self._tickets), position)
        if new:
            self._tickets.append(self._scorer.submit(problem, list(new)))
        self._groups.append(group)

    def scores(self) -> list[tuple[Score, ...]]:
        """In the order of `add`: one score per rollout."""
        found = [self._scorer.scores(ticket) for ticket in self._tickets]
        result = []
        for group in self._groups:
            places = [self._asked[group.prompt.problem.id, rollout.text] for rollout in group.rollouts]
            result.append(tuple(found[ticket][position] for ticket, position in places))
        return result


def score_completion(task: Task, problem: Problem, completion: str) -> Score:
    try:
        score = task.score(problem, completion)
    except Exception as error:  # noqa: BLE001 - a user's verifier may raise anything, and must not end the run
        return _error(task, f"{type(error).__name__}: {error}")
    fault = _fault(score)
    return _error(task, f"score() returned {fault}") if fault else score


def _fault(score: object) -> str:
    """What makes this no usable score; "" when nothing does."""
    if not isinstance(score, Score):
        return f"{type(score).__name__} {score!r:.80}, not a Score"
    if not isinstance(score.verdict, Verdict):
        return f"verdict = {score.verdict!r:.80}, not a Verdict"
    reward, parts = score.reward, score.parts
    # The first test is for speed: asking for a Mapping takes as long as all the rest.
    if type(parts) is not dict and not isinstance(parts, Mapping):
        return f"parts = {parts!r:.80}, not a mapping of names to numbers"
    if not isinstance(score.verifier, str) or not isinstance(score.detail, str):
        return f"verifier = {score.verifier!r:.40} and detail = {score.detail!r:.40}, which must be strings"
    if not _is_finite(reward):
        return f"reward = {reward!r:.80}, not a finite number"
    for name, value in parts.items():
        if not isinstance(name, str):
            return f"a part named {name!r:.80}, which is not a string"
        if not _is_finite(value):
            return f"{name} = {value!r:.80}, not a finite number"
    total = sum(parts.values())
    if parts and abs(total - reward) > 1e-6 * max(1.0, abs(total)):
        return f"reward = {reward!r}, which is not the sum of its parts, {total!r}"
    return ""


def _is_finite(value: object) -> bool:
    # An int beyond the range of floats is finite and yet no reward.
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def _error(task: Task, detail: str) -> Score:
    return Score(0.0, Verdict.ERROR, {}, task.verifier, detail)


def load_process_scorer(name: str) -> ProcessScorer | None:
    if not name:
        return None
    if name == "arithmetic":
        return arithmetic_score
    module_name, _, function_name = name.partition(":")
    where = f"verifier.process = {name!r}"
    if not function_name:
        known = ", ".join(PROCESS_SCORERS)
        raise ConfigError(f"{where}: expected one of {known}, or module:function for your own")
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{where}: cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"{where}: not callable; it takes the steps of a completion and returns 0 to 1, or None")
    scorer: ProcessScorer = found
    return scorer


def _with_process(score: Score, name: str, completion: str) -> Score:
    try:
        scorer = load_process_scorer(name)
        assert scorer is not None
        value = scorer(split_steps(completion))
    except Exception as error:  # noqa: BLE001 - foreign code, like the verifier
        return replace(
            score, reward=0.0, verdict=Verdict.ERROR, parts={}, detail=f"{name}: {type(error).__name__}: {error}"
        )
    if value is None:
        return score
    if not isinstance(value, (int, float)) or not math.isfinite(value) or not 0 <= value <= 1:
        detail = f"{name} returned {value!r:.80}, not a number from 0 to 1"
        return replace(score, reward=0.0, verdict=Verdict.ERROR, parts={}, detail=detail)
    return replace(score, process=float(value))
