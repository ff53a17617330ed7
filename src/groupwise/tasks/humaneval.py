"""HumanEval (Chen et al. 2021): functions to complete, with tests (openai/openai_humaneval on the hub)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.config.build import ConfigError
from groupwise.rewards.code.unit_tests import BadTests, CodeSpec, read_plan
from groupwise.tasks.code_task import CodeTask
from groupwise.tasks.rows import Row, load_rows, share_of
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem


@dataclass(frozen=True)
class HumanEval(CodeTask):
    """Python functions to complete from signature and docstring (HumanEval).

    Reward: `tests`, the share of the problem's assertions that hold; correct when all do. The data set has no training
    part, so half of it is held out unless `held_out_share` says otherwise.
    """

    source: str = "openai/openai_humaneval"
    """A .jsonl path or hub name with rows {task_id, prompt, canonical_solution, test, entry_point}."""
    source_split: str = "test"
    """Split of the hub data set."""
    held_out_share: float = 0.5
    """Share of the problems to hold out, chosen by a hash of the id."""
    instruction: str = "Complete this function. Answer with the whole function in one ```python block."
    """Comes before the function in the prompt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.held_out_share < 1.0:
            raise ConfigError(
                f"held_out_share = {self.held_out_share}: expected a share above 0 and below 1, as in 0.5"
            )

    def problems(self, split: Split) -> Sequence[Problem]:
        rows = load_rows(self.source, self.source_split, key="task.options.source")
        problems = [self._problem(row) for row in rows]
        is_held_out = split == "held_out"
        return [problem for problem in problems if (share_of(problem.id) < self.held_out_share) == is_held_out]

    def bare_problem(self, row: Row) -> Problem:
        return super().bare_problem(row) if "tests" in row.values else self._problem(row)

    def _problem(self, row: Row) -> Problem:
        prompt = row.text("prompt")
        # The prompt's imports and helpers are what the solution stands on, and what some tests call.
        spec = CodeSpec((row.text("test"),), (row.text("entry_point"),), preamble=prompt, helpers=prompt)
        try:
            read_plan(spec.to_text())
        except BadTests as error:
            raise row.error(str(error)) from None
        text = f"{self.instruction}\n\n```python\n{prompt.strip()}\n```".strip()
        identifier = row.text("task_id").lower().replace("/", "-")
        solution = row.values.get("canonical_solution")
        meta = {"solution": prompt + solution} if isinstance(solution, str) and solution.strip() else {}
        return Problem(identifier, (Message("user", text),), spec.to_text(), meta)
