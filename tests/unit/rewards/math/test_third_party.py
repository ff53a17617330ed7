"""Verdicts of others (tests/data/third_party_verdicts.jsonl): each is ours too, unless a reason stands beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.rewards.extract import AnswerMark
from groupwise.rewards.math.equality import is_equal
from groupwise.rewards.math.score_math import score_math
from groupwise.types import Verdict

FILE = Path(__file__).parents[3] / "data" / "third_party_verdicts.jsonl"
CASES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
MARKS: dict[str, tuple[AnswerMark, ...]] = {"boxed": ("boxed",), "prose": ("number",)}
MIN_AGREEMENT = 0.88


def _is_correct(case: dict[str, Any]) -> bool:
    if case["form"] == "bare":
        return is_equal(case["gold"], case["completion"])
    marks = MARKS[case["form"]]
    return score_math(case["gold"], case["completion"], "", marks=marks).verdict is Verdict.CORRECT


@pytest.mark.parametrize("case", CASES, ids=[f"{case['source']}-{number}" for number, case in enumerate(CASES)])
def test_disagreements_are_those_with_a_reason(case: dict[str, Any]) -> None:
    assert (_is_correct(case) != case["verdict"]) == ("reason" in case), case


def test_nearly_all_boxed_and_bare_answers_agree() -> None:
    cases = [case for case in CASES if case["form"] != "prose"]
    assert sum("reason" not in case for case in cases) >= MIN_AGREEMENT * len(cases)
