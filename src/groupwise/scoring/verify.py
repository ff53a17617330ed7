"""Scores for a file of completions: one result per row, in order.

A row has `completion` and either the fields that the task's verifier needs (`answer` for math, `numbers` and `target`
for Countdown, `tests` for code) or the `id` of one of the task's problems. A row that cannot be read gets a result with
the reason; the others are still scored.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from groupwise.config import ConfigError
from groupwise.runs.records import score_to_json
from groupwise.scoring.scorer import PooledScorer, ScoreFunction, failed_score
from groupwise.tasks.rows import Row, parse_json
from groupwise.tasks.task import RowScorer, Task
from groupwise.types import Problem, Score, Verdict
from groupwise.workers import Limits

ROWS_AHEAD = 2000
"""Maximum rows waiting for their scores: bounds memory on files of any size."""


@dataclass(frozen=True, slots=True)
class RowResult:
    row: int
    """1-based, counting every line of the file."""
    id: Any
    """The row's own id; None where it has none."""
    score: Score
    seconds: float
    """CPU time of the verifier."""
    is_read: bool
    """False: the row cannot be used, and the score's detail says why."""

    def to_json(self) -> dict[str, Any]:
        shown = {"row": self.row} | ({} if self.id is None else {"id": self.id})
        return shown | score_to_json(self.score) | {"seconds": self.seconds}


class Problems:
    """Lookup of a row's problem by its own fields, or by the id of one of the task's problems."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def of(self, row: Row) -> Problem:
        if not isinstance(self._task, RowScorer):
            return self._by_id(row, "this task scores rows by id only (it has no bare_problem)")
        try:
            return self._task.bare_problem(row)
        except ConfigError as error:
            if "id" not in row.values:
                raise
            return self._by_id(row, str(error))

    def _by_id(self, row: Row, why_not_bare: str) -> Problem:
        identifier = row.get("id")
        if identifier not in self._known:
            raise row.error(f"no problem of the task has id {identifier!r:.80}; and {why_not_bare}")
        return self._known[identifier]

    @cached_property
    def _known(self) -> Mapping[Any, Problem]:
        return {problem.id: problem for split in ("train", "held_out") for problem in self._task.problems(split)}


def verify_file(task: Task, path: Path, *, workers: int, limits: Limits, process: str = "") -> Iterator[RowResult]:
    """Yield the results of a .jsonl file as they arrive. A file that cannot be read raises before the first."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    with file:
        yield from verify_lines(task, file, str(path), workers=workers, limits=limits, process=process)


def verify_lines(
    task: Task, lines: Iterable[bytes], name: str, *, workers: int, limits: Limits, process: str = ""
) -> Iterator[RowResult]:
    problems = Problems(task)
    waiting: deque[tuple[int, Any, Any]] = deque()  # (row, id, ticket or the score of a row that cannot be read)
    with PooledScorer(ScoreFunction(task, process), workers, limits) as scorer:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            waiting.append((number, *_submit(task, scorer, problems, line, f"{name}, row {number}")))
            if len(waiting) >= ROWS_AHEAD:
                yield _collect(scorer, waiting.popleft())
        while waiting:
            yield _collect(scorer, waiting.popleft())


def _submit(task: Task, scorer: PooledScorer, problems: Problems, line: bytes, where: str) -> tuple[Any, Any]:
    identifier = None
    try:
        values = parse_json(line, where)
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: expected an object, got {type(values).__name__}")
        identifier = values.get("id")
        row = Row(values, where)
        completion = row.get("completion")
        if not isinstance(completion, str):
            raise row.error(f"'completion' is {completion!r:.60}, expected a string")
        return identifier, scorer.submit(problems.of(row), [completion])
    except ConfigError as error:
        return identifier, failed_score(task.verifier, str(error))


def _collect(scorer: PooledScorer, entry: tuple[int, Any, Any]) -> RowResult:
    row, identifier, ticket = entry
    if isinstance(ticket, Score):
        return RowResult(row, identifier, ticket, 0.0, is_read=False)
    ((score, seconds),) = scorer.timed_scores(ticket)
    return RowResult(row, identifier, score, seconds, is_read=True)


@dataclass(slots=True)
class VerifySummary:
    """Totals of a file of results."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    num_unread: int = 0
    total_reward: float = 0.0
    seconds: float = 0.0
    slowest_s: float = 0.0

    def add(self, result: RowResult) -> None:
        self.verdicts[result.score.verdict] += 1
        self.num_unread += not result.is_read
        self.total_reward += result.score.reward
        self.seconds += result.seconds
        self.slowest_s = max(self.slowest_s, result.seconds)

    def __str__(self) -> str:
        failed = self.verdicts[Verdict.ERROR] + self.verdicts[Verdict.TIMED_OUT]
        num_judged = self.verdicts.total() - failed
        counts = ", ".join(f"{self.verdicts[verdict]} {verdict.value}" for verdict in Verdict if self.verdicts[verdict])
        lines = [f"{self.verdicts.total()} completions: {counts or 'none'}"]
        if num_judged:
            share = self.verdicts[Verdict.CORRECT] / num_judged
            lines.append(f"correct {share:.1%} of judged completions, mean reward {self.total_reward / num_judged:.4f}")
            lines.append(f"{self.seconds:.2f} s of CPU time, slowest {self.slowest_s:.3f} s")
        return "\n".join(lines)
