"""Any .jsonl file (or hub data set) with a prompt and an answer: one's own task without writing code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from groupwise.config.build import ConfigError
from groupwise.rewards.extract import AnswerMark, check_marks, describe_missing, final_answer, mark_answer
from groupwise.rewards.format import excerpt
from groupwise.rewards.math.score_math import is_right_answer
from groupwise.rewards.numbers import parse_number, same_number
from groupwise.tasks.rows import Row, load_rows, load_split, plain_text, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem, Score, Verdict

Match = Literal["exact", "number", "boxed", "math"]


@dataclass(frozen=True)
class Jsonl:
    """Your own .jsonl file with a prompt and an answer in each row.

    Reward: 1.0 when the completion's answer matches, else 0.0; `match` says how it is found and compared.
    """

    train: str = ""
    """A .jsonl path or hub name to train on; empty to score rows that come from elsewhere."""
    held_out: str | None = None
    """The same for held-out problems; or set held_out_share."""
    held_out_share: float = 0.0
    """Share of `train` to hold out, chosen by a hash of the prompt: adding rows moves no other row."""
    prompt_key: str = "prompt"
    """Column of the prompt."""
    answer_key: str = "answer"
    """Column of the answer: a string or a number."""
    system: str = ""
    """System message before each prompt; empty is none."""
    match: Match = "exact"
    """`exact`: the text of the last `<answer>`, or the whole completion, is the answer, spaces aside. `number`: the
    last `\\boxed{}`, or else `####`, `<answer>` or last number, is the same number. `boxed`: the text of the last
    `\\boxed{}` is the answer, spaces aside. `math`: the last `\\boxed{}` is the same mathematics."""
    answer_marks: tuple[AnswerMark, ...] = ()
    """Where the answer is looked for; empty is as `match` says. The first of these that is in the completion decides:
    `boxed`, `hashes` (`####`), `final` (the line after `FINAL:` or `Final answer:`), `tag` (`<answer>`), `number`."""
    level_key: str | None = None
    """Column of the difficulty, for curricula and reports."""
    demonstration_key: str | None = None
    """Column of a worked completion, for supervised fine-tuning."""
    keep_row: bool = False
    """Keep the whole row with each problem, for reward functions (`task.reward`). Rows then need no answer."""

    verifier: ClassVar[str] = "jsonl/2"

    def __post_init__(self) -> None:
        if not 0.0 <= self.held_out_share < 1.0:
            raise ConfigError(f"held_out_share = {self.held_out_share}: expected a share of at least 0 and below 1")
        if self.train and (self.held_out is None) == (self.held_out_share == 0.0):
            raise ConfigError("set either held_out (a file of its own) or held_out_share (as in 0.1), and not both")
        if self.answer_marks:
            check_marks(self.answer_marks)

    @property
    def marks(self) -> tuple[AnswerMark, ...]:
        return self.answer_marks or _MARKS[self.match]

    def problems(self, split: Split) -> Sequence[Problem]:
        return load_split(self._load, split == "held_out", self.train, self.held_out, self.held_out_share)

    def _load(self, source: str, hub_split: str, key: str) -> list[Problem]:
        return [self._problem(row) for row in load_rows(source, hub_split, key=key)]

    def _problem(self, row: Row) -> Problem:
        messages = self._messages(row)
        needs_answer = not self.keep_row or self.answer_key in row.values
        answer = self._answer(row) if needs_answer else ""
        meta: dict[str, Any] = {"row": dict(row.values)} if self.keep_row else {}
        if self.level_key is not None:
            meta["level"] = row.get(self.level_key)
        if self.demonstration_key is not None:
            meta["demonstration"] = row.text(self.demonstration_key)
        system = (Message("system", self.system),) if self.system else ()
        asked = [plain_text(message.content) for message in messages]
        return Problem(stable_id("jsonl", *asked), (*system, *messages), answer, meta)

    def _messages(self, row: Row) -> tuple[Message, ...]:
        """The prompt: a text, or a conversation as a list of {"role", "content"}."""
        given = row.get(self.prompt_key)
        if not isinstance(given, list):
            return (Message("user", row.text(self.prompt_key)),)
        entries = [entry for entry in given if isinstance(entry, dict)]
        messages = tuple(Message(entry.get("role"), entry.get("content")) for entry in entries)  # type: ignore[arg-type]
        texts = [text for message in messages for text in (message.role, message.content)]
        if not messages or len(entries) < len(given) or not all(isinstance(text, str) and text for text in texts):
            raise row.error(f"{self.prompt_key!r} is a list, but not one of messages with a role and a content")
        return messages

    def _answer(self, row: Row) -> str:
        answer = row.get(self.answer_key)
        if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not str(answer).strip():
            raise row.error(f"{self.answer_key!r} is {answer!r:.60}, expected a string with text or a number")
        if self.match == "number" and parse_number(str(answer)) is None:
            raise row.error(f"{self.answer_key!r} is {answer!r:.60}, which is no number; use another `match`")
        return str(answer).strip()

    def bare_problem(self, row: Row) -> Problem:
        """From a row with the answer; a prompt may be there too."""
        answer = self._answer(row)
        prompt = row.text(self.prompt_key) if self.prompt_key in row.values else ""
        return Problem(stable_id("jsonl", plain_text(prompt) or answer), (Message("user", prompt),), answer)

    def gold_completion(self, problem: Problem) -> str:
        return mark_answer(self.marks[0], problem.answer)

    def score(self, problem: Problem, completion: str) -> Score:
        found = final_answer(completion, self.marks, opens_boxes=self.match in ("number", "math"))
        text = None if found is None else found.text
        if self.match == "exact":
            if text is None and not self.answer_marks:
                text = completion
            text = plain_text(text or "") or None
        is_right = None if text is None else self._is_right(problem, text)
        verdict = Verdict.UNPARSED if is_right is None else Verdict.CORRECT if is_right else Verdict.WRONG
        detail = describe_missing(self.marks) if text is None else excerpt(text)
        reward = 1.0 if is_right else 0.0
        return Score(reward, verdict, {"correct": reward}, self.verifier, detail)

    def _is_right(self, problem: Problem, text: str) -> bool | None:
        """None where the text cannot be an answer: no number, where one is asked for."""
        if self.match == "number":
            return same_number(problem.answer, text)
        if self.match == "math":
            question = problem.messages[-1].content if problem.messages else ""
            return is_right_answer(problem.answer, text, question)
        return plain_text(text) == plain_text(problem.answer)

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
