"""MBPP (Austin et al. 2021): short Python functions, three tests each (google-research-datasets/mbpp on the hub)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from groupwise.config.build import Within, require
from groupwise.rewards.code.unit_tests import CodeSpec, infer_entry_points, read_plan
from groupwise.tasks.code_jsonl import CodeTask, bad_tests_at
from groupwise.tasks.rows import Row, load_rows, plain_text
from groupwise.tasks.task import Split, drop_held_out
from groupwise.types import Message, Problem

IDS = {"test": range(11, 511), "validation": range(511, 601), "train": range(601, 975)}
"""The published splits; 1 to 10 are examples for prompts and belong to none."""
NUM_TESTS = 3
"""Length of each row's test_list."""


@dataclass(frozen=True)
class Mbpp(CodeTask):
    """Short Python functions from one sentence, with three tests each (MBPP).

    Reward: `tests`, the share of the tests that pass; correct when all do. Training uses the first tests of a problem
    and never the last; held-out problems use all, `challenge_test_list` included.
    """

    source: str = "google-research-datasets/mbpp"
    """A .jsonl path or hub name of rows {task_id, text, code, test_list}, split by the published ids."""
    hub_config: str = "full"
    """Configuration of the data set on the hub."""
    held_out: Literal["test", "validation"] = "test"
    """Split to hold out: ids 11 to 510, or 511 to 600. Training uses 601 to 974."""
    show_tests: Annotated[int, Within(f"[0, {NUM_TESTS}]")] = 1
    """Number of tests in the prompt, from the first; 0: the prompt only names the function."""
    hidden_tests: Annotated[int, Within(f"[0, {NUM_TESTS - 1}]")] = 1
    """Number of tests that training does not use, from the last."""
    instruction: str = "Answer with the Python code in one ```python block."
    """Ends the prompt."""

    def check(self) -> None:
        super().check()
        hidden, shown, num_used = self.hidden_tests, self.show_tests, NUM_TESTS - self.hidden_tests
        require(
            shown <= num_used,
            f"show_tests = {shown}: expected 0 to {num_used}, so that none of the hidden_tests = {hidden} is shown",
        )

    def problems(self, split: Split) -> Sequence[Problem]:
        held_out = self._rows(self.held_out)
        if split == "held_out":
            return [self._problem(row, is_held_out=True) for row in held_out]
        # By the sentence: some are the same under other names or with other tests.
        kept = drop_held_out(self.source, self._rows("train"), held_out, lambda row: plain_text(row.text("text")))
        return [self._problem(row, is_held_out=False) for row in kept]

    def bare_problem(self, row: Row) -> Problem:
        return super().bare_problem(row) if "tests" in row.values else self._problem(row, is_held_out=True)

    def _rows(self, part: str) -> list[Row]:
        rows = load_rows(self.source, part, self.hub_config, key="task.options.source")
        return [row for row in rows if row.get("task_id") in IDS[part]]

    def _problem(self, row: Row, is_held_out: bool) -> Problem:
        code, setup = row.text("code"), row.optional_text("test_setup_code")
        tests, hidden = _texts(row, "test_list"), self.hidden_tests
        if len(tests) <= hidden:
            raise row.error(f"'test_list' has {len(tests)} tests, and hidden_tests = {hidden} would hide all")
        scored = [*tests, *_texts(row, "challenge_test_list")] if is_held_out else tests[: NUM_TESTS - hidden]
        with bad_tests_at(row):
            spec = CodeSpec(tuple(scored), infer_entry_points(scored, code, setup), setup=setup)
            read_plan(spec.to_text())
        shown = tests[: self.show_tests]
        names = ", ".join(f"`{name}`" for name in spec.entry_points)
        hint = "Your code must pass:\n" + "\n".join(test.strip() for test in shown) if shown else f"Define {names}."
        prompt = f"{row.text('text').strip()}\n{hint}\n{self.instruction}".strip()
        return Problem(f"mbpp-{row.get('task_id')}", (Message("user", prompt),), spec.to_text(), {"solution": code})


def _texts(row: Row, key: str) -> list[str]:
    tests = row.optional(key) or []
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise row.error(f"{key!r} is {tests!r:.60}, expected a list of assert statements")
    return tests
