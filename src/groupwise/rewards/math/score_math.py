"""Scores of mathematical answers: found by their mark, compared by `equality`.

An answer that only repeats the problem is wrong even with the right value: it is spelled differently from the gold
answer and occurs in the question unchanged (`\\sqrt{50}` for "Simplify $\\sqrt{50}$").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from groupwise.rewards.extract import AnswerMark, describe_missing, final_answer, last_number
from groupwise.rewards.format import excerpt, score_correct
from groupwise.rewards.math.equality import judge
from groupwise.rewards.math.normalize import normalize
from groupwise.rewards.numbers import parse_number
from groupwise.types import Score

_PLAIN_NUMBER = re.compile(r"[-+]?[0-9.,]++")
_SPACING = re.compile(r"\s++|\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,;: ]|[${}]")
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)  # coordinates of a figure, as in MATH
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")


def score_math(
    gold: str, completion: str, verifier: str, *, marks: Sequence[AnswerMark] = ("boxed",), question: str = ""
) -> Score:
    """Score 1.0 for a right marked answer, 0.1 for the mark, 0.1 if only the last number is right.

    A bare number, found by the mark `number`, gets nothing for its format.
    """
    found = final_answer(completion, marks)
    is_right = None if found is None else is_right_answer(gold, found.readings, question)
    has_right_number = False
    if not is_right:
        value = _gold_number(gold)
        number = None if value is None else last_number(completion)
        has_right_number = number is not None and value == parse_number(number.text)
    written = [mark for mark in marks if mark != "number"]
    has_mark = found is not None and ("number" not in marks or final_answer(completion, written) is not None)
    box, last = 0.1 if has_mark else 0.0, 0.1 if has_right_number else 0.0
    detail = excerpt(found.text) if found else describe_missing(marks)
    return score_correct(is_right, verifier, detail, box=box, last_number=last)


def is_right_answer(gold: str, readings: Sequence[str], question: str = "") -> bool:
    """Return whether a reading of the answer equals the gold one and is not copied from the question."""
    for answer in readings:
        judgement = judge(gold, answer)
        if judgement.is_same:
            return judgement.stage == "text" or not question or not is_restated(gold, answer, question)
    return False


def is_restated(gold: str, answer: str, question: str) -> bool:
    """Return whether an answer that is spelled differently from the gold one is copied from the question.

    Plain numbers (5 and 5.0) never count as copied, since the question may mention them for other reasons.
    """
    if _PLAIN_NUMBER.fullmatch(answer.strip("$ ")) and _PLAIN_NUMBER.fullmatch(gold.strip("$ ")):
        return False
    needle, text = _bare(answer), _bare(_DRAWING.sub("", question))
    start = text.find(needle) if needle else -1
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(needle) : start + len(needle) + 1]
        # Part of a longer number is not a copy.
        if not (_continues(before, needle[0]) or _continues(needle[-1], after)):
            return True
        start = text.find(needle, start + 1)
    return False


def _bare(text: str) -> str:
    return _FRACTION.sub(r"\\frac", _SPACING.sub("", text)).rstrip(".,;")


def _continues(left: str, right: str) -> bool:
    return bool(left and right) and (left.isdigit() or left == ".") and right.isdigit()


@lru_cache(maxsize=16_384)
def _gold_number(gold: str) -> Fraction | None:
    return parse_number(normalize(gold))
