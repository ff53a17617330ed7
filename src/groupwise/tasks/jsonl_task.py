"""Your own task without code: any .jsonl file or hub data set with prompts and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from groupwise.config.build import ConfigError
from groupwise.rewards.extract import AnswerMark, FoundAnswer, check_marks, describe_missing, final_answer, mark_answer
from groupwise.rewards.format import excerpt, score_correct
from groupwise.rewards.math.score_math import is_right_answer
from groupwise.rewards.numbers import parse_number, same_number
from groupwise.tasks.rows import Row, plain_text, stable_id
from groupwise.tasks.task import DataTask
from groupwise.types import Message, Problem, Score

Match = Literal["exact", "number", "boxed", "math"]


@dataclass(frozen=True)
class Jsonl(DataTask):
    """Your own .jsonl file with a prompt and an answer in each row.

    Reward: 1.0 when the completion's answer matches, else 0.0; `match` sets how it is found and compared.
    """

    prompt_key: str = "prompt"
    """Column of the prompt: a text, or a conversation as a list of {role, content}."""
    answer_key: str = "answer"
    """Column of the answer: a string or a number."""
    system: str = ""
    """System message before each prompt; empty: none."""
    match: Match = "exact"
    """`exact`: the last `<answer>`, or else the whole completion, has the same text up to white space. `number`: the
    last `\\boxed{}`, or else `####`, `<answer>` or last number, is the same number. `boxed`: the last `\\boxed{}` has
    the same text up to white space. `math`: the last `\\boxed{}` is mathematically equal."""
    answer_marks: tuple[AnswerMark, ...] = ()
    """Where to look for the answer; empty: as `match` says. The first of these found in the completion decides:
    `boxed`, `hashes` (`####`), `final` (the line after `FINAL:` or `Final answer:`), `tag` (`<answer>`), `number`."""
    level_key: str | None = None
    """Column of the difficulty, for curricula and reports."""
    demonstration_key: str | None = None
    """Column of a worked completion, for supervised fine-tuning."""
    keep_row: bool = False
    """Keep the whole row with each problem, for reward functions (`task.reward`). Rows then need no answer."""

    verifier: ClassVar[str] = "jsonl/3"

    def check(self) -> None:
        super().check()
        if self.answer_marks:
            check_marks(self.answer_marks)

    @property
    def marks(self) -> tuple[AnswerMark, ...]:
        return self.answer_marks or _MARKS[self.match]

    def problem(self, row: Row, is_held_out: bool) -> Problem:
        if isinstance(row.get(self.prompt_key), list):
            messages = row.messages(self.prompt_key)
        else:
            messages = (Message("user", row.text(self.prompt_key)),)
        needs_answer = not self.keep_row or self.answer_key in row.values
        answer = self._answer(row) if needs_answer else ""
        meta: dict[str, Any] = {"row": dict(row.values)} if self.keep_row else {}
        if self.level_key is not None:
            meta["level"] = row.level(self.level_key)
        if self.demonstration_key is not None:
            meta["demonstration"] = row.text(self.demonstration_key)
        system = (Message("system", self.system),) if self.system else ()
        asked = [plain_text(message.content) for message in messages]
        return Problem(stable_id("jsonl", *asked), (*system, *messages), answer, meta)

    def _answer(self, row: Row) -> str:
        answer = row.answer(self.answer_key).strip()
        if self.match == "number" and parse_number(answer) is None:
            raise row.error(f"{self.answer_key!r} is {answer!r:.60}, which is not a number; use another `match`")
        return answer

    def bare_problem(self, row: Row) -> Problem:
        """Read a row with the answer; the prompt is optional."""
        answer = self._answer(row)
        prompt = row.optional_text(self.prompt_key)
        return Problem(stable_id("jsonl", plain_text(prompt) or answer), (Message("user", prompt),), answer)

    def gold_completion(self, problem: Problem) -> str:
        return mark_answer(self.marks[0], problem.answer)

    def score(self, problem: Problem, completion: str) -> Score:
        found = final_answer(completion, self.marks, opens_boxes=self.match in ("number", "math"))
        if self.match == "exact":
            text = completion if found is None and not self.answer_marks else found.text if found else ""
            found = FoundAnswer(0, plain_text(text)) if plain_text(text) else None
        is_right = None if found is None else self._is_right(problem, found)
        detail = describe_missing(self.marks) if found is None else excerpt(found.text)
        return score_correct(is_right, self.verifier, detail)

    def _is_right(self, problem: Problem, found: FoundAnswer) -> bool | None:
        """Compare; None where the text cannot be an answer, as when it is not a number."""
        if self.match == "number":
            return same_number(problem.answer, found.text)
        if self.match == "math":
            return is_right_answer(problem.answer, found.readings, problem.question)
        return plain_text(found.text) == plain_text(problem.answer)

    def demonstrate(self, problem: Problem) -> str:
        if "demonstration" not in problem.meta:
            raise ConfigError("task.options.demonstration_key: missing; name the column of the worked completions")
        return str(problem.meta["demonstration"])


_MARKS: dict[Match, tuple[AnswerMark, ...]] = {
    "exact": ("tag",),
    "number": ("boxed", "hashes", "tag", "number"),
    "boxed": ("boxed",),
    "math": ("boxed",),
}
