"""Your own programming problems: any .jsonl file or hub data set with prompts and tests."""

from __future__ import annotations

from dataclasses import dataclass

from groupwise.tasks.code_task import CodeTask, fenced, problem_from, spec_from
from groupwise.tasks.rows import Row, plain_text, stable_id
from groupwise.tasks.task import DataTask
from groupwise.types import Message, Problem


@dataclass(frozen=True)
class CodeJsonl(DataTask, CodeTask):
    """Your own .jsonl file of programming problems, each with a prompt and tests.

    Reward: `tests`, the share of a problem's tests that pass; correct when all do. `tests` is Python text (assert
    statements, or `def check(candidate)`) or a list of such texts or of objects: {"call", "expected"}, {"input",
    "output"} with the arguments and the value of `entry_point`, or {"stdin", "stdout"} for whole programs.
    `hidden_tests` has the same form and is used only on held-out problems. Optional: `entry_point` (what the tests
    call), `setup` (code that makes arguments), `solution`.
    """

    held_out_share: float = 0.1
    """Share of `train` to hold out, chosen by a hash of the prompt; ignored where `held_out` is set."""
    prompt_key: str = "prompt"
    """Column of the prompt. If it is Python that defines the entry point, it goes before the program."""
    tests_key: str = "tests"
    """Column of the tests."""
    hidden_tests_key: str = "hidden_tests"
    """Column of the additional tests for held-out problems."""
    system: str = ""
    """System message before each prompt; empty: none."""
    instruction: str = "Answer with the Python code in one ```python block."
    """Ends the prompt."""
    level_key: str | None = None
    """Column of the difficulty, for curricula and reports."""

    def __post_init__(self) -> None:
        CodeTask.__post_init__(self)
        DataTask.__post_init__(self)

    def problem(self, row: Row, is_held_out: bool) -> Problem:
        hidden = row.optional(self.hidden_tests_key) if is_held_out else None
        spec = spec_from(row, row.get(self.tests_key), hidden=hidden, prompt_key=self.prompt_key)
        prompt = row.text(self.prompt_key)
        shown = fenced(prompt.strip()) if spec.preamble else prompt.strip()
        unnamed = [f"`{name}`" for name in spec.entry_points if name not in prompt]
        hint = f"Define {', '.join(unnamed)}.\n" if unnamed else ""
        system = (Message("system", self.system),) if self.system else ()
        messages = (*system, Message("user", f"{shown}\n{hint}{self.instruction}".strip()))
        meta = {} if self.level_key is None else {"level": row.get(self.level_key)}
        return problem_from(row, stable_id("code", plain_text(prompt)), messages, spec, **meta)
