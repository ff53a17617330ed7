"""Scorers: a task's verifier applied to completions, in killable worker processes or in this one.

    submit(problem, completions) ─▶ ticket        returns at once: scoring runs while the engine samples
    scores(ticket) ─▶ one Score per completion    waits

A verifier is foreign code: it may raise, hang, crash, return NaN or nonsense. None of that is a wrong answer. It
becomes the verdict `error` (or `timed_out`) with the reason, and affects no other completion.

Workers import this module, so nothing here imports torch.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from groupwise.config import VerifierConfig
from groupwise.config.build import require
from groupwise.config.named_code import is_function, load_named
from groupwise.distributed.launch import launch_number
from groupwise.rewards.process.score_process import ProcessScorer, arithmetic_score, split_steps
from groupwise.runs.records import score_from_json, score_to_json
from groupwise.tasks.task import ProgramRunner, Task
from groupwise.types import Group, Problem, Score, Verdict
from groupwise.workers import Answer, Limits, Outcome, Pool, WorkerPool, num_cores, usual_workers

T = TypeVar("T")

PoolMaker = Callable[["ScoreFunction", int, Limits], Pool]
ScorerMaker = Callable[[Task, VerifierConfig], "Scorer"]

PROCESS_SCORERS = {"arithmetic": "arithmetic/1"}
"""The built-in process scorers with their versions."""


class Scorer(Protocol):
    def submit(self, problem: Problem, completions: Sequence[str]) -> Any: ...

    def scores(self, ticket: Any) -> list[Score]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class ScoreFunction:
    """The function that runs in a worker."""

    task: Task
    process: str = ""
    """A name of PROCESS_SCORERS, `module:function`, or "" for none."""
    score_steps: ProcessScorer | None = field(init=False)
    """Loaded here, so that workers receive the function and import nothing by its name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "score_steps", load_process_scorer(self.process))

    def __call__(self, problem: Problem, completion: str) -> dict[str, Any]:
        return score_to_json(self.score(problem, completion))

    def score(self, problem: Problem, completion: str) -> Score:
        score = score_completion(self.task, problem, completion)
        if self.score_steps is None or score.is_error:
            return score
        return _with_process(score, self.process, self.score_steps, completion)


class LocalScorer:
    """A scorer in this process without deadlines, for trusted verifiers and as the oracle of the pool."""

    def __init__(self, function: ScoreFunction) -> None:
        self._function = function

    def submit(self, problem: Problem, completions: Sequence[str]) -> list[Score]:
        return [self._function.score(problem, completion) for completion in completions]

    def scores(self, ticket: list[Score]) -> list[Score]:
        return ticket

    def close(self) -> None:
        pass


class PooledScorer:
    """A scorer in killable worker processes."""

    def __init__(
        self, function: ScoreFunction, num_workers: int, limits: Limits, make_pool: PoolMaker = WorkerPool
    ) -> None:
        self._verifier = function.task.verifier
        if isinstance(function.task, ProgramRunner):
            limits = replace(limits, wall_seconds=max(limits.wall_seconds, function.task.max_wall_seconds))
        self._pool = make_pool(function, num_workers, limits)

    def start(self) -> PooledScorer:
        self._pool.start()
        return self

    __enter__ = start

    def __exit__(self, *exception: object) -> None:
        self.close()

    def submit(self, problem: Problem, completions: Sequence[str]) -> tuple[int, ...]:
        return self._pool.submit(problem, completions)

    def scores(self, ticket: tuple[int, ...]) -> list[Score]:
        return [score for score, _ in self.timed_scores(ticket)]

    def timed_scores(self, ticket: tuple[int, ...]) -> list[tuple[Score, float]]:
        """Return each score with the CPU seconds that it took."""
        return [(self._score(answer), answer.seconds) for answer in self._pool.answers(ticket)]

    def close(self) -> None:
        self._pool.close()

    def _score(self, answer: Answer) -> Score:
        if answer.outcome is Outcome.DONE:
            return score_from_json(answer.value)
        verdict = Verdict.TIMED_OUT if answer.outcome is Outcome.TIMED_OUT else Verdict.ERROR
        return failed_score(self._verifier, answer.detail, verdict)


