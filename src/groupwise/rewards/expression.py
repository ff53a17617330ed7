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
from groupwise.types import Score, Verdict

MAX_EXPRESSION_CHARS = 400
MAX_DEPTH = 32
MAX_DIGITS = 12

_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*/()]))")
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
    try:
        parser = _Parser(_tokens(text.translate(_SPELLINGS)))
        value = parser.sum(0)
        if parser.position != len(parser.tokens) or len(parser.numbers) < 2:
            return None
    except _NotAnExpression:
        return None
    return Expression(value, tuple(parser.numbers))


def _tokens(text: str) -> list[str]:
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position, end)
        if match is None or len(match[1] or "") > MAX_DIGITS:
            raise _NotAnExpression
        tokens.append(match[1] or match[2])
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.numbers: list[int] = []

    def take(self, choices: str) -> str | None:
        if self.position < len(self.tokens) and self.tokens[self.position] in choices:
            self.position += 1
            return self.tokens[self.position - 1]
        return None

    def sum(self, depth: int) -> Fraction | None:
        value = self.product(depth)
        while operator := self.take("+-"):
            other = self.product(depth)
            if value is not None:
                value = None if other is None else value + other if operator == "+" else value - other
        return value

    def product(self, depth: int) -> Fraction | None:
        value = self.atom(depth)
        while operator := self.take("*/"):
            other = self.atom(depth)
            if value is None or other is None or (operator == "/" and other == 0):
                value = None
            else:
                value = value * other if operator == "*" else value / other
        return value

    def atom(self, depth: int) -> Fraction | None:
        if self.take("("):
            if depth >= MAX_DEPTH:
                raise _NotAnExpression
            value = self.sum(depth + 1)
            if not self.take(")"):
                raise _NotAnExpression
            return value
        if self.position >= len(self.tokens) or not self.tokens[self.position].isdecimal():
            raise _NotAnExpression
        self.numbers.append(int(self.tokens[self.position]))
        self.position += 1
        return Fraction(self.numbers[-1])


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
