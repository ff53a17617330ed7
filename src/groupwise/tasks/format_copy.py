"""Copy an integer into `<answer>` tags: the smallest task that learns, for demos, tests and checks of a set-up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from groupwise.config.build import Count, Within, require
from groupwise.rewards.format import score_copy
from groupwise.tasks.rows import stable_id
from groupwise.tasks.task import GeneratedTask, TaggedInteger
from groupwise.types import Message, Problem, Score


@dataclass(frozen=True)
class FormatCopy(TaggedInteger, GeneratedTask):
    """Copy an integer into XML tags; generated, learnable in minutes on a CPU.

    Reward: `correct` 1.0 for the right integer in the last `<answer>`, `tag` 0.2 for a complete element, `xml` 0.1 when
    the whole completion is that one element and its content is plain text.
    """

    min_digits: Annotated[int, Within("[1, 18]")] = 1
    """Digits of the shortest integer; each length up to max_digits is equally likely."""
    max_digits: Annotated[int, Within("[1, 18]")] = 4
    num_train: Count = 1000
    num_held_out: Count = 100
    style: Literal["chat", "terse"] = "chat"
    """`terse` is a prompt of a few characters, for tiny models."""

    verifier: ClassVar[str] = "format-copy/2"
    fix: ClassVar[str] = "raise max_digits"

    def check(self) -> None:
        require(
            self.min_digits <= self.max_digits,
            f"min_digits = {self.min_digits}, max_digits = {self.max_digits}: the first must not be larger",
        )

    @property
    def num_possible(self) -> int:
        return 10**self.max_digits - (0 if self.min_digits == 1 else 10 ** (self.min_digits - 1))

    def draw(self, generator: random.Random) -> tuple[int, Problem]:
        digits = generator.randint(self.min_digits, self.max_digits)
        number = generator.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
        if self.style == "terse":
            prompt = f"copy: {number}"
        else:
            prompt = f"Copy the number {number}. Reply with exactly this form and nothing else: <answer>number</answer>"
        meta = {"level": len(str(number))}
        return number, Problem(stable_id("format-copy", number), (Message("user", prompt),), str(number), meta)

    def score(self, problem: Problem, completion: str) -> Score:
        return score_copy(problem.answer, completion, self.verifier)
