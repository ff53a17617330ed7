"""GSM8K: grade-school arithmetic word problems with worked solutions (openai/gsm8k on the hub)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.rewards.extract import AnswerMark, after_hashes, describe_missing, final_answer
from groupwise.rewards.format import excerpt, score_correct
from groupwise.rewards.numbers import parse_number, same_number
from groupwise.tasks.rows import Row, plain_text, stable_id
from groupwise.tasks.task import PublishedTask, Split
from groupwise.types import Message, Problem, Score

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")


@dataclass(frozen=True)
class Gsm8k(PublishedTask):
    """Grade-school word problems with a number as the answer (GSM8K).

    Reward: 1.0 when the last `\\boxed{}` or, in a completion without one, the last `####` line is the right number;
    else 0.0. `answer_marks` selects other marks.
    """

    train: str = "openai/gsm8k"
    """A .jsonl path or hub name of rows {question, answer}; the answer ends in `#### N`."""
    held_out: str = "openai/gsm8k"
    hub_config: str = "main"
    """Configuration of the data set on the hub."""
    answer_marks: tuple[AnswerMark, ...] = ("boxed", "hashes")

    verifier: ClassVar[str] = "gsm8k/3"

    def problems(self, split: Split) -> Sequence[Problem]:
        return [self._problem(row) for row in self.rows(split, self.hub_config)]

    def _problem(self, row: Row) -> Problem:
        question, solution = row.text("question"), row.text("answer")
        gold = after_hashes(solution)
        if gold is None or parse_number(gold.text) is None:
            raise row.error("'answer' does not end in '#### N' with a number N")
        meta = {"solution": _CALCULATOR.sub("", solution)}
        return Problem(stable_id("gsm8k", plain_text(question)), self.messages(question), gold.text, meta)

    def bare_problem(self, row: Row) -> Problem:
        """Read a row {answer}: a number, or a solution that ends in `#### N`. A `question` is optional."""
        answer = row.answer("answer")
        gold = after_hashes(answer)
        text = answer.strip() if gold is None else gold.text
        if parse_number(text) is None:
            raise row.error(f"'answer' is {answer!r:.60}; expected a number, or a solution that ends in '#### N'")
        question = row.optional_text("question")
        return Problem(stable_id("gsm8k", plain_text(question) or text), (Message("user", question),), text)

    def score(self, problem: Problem, completion: str) -> Score:
        found = final_answer(completion, self.answer_marks)
        is_right = None if found is None else same_number(problem.answer, found.text)
        detail = describe_missing(self.answer_marks) if found is None else excerpt(found.text)
        return score_correct(is_right, self.verifier, detail)

    def demonstrate(self, problem: Problem) -> str:
        """Return the data set's own solution, with its last line boxed as the instruction asks."""
        body, _, answer = str(problem.meta["solution"]).rpartition("####")
        return f"{body.strip()}\n\\boxed{{{answer.strip()}}}"
