"""Scores for a file of completions: one result per row, in order.

A row has `completion` and either the fields that the task's verifier needs (`answer` for math, `numbers` and `target`
for Countdown, `tests` for code) or the `id` of one of the task's problems. A row that cannot be read gets a result with
the reason; the others are still scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from groupwise.base.text_layout import percent
from groupwise.config import ConfigError
from groupwise.config.build import shown
from groupwise.runs.records import score_to_json
from groupwise.scoring.scorer import PooledScorer, ScoreFunction, delayed, failed_score
from groupwise.tasks.rows import Row, as_row, numbered_lines, open_rows, parse_json
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


class _Problems:
    """Lookup of a row's problem by its own fields, or by the id of one of the task's problems."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def find(self, row: Row) -> Problem:
        why_not_bare = "this task scores rows by id only (it has no bare_problem)"
        if isinstance(self._task, RowScorer):
            try:
                return self._task.bare_problem(row)
            except ConfigError as error:
                if row.values.get("id") is None:
                    raise
                why_not_bare = str(error).removeprefix(f"{row.where}: ")
        identifier = row.get("id")
        known, why_unknown = self._known
        if not isinstance(identifier, str) or identifier not in known:
            why = why_unknown or "no problem of the task has it"
            raise row.error(f"{why_not_bare}; and its id {shown(identifier)} does not help: {why}")
        return known[identifier]

    @cached_property
    def _known(self) -> tuple[Mapping[str, Problem], str]:
        """The task's problems by id, or why there are none."""
        try:
            splits = [self._task.problems(split) for split in ("train", "held_out")]
        except ConfigError as error:
            return {}, str(error)
        return {problem.id: problem for problems in splits for problem in problems}, ""


def verify_file(task: Task, path: Path, *, workers: int, limits: Limits, process: str = "") -> Iterator[RowResult]:
    """Yield the results of a .jsonl file as they arrive. A file that cannot be read raises before the first."""
    problems = _Problems(task)
    with open_rows(path, str(path)) as file, PooledScorer(ScoreFunction(task, process), workers, limits) as scorer:
        lines = numbered_lines(file, str(path))
        submitted = ((number, *_submit(scorer, problems, line, f"{path}, row {number}")) for number, line in lines)
        for number, identifier, ticket in delayed(submitted, ROWS_AHEAD):
            if isinstance(ticket, ConfigError):
                score = failed_score(task.verifier, str(ticket))
                yield RowResult(number, identifier, score, 0.0, is_read=False)
            else:
                ((score, seconds),) = scorer.timed_scores(ticket)
                yield RowResult(number, identifier, score, seconds, is_read=True)


def _submit(scorer: PooledScorer, problems: _Problems, line: bytes, where: str) -> tuple[Any, Any]:
    """Return the row's own id, and its ticket or the error of a row that cannot be read."""
    identifier = None
    try:
        row = as_row(parse_json(line, where), where)
        identifier = row.values.get("id")
        completion = row.get("completion")
        if not isinstance(completion, str):
            raise row.error(f"'completion' is {completion!r:.60}, expected a string")
        return identifier, scorer.submit(problems.find(row), [completion])
    except ConfigError as error:
        return identifier, error


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
            lines.append(
                f"correct {percent(share)} of judged completions, mean reward {self.total_reward / num_judged:.4f}"
            )
            lines.append(f"{self.seconds:.2f} s of CPU time, slowest {self.slowest_s:.3f} s")
        return "\n".join(lines)
