"""Integer arithmetic in five levels of difficulty: a generated curriculum that needs no data."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass
from operator import add, mul, sub
from typing import Annotated, ClassVar, Literal

from groupwise.config.build import Within, require
from groupwise.rewards.format import score_tagged_number
from groupwise.tasks.rows import stable_id
from groupwise.tasks.task import GeneratedTask, ShareBelowOne, TaggedInteger
from groupwise.types import Message, Problem, Score

OPERATIONS = {"+": add, "-": sub, "*": mul}
# Distinct problems per level; a + b and b + a are one problem. Differences are never negative before level 5.
NUM_POSSIBLE = {
    1: 10 * 11 // 2,
    2: 2 * (90 * 91 // 2),
    3: 2 * (900 * 901 // 2),
    4: 8 * 90 + 90 * 91 // 2,
    5: 2 * 3 * 3 * 19**3,
}


@dataclass(frozen=True)
class Arithmetic(TaggedInteger, GeneratedTask):
    """Integer arithmetic in five graded levels; generated.

    1: a + b of one digit. 2: a ± b of two digits. 3: a ± b of three digits. 4: two digits times one or two digits.
    5: two operators and parentheses, numbers from 2 to 20. Reward: `correct` 1.0 for the right integer in the last
    `<answer>`, `format` (format_bonus) for the element.
    """

    levels: tuple[Annotated[int, Within("[1, 5]")], ...] = (1, 2, 3, 4, 5)
    """Levels to draw from, each with the same chance while it has problems left."""
    format_bonus: ShareBelowOne = 0.1
    """Reward for a complete `<answer>` element, right or wrong."""
    style: Literal["chat", "terse"] = "chat"
    """`terse` is a prompt of a few characters, for tiny models."""

    verifier: ClassVar[str] = "arithmetic/2"
    fix: ClassVar[str] = "add levels"

    def check(self) -> None:
        are_valid = len(set(self.levels)) == len(self.levels) > 0
        require(are_valid, f"levels = {list(self.levels)}: name at least one, and each only once")

    @property
    def num_possible(self) -> int:
        return sum(NUM_POSSIBLE[level] for level in self.levels)

    def draw(self, generator: random.Random) -> tuple[Hashable, Problem]:
        level = generator.choice(self.levels)
        same, expression, value = _draw_two_operators(generator) if level == 5 else _draw_one_operator(generator, level)
        if self.style == "terse":
            prompt = f"{expression}="
        else:
            prompt = f"What is {expression}? Give the result as an integer in this form: <answer>result</answer>"
        identifier = stable_id("arithmetic", expression)
        return same, Problem(identifier, (Message("user", prompt),), str(value), {"level": level})

    def score(self, problem: Problem, completion: str) -> Score:
        return score_tagged_number(int(problem.answer), completion, self.verifier, format=self.format_bonus)


def _draw_one_operator(generator: random.Random, level: int) -> tuple[Hashable, str, int]:
    operator = {1: "+", 4: "*"}.get(level) or generator.choice("+-")
    low, high = {1: (0, 9), 2: (10, 99), 3: (100, 999), 4: (10, 99)}[level]
    a = generator.randint(low, high)
    b = generator.randint(2 if level == 4 else low, high)
    if operator == "-":
        a, b = max(a, b), min(a, b)
    return (operator, min(a, b), max(a, b)), f"{a}{operator}{b}", OPERATIONS[operator](a, b)


def _draw_two_operators(generator: random.Random) -> tuple[Hashable, str, int]:
    a, b, c = (generator.randint(2, 20) for _ in range(3))
    first, second = generator.choice("+-*"), generator.choice("+-*")
    apply_first, apply_second = OPERATIONS[first], OPERATIONS[second]
    if generator.random() < 0.5:
        expression, value = f"({a}{first}{b}){second}{c}", apply_second(apply_first(a, b), c)
    else:
        expression, value = f"{a}{first}({b}{second}{c})", apply_first(a, apply_second(b, c))
    return expression, expression, value
