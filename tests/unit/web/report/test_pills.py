"""The right answer of a problem, as people read it."""

from __future__ import annotations

import json

import pytest

from groupwise.web.report.sections.shown_completions import gold_text


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("18", "18"),
        ("", ""),
        ('SELECT "a" FROM t', 'SELECT "a" FROM t'),
        ("{1, 2}", "{1, 2}"),
        ('"text"', '"text"'),
        (
            json.dumps({"tests": ['assert f("a") == 1', "assert f(2) == 2"], "entry_points": ["f"]}),
            'tests: assert f("a") == 1; assert f(2) == 2 · entry points: f',
        ),
        (json.dumps({"numbers": [3, 4], "target": 7}), "numbers: 3; 4 · target: 7"),
    ],
)
def test_gold_in_words(answer: str, shown: str) -> None:
    assert gold_text(answer) == shown
