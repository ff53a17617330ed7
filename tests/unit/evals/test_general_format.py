"""Each rule on a completion that follows it and on some that nearly do."""

from __future__ import annotations

import json

import pytest

from groupwise.evals.general_format import REQUESTS, GeneralFormat, is_followed
from groupwise.types import Verdict

CASES: list[tuple[str, object, list[str], list[str]]] = [
    ("words", 1, ["Paris", " Paris. \n"], ["", "It is Paris", "Paris, France"]),
    ("at_most_words", 3, ["a b c", "a"], ["a b c d", ""]),
    ("one_of", ["yes", "no"], ["Yes.", "no"], ["Yes, it is", "maybe", "yes no"]),
    ("number", None, ["7", "-3", "2.5", "8."], ["seven", "7 days", "A spider has 8"]),
    ("bullets", 2, ["- a\n- b", "* a\n\n* b"], ["- a", "- a\n- b\n- c", "Here:\n- a\n- b", "1. a\n2. b", "-a\n-b"]),
    ("numbered", 2, ["1. a\n2. b", "1) a\n2) b"], ["1. a", "2. a\n1. b", "1. a\n2. b\n3. c", "Sure!\n1. a\n2. b"]),
    ("capitals", None, ["GOOD MORNING!"], ["Good MORNING", "123", ""]),
    ("small_letters", None, ["rain falls."], ["Rain falls.", "123"]),
    ("json", ["a"], ['{"a": 1}', '```json\n{"a": 1}\n```'], ['{"a": 1, "b": 2}', "{'a': 1}", 'Here: {"a": 1}', "[1]"]),
    ("json_list", 2, ["[1, 2]"], ["[1]", '{"a": 1}', "[" * 100_000]),
    ("commas", 3, ["a, b, c", "a, b and more, c."], ["a, b", "a,\nb, c", "a b c"]),
    ("sentences", 2, ["One. Two!", 'He said "no." She left.'], ["One.", "One. Two. Three.", "One. Two. And"]),
    ("inside", ["[", "]"], ["[hello]"], ["[hello] there", "hello", "[[hello]]"]),
    ("begins_with", "The sky", ["The sky is blue"], ["Sure! The sky is blue"]),
    ("ends_with", "END", ["Hello END", "Hello END."], ["END of it", "Hello"]),
    ("contains", "river", ["The River runs"], ["The sea"]),
]


@pytest.mark.parametrize(("rule", "argument", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_a_rule_knows_its_form(rule: str, argument: object, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not is_followed(rule, argument, text)] == []
    assert [text for text in bad if is_followed(rule, argument, text)] == []


def test_every_rule_that_is_used_is_tested_and_there_is_no_other() -> None:
    assert {rule for _, rule, _ in REQUESTS} == {case[0] for case in CASES}


def test_it_is_a_task_that_scores_its_own_problems() -> None:
    task = GeneralFormat()
    problems = task.problems("held_out")
    assert len({problem.id for problem in problems}) == len(problems) == len(REQUESTS)
    assert task.problems("train") == ()
    first = problems[0]
    assert json.loads(first.answer) == ["words", 1]
    assert task.score(first, "Paris").verdict is Verdict.CORRECT
    assert task.score(first, "The capital is Paris").verdict is Verdict.WRONG
    for problem in problems:
        assert task.score(problem, "").verdict is Verdict.WRONG
