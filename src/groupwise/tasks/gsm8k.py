"""GSM8K: word problems of grade-school arithmetic, with worked solutions (openai/gsm8k on the hub)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.rewards.extract import AnswerMark, after_hashes, check_marks, describe_missing, final_answer, mark_answer
from groupwise.rewards.format import excerpt
from groupwise.rewards.numbers import parse_number, same_number
from groupwise.tasks.rows import Row, load_rows, plain_text, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem, Score, Verdict

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")


@dataclass(frozen=True)
class Gsm8k:
    """Grade-school word problems with a number as the answer (GSM8K).

    Reward: 1.0 when the last `\\boxed{}` or, in a completion without one, the last `####` line is the right number;
    else 0.0. `answer_marks` asks for other marks.
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
    answer_marks: tuple[AnswerMark, ...] = ("boxed", "hashes")
    """Where the answer is looked for; the first of these that is in the completion decides. `boxed`: the last
    `\\boxed{}`. `hashes`: the line after `####`. `final`: the line after `FINAL:` or `Final answer:`. `tag`: the last
    `<answer>`. `number`: the last number."""

    verifier: ClassVar[str] = "gsm8k/2"

    def __post_init__(self) -> None:
        check_marks(self.answer_marks)

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

    def bare_problem(self, row: Row) -> Problem:
        """From a row {answer}: a number, or a solution that ends in `#### N`. A question may be there too."""
        answer = row.answer("answer")
        gold = after_hashes(answer)
        text = answer.strip() if gold is None else gold.text
        if parse_number(text) is None:
            raise row.error(f"'answer' is {answer!r:.60}; expected a number, or a solution that ends in '#### N'")
        question = row.text("question") if "question" in row.values else ""
        return Problem(stable_id("gsm8k", plain_text(question) or text), (Message("user", question),), text)

    def gold_completion(self, problem: Problem) -> str:
        return mark_answer(self.answer_marks[0], problem.answer)

    def score(self, problem: Problem, completion: str) -> Score:
        found = final_answer(completion, self.answer_marks)
        is_right = None if found is None else same_number(problem.answer, found.text)
        verdict = Verdict.UNPARSED if is_right is None else Verdict.CORRECT if is_right else Verdict.WRONG
        detail = describe_missing(self.answer_marks) if found is None else excerpt(found.text)
        reward = 1.0 if is_right else 0.0
        return Score(reward, verdict, {"correct": reward}, self.verifier, detail)

    def demonstrate(self, problem: Problem) -> str:
        """The data set's own solution, with its last line boxed as the instruction asks."""
        body, _, answer = str(problem.meta["solution"]).rpartition("####")
        return f"{body.strip()}\n\\boxed{{{answer.strip()}}}"
