"""Copy an integer into `<answer>` tags: the smallest task that learns, for demos, tests and checks of a set-up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from groupwise.config.build import ConfigError
from groupwise.rewards.format import score_copy
from groupwise.tasks.generated import check_counts, generate_split
from groupwise.tasks.rows import Row, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem, Score


@dataclass(frozen=True)
class FormatCopy:
    """Copy an integer into XML tags; generated, learnable in minutes on a CPU.

    Reward: `correct` 1.0 for the right integer in the last `<answer>`, `tag` 0.2 for a complete element, `xml` 0.1 when
    the whole completion is that one element and its content is plain text.
    """

    min_digits: int = 1
    """Digits of the shortest integer; lengths are drawn evenly up to max_digits."""
    max_digits: int = 4
    num_train: int = 1000
    num_held_out: int = 100
    seed: int = 0
    """Of the problems; independent of the run's seed."""
    style: Literal["chat", "terse"] = "chat"
    """`terse` is a prompt of a few characters, for tiny models."""

    verifier: ClassVar[str] = "format-copy/1"

    def __post_init__(self) -> None:
        check_counts(self.num_train, self.num_held_out)
        if not 1 <= self.min_digits <= self.max_digits <= 18:
            raise ConfigError(
                f"min_digits = {self.min_digits}, max_digits = {self.max_digits}: expected 1 <= min <= max <= 18"
            )

    def problems(self, split: Split) -> Sequence[Problem]:
        lowest = 0 if self.min_digits == 1 else 10 ** (self.min_digits - 1)
        return generate_split(
            self._draw,
            split,
            seed=self.seed,
            num_train=self.num_train,
            num_held_out=self.num_held_out,
            num_possible=10**self.max_digits - lowest,
            fix="raise max_digits",
        )

    def _draw(self, generator: random.Random) -> tuple[int, Problem]:
        digits = generator.randint(self.min_digits, self.max_digits)
        number = generator.randrange(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
        if self.style == "terse":
            prompt = f"copy: {number}"
        else:
            prompt = f"Copy the number {number}. Reply with exactly this form and nothing else: <answer>number</answer>"
        problem = Problem(
            stable_id("format-copy", number), (Message("user", prompt),), str(number), {"level": len(str(number))}
        )
        return number, problem

    def score(self, problem: Problem, completion: str) -> Score:
        return score_copy(problem.answer, completion, self.verifier)

    def bare_problem(self, row: Row) -> Problem:
        """From a row {answer} with a whole number."""
        answer = row.whole_number("answer")
        return Problem(stable_id("format-copy", answer), (), str(answer))

    def demonstrate(self, problem: Problem) -> str:
        return f"<answer>{problem.answer}</answer>"