def make_scorer(task: Task, config: VerifierConfig, make_pool: PoolMaker = WorkerPool) -> Scorer:
    """Build the recipe's scorer and start its workers, so that failures show before the run begins.

    `make_pool` decides where the workers run; the default is this machine.
    """
    function = ScoreFunction(task, config.process)
    if config.workers == 0:
        return LocalScorer(function)
    ranks_here = launch_number("LOCAL_WORLD_SIZE", 1, "[1, 1e6]")
    num_workers = usual_workers(num_cores(), ranks_here) if config.workers == "auto" else config.workers
    limits = Limits(config.seconds, config.wall_seconds, config.memory_mb)
    return PooledScorer(function, num_workers, limits, make_pool).start()


def verifier_version(task: Task, process: str) -> str:
    """Return name and version of everything that decides a score, as in "math/2 + arithmetic/1"."""
    return f"{task.verifier} + {PROCESS_SCORERS.get(process, process)}" if process else task.verifier


class ScoringBatch:
    """The scores of one batch of groups: submitted as groups arrive, each distinct completion once."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._groups: list[Group] = []
        self._asked: dict[tuple[str, str], tuple[int, int]] = {}
        """(problem id, text) → (index of the ticket, position in it)."""
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
        """Return one score per rollout, in the order of `add`."""
        found = [self._scorer.scores(ticket) for ticket in self._tickets]
        result = []
        for group in self._groups:
            places = [self._asked[group.prompt.problem.id, rollout.text] for rollout in group.rollouts]
            result.append(tuple(found[ticket][position] for ticket, position in places))
        return result


def delayed(items: Iterable[T], count: int) -> Iterator[T]:
    """Yield the items in order, `count` items late: a score is collected long after its completion was submitted."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) >= count:
            yield waiting.popleft()
    yield from waiting


def score_completion(task: Task, problem: Problem, completion: str) -> Score:
    try:
        score = task.score(problem, completion)
    except Exception as error:  # noqa: BLE001 - a user's verifier may raise anything, and must not end the run
        return failed_score(task.verifier, f"{type(error).__name__}: {error}")
    fault = _fault(score)
    return failed_score(task.verifier, f"score() returned {fault}") if fault else score


def failed_score(verifier: str, detail: str, verdict: Verdict = Verdict.ERROR) -> Score:
    """Return the score of a completion that could not be judged."""
    return Score(0.0, verdict, {}, verifier, detail)


def _fault(score: object) -> str:
    """Describe what makes a score unusable; "" when nothing does."""
    if not isinstance(score, Score):
        return f"{type(score).__name__} {score!r:.80}, not a Score"
    if not isinstance(score.verdict, Verdict):
        return f"verdict = {score.verdict!r:.80}, not a Verdict"
    reward, parts = score.reward, score.parts
    # The first test is for speed: checking for a Mapping takes as long as everything else.
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
    # An int beyond the range of floats is finite but not a valid reward.
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def load_process_scorer(name: str) -> ProcessScorer | None:
    if not name:
        return None
    if name == "arithmetic":
        return arithmetic_score
    where = f"verifier.process = {name!r}"
    known = ", ".join(PROCESS_SCORERS)
    require(":" in name, f"{where}: expected one of {known}, or module:function for your own")
    scorer: ProcessScorer = load_named(name, where)
    require(
        is_function(scorer, 1),
        f"{where}: not a function that takes the steps of a completion and returns 0 to 1, or None",
    )
    return scorer


def _with_process(score: Score, name: str, scorer: ProcessScorer, completion: str) -> Score:
    try:
        value = scorer(split_steps(completion))
    except Exception as error:  # noqa: BLE001 - foreign code, like the verifier
        return failed_score(score.verifier, f"{name}: {type(error).__name__}: {error}")
    if value is None:
        return score
    if not isinstance(value, (int, float)) or not math.isfinite(value) or not 0 <= value <= 1:
        return failed_score(score.verifier, f"{name} returned {value!r:.80}, not a number from 0 to 1")
    return replace(score, process=float(value))
