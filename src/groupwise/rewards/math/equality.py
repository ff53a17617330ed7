"""Equality of two answers of competition mathematics, in stages from cheap to expensive.

1. As text: multiple choice by letter; the same string after `normalize`; exact numbers; lists, tuples and intervals
   item by item.
2. As trees (`latex`, `latex_compare`): different in shape or in value at a few points, or in agreement beyond chance.
3. By algebra (math-verify): agreement at some points that may be chance; a fraction of a percent of answers.

Rules where mathematics alone does not decide:

- **A plain number takes a plain number.** Where the gold answer is one, the answer must be written as one (a decimal,
  a fraction, a mixed number, a power): `3+2`, `\\sqrt{25}`, `5!` or a restated sum for 5 is an unfinished computation.
- **Decimals are exact**: 0.33 is not 1/3. One exception: a gold decimal of at least four significant digits counts as
  rounded, so an answer without a decimal point that rounds to it is right (`\\sqrt2` for 1.414).
- **A decimal comma** (`0,5`) is accepted where the gold answer is a number but not an integer.
- **Percent**: x % is x/100, and is also x where x is at least 1 ("what percent ...?").
- **Units and names** (`10 m`, `x = 5`, `|AB| = 5`) count only when both sides have one. Units are not converted.
  Degrees are dropped.
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
from groupwise.rewards.math.normalize import APART, MAX_ANSWER_CHARS, choice_of, spell, split_name, split_unit
from groupwise.rewards.numbers import decimal_comma, parse_number

MAX_ITEMS = 64
MIN_ROUNDED_DIGITS = 4
"""Significant digits from which a gold decimal is taken to be rounded."""

Stage = Literal["text", "number", "items", "rule", "points", "algebra"]

_INTEGER = re.compile(r"-?[1-9][0-9]{0,17}|0")
_ROUNDED = re.compile(r"-?([0-9]+)\.([0-9]+)(?:\\(?:times|cdot)10\^\{?(-?[0-9]{1,2})\}?)?")
# A text with anything else is no `_is_closed_rational` tree, and need not be parsed.
_QUOTIENTS_AND_POWERS = re.compile(r"(?:\\frac|\\[{}]|[-0-9.{}()\[\]^/])++")
_CLOSED_RATIONAL = frozenset(("number", "negative", "product", "reciprocal", "power"))


@dataclass(frozen=True, slots=True)
class Judgement:
    is_same: bool
    stage: Stage
    """The deciding stage; `rule` is one of those at the top of this module."""


_SAME_TEXT = Judgement(True, "text")
_OTHER_INTEGER = Judgement(False, "number")


@dataclass(frozen=True, slots=True)
class _Reading:
    """What an answer's text shows before any parsing."""

    body: str
    unit: str
    name: str
    spelled: str
    number: Fraction | None
    has_percent: bool


def is_equal(gold: str, answer: str) -> bool:
    """Return whether two answers are equal."""
    return judge(gold, answer).is_same


def judge(gold: str, answer: str) -> Judgement:
    """Return the verdict and its stage; raise only what math-verify raises, which is a failure of ours."""
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


def _read(text: str) -> _Reading:
    body, unit = split_unit(text)
    name, spelled = split_name(spell(body))
    number = None if "," in spelled else parse_number(spelled)
    return _Reading(body, unit, name, spelled, number, "%" in text or "percent" in text)


# Each gold answer is compared with many answers.
_read_gold = lru_cache(maxsize=4096)(_read)
_choice_of_gold = lru_cache(maxsize=4096)(choice_of)
_gold_tree = lru_cache(maxsize=4096)(parse_latex)


def _judge_choice(gold: str, answer: str) -> Judgement | None:
    """Compare with a gold letter; None where gold is not one, or the answer is not a choice but maybe mathematics."""
    letter = _choice_of_gold(gold)
    if not letter:
        return None
    chosen = choice_of(answer)
    if not chosen and ("(" in gold or "\\text" in gold):  # certainly a choice and not a variable: accept "c"
        chosen = choice_of(answer.upper()) if len(answer) == 1 else ""
    if chosen:
        return Judgement(letter == chosen, "text" if letter == chosen else "rule")
    return None


def _judge_number(gold: _Reading, answer: _Reading) -> Judgement:
    value, other = gold.number, answer.number
    assert value is not None
    if other is not None:
        if gold.has_percent == answer.has_percent:
            is_same = value == other or _rounds_to(other, gold, answer.spelled)
        else:
            percent, bare = (value, other) if gold.has_percent else (other, value)
            is_same = percent == bare * 100 or (percent == bare and abs(bare) >= 1)
        return Judgement(is_same, "number")
    if value.denominator != 1 and decimal_comma(answer.body) == value:
        return Judgement(True, "number")
    if _rounded_unit(gold.spelled) is None and not _QUOTIENTS_AND_POWERS.fullmatch(answer.spelled):
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
    if tree.is_scalar and _rounds_to(_value(tree), gold, answer.body):
        return Judgement(all(part.kind != "variable" for part in walk(tree)), "points")
    return Judgement(False, "rule")


def _is_closed_rational(tree: Node) -> bool:
    """Return whether a tree has only numbers, quotients and powers: `\\frac{1}{2^{10}}`."""
    parts = list(walk(tree))
    is_product = any(part.kind == "product" and part.args[-1].kind != "reciprocal" for part in parts)
    return not is_product and all(part.kind in _CLOSED_RATIONAL and len(part.args) <= 2 for part in parts)


def _value(tree: Node) -> Fraction | float | complex | None:
    try:
        return evaluate(tree, 0)
    except (Undefined, TooLarge):
        return None


def _rounded_unit(decimal: str) -> Fraction | None:
    """Return the unit of the last digit of a decimal that counts as rounded; None for anything else."""
    match = _ROUNDED.fullmatch(decimal)
    if match is None or len(f"{match[1]}{match[2]}".lstrip("0")) < MIN_ROUNDED_DIGITS:
        return None
    return Fraction(10) ** (int(match[3] or 0) - len(match[2]))


def _rounds_to(value: Fraction | float | complex | None, gold: _Reading, written: str) -> bool:
    """Return whether a value not written as a decimal rounds to this gold decimal."""
    unit = _rounded_unit(gold.spelled)
    if unit is None or gold.number is None or "." in written:
        return False
    if not isinstance(value, Fraction) and not (isinstance(value, float) and math.isfinite(value)):
        return False
    return abs(Fraction(value) - gold.number) < unit / 2


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
    numbers = [parse_number(item.replace(APART, " ")) for item in items]
    return [item if number is None else number for item, number in zip(items, numbers, strict=True)]


def _items(text: str) -> tuple[str, list[str], str]:
    """Return ("(", ["1", "2"], ")") for `(1,2)`; without brackets both are "". Items are not split again."""
    opening = next((bracket for bracket in ("\\{", "(", "[") if text.startswith(bracket)), "")
    closing = next((bracket for bracket in ("\\}", ")", "]") if text.endswith(bracket)), "")
    if opening and closing:
        items = _split(text[len(opening) : len(text) - len(closing)])
        if items is not None:  # None for `(1,2),(3,4)`, whose outer brackets are not a pair
            return opening, items, closing
    return "", _split(text) or [text], ""


def _split(text: str) -> list[str] | None:
    """Split at commas outside brackets; None where a bracket closes that was not opened."""
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
