"""GSM8K: word problems of grade-school arithmetic, with worked solutions (openai/gsm8k on the hub)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.rewards.extract import after_hashes, final_answer
from groupwise.rewards.format import excerpt
from groupwise.rewards.numbers import one_number, parse_number
from groupwise.tasks.sources import Row, load_rows, plain_text, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem, Score, Verdict

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")


@dataclass(frozen=True)
class Gsm8k:
    """Grade-school word problems with a number as the answer (GSM8K).

    Reward: 1.0 when the last `\\boxed{}` or `####` line, whichever comes later, is the right number; else 0.0.
    """

    train: str = "openai/gsm8k"
    """A .jsonl path or hub name with rows {question, answer}; the answer ends in `#### N`."""
    held_out: str = "openai/gsm8k"
    """The same for held-out problems."""
    hub_config: str = "main"
    """Configuration of the data set on the hub."""
    train_split: str = "train"
    """Split of the hub data set to train on."""
    held_out_split: str = "test"
    """Split of the hub data set to hold out."""
    instruction: str = "Reason step by step, and put your final answer within \\boxed{}."
    """Follows the question in the prompt."""

    verifier: ClassVar[str] = "gsm8k/1"

    def problems(self, split: Split) -> Sequence[Problem]:
        is_train = split == "train"
        source, hub_split = (self.train, self.train_split) if is_train else (self.held_out, self.held_out_split)
        return [
            self._problem(row) for row in load_rows(source, hub_split, self.hub_config, key=f"task.options.{split}")
        ]

    def _problem(self, row: Row) -> Problem:
        question, solution = row.text("question"), row.text("answer")
        gold = after_hashes(solution)
        if gold is None or parse_number(gold.text) is None:
            raise row.error("'answer' does not end in '#### N' with a number N")
        prompt = f"{question.strip()}\n{self.instruction}".strip()
        meta = {"solution": _CALCULATOR.sub("", solution)}
        return Problem(stable_id("gsm8k", plain_text(question)), (Message("user", prompt),), gold.text, meta)

    def score(self, problem: Problem, completion: str) -> Score:
        found = final_answer(completion)
        value = None if found is None else one_number(found.text)
        is_right = value is not None and value == parse_number(problem.answer)
        verdict = Verdict.UNPARSED if value is None else Verdict.CORRECT if is_right else Verdict.WRONG
        detail = "no \\boxed{} and no ####" if found is None else excerpt(found.text)
        return Score(float(is_right), verdict, {"correct": float(is_right)}, self.verifier, detail)

    def demonstrate(self, problem: Problem) -> str:
        """The data set's own solution, with its last line boxed as the instruction asks."""
        body, _, answer = str(problem.meta["solution"]).rpartition("####")
        return f"{body.strip()}\n\\boxed{{{answer.strip()}}}"
