"""HumanEval (Chen et al. 2021): Python functions to complete (openai/openai_humaneval on the hub)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from groupwise.config.build import Within
from groupwise.rewards.code.unit_tests import CodeSpec, read_plan
from groupwise.tasks.code_jsonl import CodeTask, bad_tests_at, fenced
from groupwise.tasks.rows import Row, load_rows
from groupwise.tasks.task import Split, take_share
from groupwise.types import Message, Problem


@dataclass(frozen=True)
class HumanEval(CodeTask):
    """Python functions to complete from signature and docstring (HumanEval).

    Reward: `tests`, the share of the problem's assertions that hold; correct when all do. The data set has no training
    split, so half of it is held out by default.
    """

    source: str = "openai/openai_humaneval"
    """A .jsonl path or hub name of rows {task_id, prompt, canonical_solution, test, entry_point}."""
    source_split: str = "test"
    """Split of the hub data set."""
    held_out_share: Annotated[float, Within("(0, 1)")] = 0.5
    """Share of the problems to hold out, chosen by a hash of the id."""
    instruction: str = "Complete this function. Answer with the whole function in one ```python block."
    """Comes before the function in the prompt."""

    def problems(self, split: Split) -> Sequence[Problem]:
        rows = load_rows(self.source, self.source_split, key="task.options.source")
        return take_share([self._problem(row) for row in rows], self.held_out_share, split)

    def bare_problem(self, row: Row) -> Problem:
        return super().bare_problem(row) if "tests" in row.values else self._problem(row)

    def _problem(self, row: Row) -> Problem:
        prompt = row.text("prompt")
        # The solution needs the prompt's imports and helpers, and some tests call them.
        spec = CodeSpec((row.text("test"),), (row.text("entry_point"),), preamble=prompt, helpers=prompt)
        with bad_tests_at(row):
            read_plan(spec.to_text())
        text = f"{self.instruction}\n\n{fenced(prompt.strip())}".strip()
        identifier = row.text("task_id").lower().replace("/", "-")
        solution = row.values.get("canonical_solution")
        meta = {"solution": prompt + solution} if isinstance(solution, str) and solution.strip() else {}
        return Problem(identifier, (Message("user", text),), spec.to_text(), meta)
