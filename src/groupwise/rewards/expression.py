"""Scores of Countdown: an expression that uses each given number exactly once and equals the target.

Expressions consist of `+ - * / ( )` and non-negative integers and are computed exactly as `Fraction`, with limits on
length, digits and depth. A text with a unary minus, a power, a decimal, an implicit product or `=` is not an
expression, and neither is a single number.

The reward is one of four:

    1.0                                          the target, each number used once
    0.8 - 0.5 * distance / span   (0.8 … 0.3)    each number used once, distance = |value - target| <= span
    0.1                                          an expression with other numbers, too far off, or dividing by zero
    0.0                                          no `<answer>` element, or no expression in it

where span = max(10, |target|).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from groupwise.rewards.extract import last_tag
from groupwise.rewards.format import excerpt
from groupwise.rewards.numbers import calculate
from groupwise.types import Score, Verdict

MAX_EXPRESSION_CHARS = 400
MAX_DEPTH = 32
MAX_DIGITS = 12

_TOKEN = re.compile(r"[0-9]+|\S")
_NUMBER = re.compile(f"[0-9]{{1,{MAX_DIGITS}}}")
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-"})


@dataclass(frozen=True, slots=True)
class Expression:
    value: Fraction | None
    """None when it divides by zero."""
    numbers: tuple[int, ...]
    """Every number used, in the order written."""


class _NotAnExpression(Exception):
    """End of the parse; never leaves this module."""


def parse_expression(text: str) -> Expression | None:
    """Parse an arithmetic expression; return None for any other text and for a single number."""
    if len(text) > MAX_EXPRESSION_CHARS:
        return None
    parser = _Parser(_TOKEN.findall(text.translate(_SPELLINGS)))
    try:
        value = parser.sum(0)
    except _NotAnExpression:
        return None
    is_expression = parser.position == len(parser.tokens) - 1 and len(parser.numbers) >= 2
    return Expression(value, tuple(parser.numbers)) if is_expression else None


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, ""]  # "" marks the end
        self.position = 0
        self.numbers: list[int] = []

    def take(self, choices: str) -> str:
        """Go past the next token and return it if it is one of these signs; else return ""."""
        token = self.tokens[self.position]
        if not token or token not in choices:
            return ""
        self.position += 1
        return token

    def sum(self, depth: int) -> Fraction | None:
        value = self.product(depth)
        while sign := self.take("+-"):
            value = calculate(sign, value, self.product(depth))
        return value

    def product(self, depth: int) -> Fraction | None:
        value = self.atom(depth)
        while sign := self.take("*/"):
            value = calculate(sign, value, self.atom(depth))
        return value

    def atom(self, depth: int) -> Fraction | None:
        if depth < MAX_DEPTH and self.take("("):
            value = self.sum(depth + 1)
            if self.take(")"):
                return value
        elif _NUMBER.fullmatch(self.tokens[self.position]):
            self.numbers.append(int(self.tokens[self.position]))
            self.position += 1
            return Fraction(self.numbers[-1])
        raise _NotAnExpression


def score_countdown(nums: Sequence[int], target: int, completion: str, verifier: str) -> Score:
    """Score by the rule of this module. Exactly one part is not zero, so weights can turn shaping off."""
    parts = {"correct": 0.0, "near": 0.0, "format": 0.0}
    found = last_tag(completion)
    if found is None:
        return Score(0.0, Verdict.UNPARSED, parts, verifier, "no <answer> element")
    expression = parse_expression(found.text)
    if expression is None:
        return Score(0.0, Verdict.UNPARSED, parts, verifier, f"not an expression: {excerpt(found.text)}")
    value, verdict = expression.value, Verdict.WRONG
    span = max(10, abs(target))
    if sorted(expression.numbers) != sorted(nums):
        parts["format"], why = 0.1, "other numbers"
    elif value is None:
        parts["format"], why = 0.1, "division by zero"
    elif value == target:
        parts["correct"], why, verdict = 1.0, "right", Verdict.CORRECT
    elif abs(value - target) <= span:
        parts["near"], why = 0.8 - 0.5 * float(abs(value - target) / span), f"off by {abs(value - target)}"
    else:
        parts["format"], why = 0.1, "too far"
    return Score(sum(parts.values()), verdict, parts, verifier, f"{why}: {excerpt(found.text)}")
