"""Any .jsonl file (or hub data set) with a prompt and tests: programming problems of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.config.build import ConfigError
from groupwise.tasks.code_task import CodeTask, optional, problem_from, spec_from
from groupwise.tasks.rows import Row, load_rows, plain_text, share_of, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem


@dataclass(frozen=True)
class CodeJsonl(CodeTask):
    """Your own .jsonl file of programming problems, each with a prompt and tests.

    Reward: `tests`, the share of a problem's tests that pass; correct when all do. `tests` is Python text (assert
    statements, or `def check(candidate)`) or a list of such texts or of objects: {"call", "expected"}, {"input",
    "output"} with the arguments and the value of `entry_point`, or {"stdin", "stdout"} for whole programs.
    `hidden_tests` is the same, scored on held-out problems only. Optional: `entry_point` (what the tests call),
    `setup` (code that makes arguments), `solution`.
    """

    train: str = ""
    """A .jsonl path or hub name to train on."""
    held_out: str | None = None
    """The same for held-out problems, instead of held_out_share."""
    held_out_share: float = 0.1
    """Share of `train` to hold out, chosen by a hash of the prompt, where `held_out` is not set."""
    prompt_key: str = "prompt"
    """Column of the prompt. If it is Python that defines the entry point, it goes before the program."""
    tests_key: str = "tests"
    """Column of the tests."""
    hidden_tests_key: str = "hidden_tests"
    """Column of the tests for held-out problems alone."""
    system: str = ""
    """System message before each prompt; empty is none."""
    instruction: str = "Answer with the Python code in one ```python block."
    """Ends the prompt."""
    level_key: str | None = None
    """Column of the difficulty, for curricula and reports."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.held_out_share < 1.0:
            raise ConfigError(
                f"held_out_share = {self.held_out_share}: expected a share above 0 and below 1, as in 0.1"
            )

    def problems(self, split: Split) -> Sequence[Problem]:
        is_held_out = split == "held_out"
        if not self.train:
            raise ConfigError("task.options.train: missing; set it to a .jsonl path or hub name")
        if self.held_out is not None:
            source, hub_split = (self.held_out, "test") if is_held_out else (self.train, "train")
            return [
                self._problem(row, is_held_out) for row in load_rows(source, hub_split, key=f"task.options.{split}")
            ]
        rows = load_rows(self.train, "train", key="task.options.train")
        mine = [row for row in rows if (share_of(self._identifier(row)) < self.held_out_share) == is_held_out]
        return [self._problem(row, is_held_out) for row in mine]

    def _identifier(self, row: Row) -> str:
        return stable_id("code", plain_text(row.text(self.prompt_key)))

    def _problem(self, row: Row, is_held_out: bool) -> Problem:
        hidden = optional(row, self.hidden_tests_key) if is_held_out else None
        spec = spec_from(row, row.get(self.tests_key), hidden=hidden, prompt_key=self.prompt_key)
        prompt = row.text(self.prompt_key)
        shown = f"```python\n{prompt.strip()}\n```" if spec.preamble else prompt.strip()
        unnamed = [f"`{name}`" for name in spec.entry_points if name not in prompt]
        hint = f"Define {', '.join(unnamed)}.\n" if unnamed else ""
        system = (Message("system", self.system),) if self.system else ()
        messages = (*system, Message("user", f"{shown}\n{hint}{self.instruction}".strip()))
        meta = {} if self.level_key is None else {"level": row.get(self.level_key)}
        return problem_from(row, self._identifier(row), messages, spec, **meta)
