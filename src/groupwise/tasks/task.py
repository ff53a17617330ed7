"""The task protocol: where problems come from and how a completion is scored.

A task is a frozen dataclass whose fields are the keys of `[task.options]` in a recipe. The other protocols are
optional abilities.
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
        """Name and version of the scoring rule, as in "countdown/1"; a changed rule needs a new version."""
        ...

    def problems(self, split: Split) -> Sequence[Problem]:
        """Return all problems of a split in a fixed order. The two splits share no problem."""
        ...

    def score(self, problem: Problem, completion: str) -> Score:
        """Judge one completion. Raise only when the verifier itself fails: the caller turns that into an error."""
        ...


@runtime_checkable
class Demonstrator(Protocol):
    """A task that can write correct completions, for supervised fine-tuning without a data set."""

    def demonstrate(self, problem: Problem) -> str: ...


@runtime_checkable
class RowScorer(Protocol):
    """A task whose verifier can score rows of a file without the task's own data (`groupwise verify`)."""

    def bare_problem(self, row: Row) -> Problem:
        """Build a problem from a row with the fields that scoring needs; the prompt is optional."""
        ...


@runtime_checkable
class GoldWriter(Protocol):
    """A task that can write its gold answer as a completion, to test the verifier (`groupwise validate`)."""

    def gold_completion(self, problem: Problem) -> str | None:
        """Return a completion that must be judged correct; None for a problem without a gold answer."""
        ...
