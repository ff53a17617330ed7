"""Whether two answers of competition mathematics are the same, in stages from cheap to costly.

1. As text: multiple choice by letter; the same string after `normalize`; exact numbers; lists, tuples and intervals
   item by item.
2. As trees (`latex`, `latex_compare`): another shape, or other values at a few points, is different; agreement that
   cannot be chance is the same.
3. By algebra (math-verify): what agrees at some points, but might do so by chance; a fraction of a percent of answers.

What is decided by rule, since mathematics alone does not say:

- **A plain number takes a plain number.** Where the gold answer is one, the answer must be written as one (a decimal,
  a fraction, a mixed number, a power): `3+2`, `\\sqrt{25}`, `5!` or a restated sum for 5 is a computation left undone.
- **Decimals are exact**: 0.33 is not 1/3. One exception: a gold decimal of at least four significant digits is taken
  as rounded, so an answer without a decimal point that rounds to it is right (`\\sqrt2` for 1.414).
- **A decimal comma** (`0,5`) is read as one where the gold answer is a number that is not an integer.
- **Percent**: x % is x/100, and is also x where x is at least 1 ("what percent ...?").
- **Units and names** (`10 m`, `x = 5`) count only when both sides have one. Units are not converted. Degrees are
  dropped.
- **Equations** are the same when one is a constant times the other.
- A chain `a = b = c`, what `latex` cannot read (`\\sum`, `\\int`, `\\lim`, `\\prod` among it) and what is long, deep
  or large (see the limits of `normalize`, `latex` and `latex_values`) is compared as text only.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from groupwise.rewards.math.algebra import is_same_by_algebra
from groupwise.rewards.math.latex import Node, parse_latex
from groupwise.rewards.math.latex_compare import compare, walk
from groupwise.rewards.math.latex_values import TooLarge, Undefined, evaluate
from groupwise.rewards.math.normalize import MAX_ANSWER_CHARS, choice_of, spell, split_name, split_unit
from groupwise.rewards.numbers import decimal_comma, parse_number

MAX_ITEMS = 64
MIN_ROUNDED_DIGITS = 4
"""Significant digits from which a gold decimal is taken to be rounded."""

Stage = Literal["text", "number", "items", "rule", "points", "algebra"]

_INTEGER = re.compile(r"-?[1-9][0-9]{0,17}|0")
_DIGITS_AND_POINT = re.compile(r"-?[0-9]+\.[0-9]+")
# A text with anything else is no `_is_closed_rational` tree, and need not be parsed.
_QUOTIENTS_AND_POWERS = re.compile(r"(?:\\frac|\\[{}]|[-0-9.{}()\[\]^/])++")
_CLOSED_RATIONAL = frozenset(("number", "negative", "product", "reciprocal", "power"))


@dataclass(frozen=True, slots=True)
class Judgement:
    is_same: bool
    stage: Stage
    """What decided; `rule` is one of those at the top of this module."""


_SAME_TEXT = Judgement(True, "text")
_OTHER_INTEGER = Judgement(False, "number")


@dataclass(frozen=True, slots=True)
class _Reading:
    """An answer as text: what is read off before any parsing."""

    body: str
    unit: str
    name: str
    spelled: str
    number: Fraction | None
    has_percent: bool


def is_equal(gold: str, answer: str) -> bool:
    """Whether `answer` says what `gold` says."""
    return judge(gold, answer).is_same


def judge(gold: str, answer: str) -> Judgement:
    """The verdict and what reached it. Raises nothing but what math-verify raises, which is a failure of ours."""
    if gold == answer and gold and not gold.isspace():
        return _SAME_TEXT
    if max(len(gold), len(answer)) > MAX_ANSWER_CHARS:
        return Judgement(gold.strip() == answer.strip() != "", "text")
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return _OTHER_INTEGER  # no integer has two spellings of this form
    return _judge(gold, answer)


@lru_cache(maxsize=16_384)
def _judge(gold: str, answer: str) -> Judgement:
    ours, theirs = _read_gold(gold), _read(answer)
    choice = _judge_choice(gold, answer)
    if choice is not None:
        return choice
    if ours.unit and theirs.unit and ours.unit != theirs.unit:
        return Judgement(False, "rule")
    has_other_name = bool(ours.name and theirs.name and ours.name != theirs.name)
    if not has_other_name and ours.spelled == theirs.spelled and ours.has_percent == theirs.has_percent:
        return Judgement(ours.spelled != "", "text")
    if ours.number is not None:
        return Judgement(False, "rule") if has_other_name else _judge_number(ours, theirs)
    if not has_other_name and _is_same_list(ours.spelled, theirs.spelled):
        return Judgement(True, "items")
    if not ours.spelled or not theirs.spelled:
        return Judgement(False, "text")
    return _judge_trees(ours.body, theirs.body)


@lru_cache(maxsize=4096)
def _read_gold(text: str) -> _Reading:
    return _read(text)


def _read(text: str) -> _Reading:
    body, unit = split_unit(text)
    name, spelled = split_name(spell(body))
    number = None if "," in spelled else parse_number(spelled)
    return _Reading(body, unit, name, spelled, number, "%" in text or "percent" in text)


@lru_cache(maxsize=4096)
def _choice_of_gold(gold: str) -> str:
    return choice_of(gold)


def _judge_choice(gold: str, answer: str) -> Judgement | None:
    """For a gold answer that is a letter; None where it is not, or the answer is no choice but may be mathematics."""
    letter = _choice_of_gold(gold)
    if not letter:
        return None
    chosen = choice_of(answer)
    if not chosen and ("(" in gold or "\\text" in gold):  # a choice for certain, and no variable: "c" will do
        chosen = choice_of(answer.upper()) if len(answer) == 1 else ""
    if chosen:
        return Judgement(letter == chosen, "text" if letter == chosen else "rule")
    return None


def _judge_number(gold: _Reading, answer: _Reading) -> Judgement:
    value, other = gold.number, answer.number
    assert value is not None
    if other is not None:
        if gold.has_percent == answer.has_percent:
            is_same = value == other or _rounds_to(other, gold.spelled, answer.spelled)
        else:
            percent, bare = (value, other) if gold.has_percent else (other, value)
            is_same = percent == bare * 100 or (percent == bare and abs(bare) >= 1)
        return Judgement(is_same, "number")
    if value.denominator != 1 and decimal_comma(answer.body) == value:
        return Judgement(True, "number")
    if not _is_rounded(gold.spelled) and not _QUOTIENTS_AND_POWERS.fullmatch(answer.spelled):
        return Judgement(False, "rule")
    tree = parse_latex(answer.body)
    if tree is None:
        return Judgement(False, "rule")
    if tree.kind == "relation" and tree.name == "=" and tree.args[0].kind == "variable":
        tree = tree.args[1]
    if tree.kind == "set" and len(tree.args) == 1:
        tree = tree.args[0]
    if _is_closed_rational(tree):
        return Judgement(_value(tree) == value, "points")
    if tree.is_scalar and _rounds_to(_value(tree), gold.spelled, answer.body):
        return Judgement(all(part.kind != "variable" for part in walk(tree)), "points")
    return Judgement(False, "rule")


def _is_closed_rational(tree: Node) -> bool:
    """Numbers, quotients and powers: `\\frac{1}{2^{10}}`. A product or a sum is a computation."""
    parts = list(walk(tree))
    is_product = any(part.kind == "product" and part.args[-1].kind != "reciprocal" for part in parts)
    return not is_product and all(part.kind in _CLOSED_RATIONAL and len(part.args) <= 2 for part in parts)


def _value(tree: Node) -> Fraction | float | complex | None:
    try:
        return evaluate(tree, 0)
    except (Undefined, TooLarge):
        return None


def _is_rounded(decimal: str) -> bool:
    digits = decimal.lstrip("-0.").replace(".", "")
    return len(digits) >= MIN_ROUNDED_DIGITS and _DIGITS_AND_POINT.fullmatch(decimal) is not None


def _rounds_to(value: Fraction | float | complex | None, decimal: str, written: str) -> bool:
    """Whether a value that is not written as a decimal has this gold decimal as its rounding."""
    if not _is_rounded(decimal) or "." in written:
        return False
    if not isinstance(value, Fraction) and not (isinstance(value, float) and math.isfinite(value)):
        return False
    half_unit = Fraction(1, 2 * 10 ** len(decimal.partition(".")[2]))
    return abs(Fraction(value) - Fraction(decimal)) < half_unit


@lru_cache(maxsize=4096)
def _gold_tree(body: str) -> Node | None:
    return parse_latex(body)


def _judge_trees(gold: str, answer: str) -> Judgement:
    ours, theirs = _gold_tree(gold), parse_latex(answer)
    if ours is None or theirs is None:
        return Judgement(False, "rule")
    num_settled = 0

    def settle(one: Node, other: Node) -> bool:
        nonlocal num_settled
        num_settled += 1
        return is_same_by_algebra(one, other)

    is_same = compare(ours, theirs, settle)
    return Judgement(is_same, "algebra" if num_settled else "points")


def _is_same_list(gold: str, answer: str) -> bool:
    gold_open, gold_items, gold_close = _items(gold)
    if not 2 <= len(gold_items) <= MAX_ITEMS:
        return False
    answer_open, answer_items, answer_close = _items(answer)
    if (gold_open, gold_close) != (answer_open, answer_close) or len(gold_items) != len(answer_items):
        return False
    ours, theirs = _exact_items(gold_items), _exact_items(answer_items)
    if "" in ours:
        return False
    # Solutions listed without brackets, and sets, have no order.
    return Counter(ours) == Counter(theirs) if gold_open in ("", "\\{") else ours == theirs


def _exact_items(items: list[str]) -> list[Fraction | str]:
    numbers = [parse_number(item) for item in items]
    return [item if number is None else number for item, number in zip(items, numbers, strict=True)]


def _items(text: str) -> tuple[str, list[str], str]:
    """("(", ["1", "2"], ")") from `(1,2)`; without brackets both are ''. One level: items are not split again."""
    opening = next((bracket for bracket in ("\\{", "(", "[") if text.startswith(bracket)), "")
    closing = next((bracket for bracket in ("\\}", ")", "]") if text.endswith(bracket)), "")
    if opening and closing:
        items = _split(text[len(opening) : len(text) - len(closing)])
        if items is not None:  # None for `(1,2),(3,4)`: the outer brackets are not a pair
            return opening, items, closing
    return "", _split(text) or [text], ""


def _split(text: str) -> list[str] | None:
    """The parts between the commas that are in no bracket; None where a bracket closes that was not opened."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif character == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
    return [*items, text[start:]]
