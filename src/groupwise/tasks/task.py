"""What a task is: where problems come from and how a completion is scored.

A task is a frozen dataclass whose fields are the keys of `[task.options]` in a recipe. It has two methods and a name
for its verifier; a third method is there for tasks that can solve their own problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from groupwise.tasks.rows import Row
from groupwise.types import Problem, Score

Split = Literal["train", "held_out"]


@runtime_checkable
class Task(Protocol):
    """Where problems come from and how a completion is scored."""

    @property
    def verifier(self) -> str:
        """Name and version of the scoring rule, as in "countdown/1"; a change of the rule changes the version."""
        ...

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, in a fixed order. The two splits share no problem."""
        ...

    def score(self, problem: Problem, completion: str) -> Score:
        """Judge one completion. Raises only when the verifier itself fails; the caller makes that an error verdict."""
        ...


@runtime_checkable
class Demonstrator(Protocol):
    """A task that can write a right completion itself, for supervised fine-tuning without a data set."""

    def demonstrate(self, problem: Problem) -> str: ...


@runtime_checkable
class RowScorer(Protocol):
    """A task whose verifier can be run on rows of a file, without the task's own data (`groupwise verify`)."""

    def bare_problem(self, row: Row) -> Problem:
        """What scoring needs of a problem, from a row that has the verifier's own fields and perhaps no prompt."""
        ...


@runtime_checkable
class GoldWriter(Protocol):
    """A task that can write out its gold answer as a completion, to test the verifier with (`groupwise validate`)."""

    def gold_completion(self, problem: Problem) -> str | None:
        """A completion that must be judged correct; None for a problem whose data has no gold answer."""
        ...
