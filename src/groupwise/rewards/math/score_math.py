"""The score of a completion whose answer is mathematics: found by its mark, compared by `equality`.

An answer that only repeats the problem earns nothing: if it is not spelled like the gold answer and stands in the
question as it is, it is wrong even where it has the right value (`\\sqrt{50}` for "Simplify $\\sqrt{50}$").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from groupwise.rewards.extract import AnswerMark, describe_missing, final_answer, last_number
from groupwise.rewards.format import excerpt
from groupwise.rewards.math.equality import judge
from groupwise.rewards.math.normalize import normalize
from groupwise.rewards.numbers import parse_number
from groupwise.types import Score, Verdict

_PLAIN_NUMBER = re.compile(r"[-+]?[0-9.,]++")
_SPACING = re.compile(r"\s++|\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,;: ]|[${}]")
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)  # coordinates of a figure, as in MATH
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")


def score_math(
    gold: str, completion: str, verifier: str, *, marks: Sequence[AnswerMark] = ("boxed",), question: str = ""
) -> Score:
    """+1.0 marked and right, +0.1 for the mark, +0.1 when what is marked is not right but the last number is.

    The bare number that the mark `number` finds earns nothing for its format.
    """
    found = final_answer(completion, marks)
    is_right = found is not None and is_right_answer(gold, found.text, question)
    has_right_number = False
    if not is_right:
        value = _gold_number(gold)
        number = None if value is None else last_number(completion)
        has_right_number = number is not None and value == parse_number(number)
    has_mark = found is not None and ("number" not in marks or final_answer(completion, _written(marks)) is not None)
    parts = {
        "correct": 1.0 if is_right else 0.0,
        "box": 0.1 if has_mark else 0.0,
        "last_number": 0.1 if has_right_number else 0.0,
    }
    verdict = Verdict.UNPARSED if found is None else Verdict.CORRECT if is_right else Verdict.WRONG
    detail = excerpt(found.text) if found else describe_missing(marks)
    return Score(sum(parts.values()), verdict, parts, verifier, detail)


def _written(marks: Sequence[AnswerMark]) -> tuple[AnswerMark, ...]:
    return tuple(mark for mark in marks if mark != "number")


def is_right_answer(gold: str, answer: str, question: str = "") -> bool:
    """Whether the answer is the gold one and not a piece of the question."""
    judgement = judge(gold, answer)
    if not judgement.is_same:
        return False
    return judgement.stage == "text" or not question or not is_restated(gold, answer, question)


def is_restated(gold: str, answer: str, question: str) -> bool:
    """Whether an answer that is spelled otherwise than the gold one is taken from the question.

    Two decimals or integers (5 and 5.0) are one spelling: a number that the problem also mentions is no restatement.
    """
    if _PLAIN_NUMBER.fullmatch(answer.strip("$ ")) and _PLAIN_NUMBER.fullmatch(gold.strip("$ ")):
        return False
    needle, text = _bare(answer), _bare(_DRAWING.sub("", question))
    start = text.find(needle) if needle else -1
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(needle) : start + len(needle) + 1]
        # A part of a longer number or word is another thing.
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
