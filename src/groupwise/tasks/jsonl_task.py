"""Any .jsonl file (or hub data set) with a prompt and an answer: one's own task without writing code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from groupwise.config.build import ConfigError
from groupwise.rewards.extract import final_answer, last_boxed, last_number, last_tag
from groupwise.rewards.format import excerpt
from groupwise.rewards.math import is_equal
from groupwise.rewards.numbers import one_number, parse_number
from groupwise.tasks.sources import Row, load_rows, plain_text, share_of, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem, Score, Verdict

Match = Literal["exact", "number", "boxed", "math"]


@dataclass(frozen=True)
class Jsonl:
    """Your own .jsonl file with a prompt and an answer in each row.

    Reward: 1.0 when the completion's answer matches, else 0.0; `match` says how it is found and compared.
    """

    train: str
    """A .jsonl path or hub name to train on."""
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
    last `\\boxed{}`, `####` or `<answer>`, or else the last number, is the same number. `boxed`: the text of the last
    `\\boxed{}` is the answer, spaces aside. `math`: the last `\\boxed{}` is the same mathematics."""
    level_key: str | None = None
    """Column of the difficulty, for curricula and reports."""
    demonstration_key: str | None = None
    """Column of a worked completion, for supervised fine-tuning."""

    verifier: ClassVar[str] = "jsonl/1"

    def __post_init__(self) -> None:
        if not 0.0 <= self.held_out_share < 1.0:
            raise ConfigError(f"held_out_share = {self.held_out_share}: expected a share of at least 0 and below 1")
        if (self.held_out is None) == (self.held_out_share == 0.0):
            raise ConfigError("set either held_out (a file of its own) or held_out_share (as in 0.1), and not both")

    def problems(self, split: Split) -> Sequence[Problem]:
        if self.held_out is not None and split == "held_out":
            return [self._problem(row) for row in load_rows(self.held_out, "test", key="task.options.held_out")]
        problems = [self._problem(row) for row in load_rows(self.train, "train", key="task.options.train")]
        if self.held_out is not None:
            return problems
        is_held_out = split == "held_out"
        return [problem for problem in problems if (share_of(problem.id) < self.held_out_share) == is_held_out]

    def _problem(self, row: Row) -> Problem:
        prompt, answer = row.text(self.prompt_key), row.get(self.answer_key)
        if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not str(answer).strip():
            raise row.error(f"{self.answer_key!r} is {answer!r:.60}, expected a string with text or a number")
        if self.match == "number" and parse_number(str(answer)) is None:
            raise row.error(f"{self.answer_key!r} is {answer!r:.60}, which is no number; use another `match`")
        meta: dict[str, Any] = {}
        if self.level_key is not None:
            meta["level"] = row.get(self.level_key)
        if self.demonstration_key is not None:
            meta["demonstration"] = row.text(self.demonstration_key)
        system = (Message("system", self.system),) if self.system else ()
        identifier = stable_id("jsonl", plain_text(prompt))
        return Problem(identifier, (*system, Message("user", prompt)), str(answer).strip(), meta)

    def score(self, problem: Problem, completion: str) -> Score:
        found, is_right = _MATCHERS[self.match](problem.answer, completion)
        verdict = Verdict.UNPARSED if found is None else Verdict.CORRECT if is_right else Verdict.WRONG
        detail = "no answer found" if found is None else excerpt(found)
        return Score(float(is_right), verdict, {"correct": float(is_right)}, self.verifier, detail)

    def demonstrate(self, problem: Problem) -> str:
        if "demonstration" not in problem.meta:
            raise ConfigError("task.options.demonstration_key: missing; name the column of the worked completions")
        return str(problem.meta["demonstration"])


def _match_exact(gold: str, completion: str) -> tuple[str | None, bool]:
    tag = last_tag(completion)
    text = plain_text(completion if tag is None else tag.text)
    return text or None, text == plain_text(gold)


def _match_number(gold: str, completion: str) -> tuple[str | None, bool]:
    marked = [found for found in (final_answer(completion), last_tag(completion)) if found]
    if marked:
        text: str | None = max(marked, key=lambda found: found.start).text
    else:
        text = last_number(completion)
    value = None if text is None else one_number(text)
    return (None, False) if value is None else (text, value == parse_number(gold))


def _match_boxed(gold: str, completion: str) -> tuple[str | None, bool]:
    boxed = last_boxed(completion)
    return (None, False) if boxed is None else (boxed.text, plain_text(boxed.text) == plain_text(gold))


def _match_math(gold: str, completion: str) -> tuple[str | None, bool]:
    boxed = last_boxed(completion)
    return (None, False) if boxed is None else (boxed.text, is_equal(gold, boxed.text))


_MATCHERS: dict[Match, Callable[[str, str], tuple[str | None, bool]]] = {
    "exact": _match_exact,
    "number": _match_number,
    "boxed": _match_boxed,
    "math": _match_math,
}
"""What was found, and whether it is the answer. A gold answer is never empty, so nothing found is never right."""
