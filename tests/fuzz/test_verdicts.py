"""Gold completions with random damage, on every verifier: whatever they have become, they are judged, and soon.

A failure would keep the completion out of the loss, so it is never the verdict on something that a completion says.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rewards.code.score_code import shared_sandbox
from groupwise.sandbox import SandboxUnavailable
from groupwise.scoring.scorer import ScoreFunction
from tests.fuzz import examples
from tests.verifier_cases import FORMS, TEXTS, UNITS, Case, verifier_cases

MAX_CHARS = 200_000
MAX_SECONDS = 2.5
"""CPU time: half of the default limit."""
PLACES = st.floats(0, 1)


@st.composite
def damaged(draw: st.DrawFn, gold: str) -> str:
    """Repeat, cut, double, wrap or replace parts of a gold completion, a few times over."""
    text = gold
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(round(len(text) * draw(PLACES)) for _ in range(2))
        part = text[start:end]
        match draw(st.sampled_from(["repeat", "cut", "insert", "replace", "nest", "form"])):
            case "repeat":
                part *= draw(st.sampled_from([2, 3, 50, 5_000]))
            case "cut":
                part = ""
            case "insert":
                part += draw(st.sampled_from(UNITS)) * draw(st.sampled_from([1, 2, 40, 5_000]))
            case "replace":
                part = draw(st.one_of(st.sampled_from(sorted(TEXTS.values())), st.text(max_size=20)))
            case "nest":
                opening, closing = draw(st.sampled_from(["()", "[]", "{}", ("\\frac{1}{", "}"), ("(SELECT ", ")")]))
                times = draw(st.sampled_from([1, 3, 30, 3_000]))
                part = opening * times + part + closing * times
            case "form":
                part = FORMS[draw(st.sampled_from(sorted(FORMS)))].format(part)
        text = (text[:start] + part + text[end:])[:MAX_CHARS]
    return text


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Case, ScoreFunction]]:
    cases = verifier_cases(tmp_path_factory.mktemp("cases"))
    return {name: (case, ScoreFunction(case.task, "arithmetic")) for name, case in cases.items()}


def _check(case: Case, score: ScoreFunction, completion: str) -> None:
    started = time.process_time()
    found = score.score(case.problem, completion)
    assert time.process_time() - started < MAX_SECONDS
    assert not found.is_error, found
    assert 0.0 <= found.reward < 1.5
    assert len(found.detail) < 300


@examples(500)
@given(st.data())
def test_damaged_gold_completions_are_judged(
    functions: dict[str, tuple[Case, ScoreFunction]], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(set(functions) - {"code-jsonl"})))
    case, score = functions[name]
    _check(case, score, data.draw(damaged(case.gold)))


@examples(20)
@given(st.data())
def test_damaged_programs_are_judged(functions: dict[str, tuple[Case, ScoreFunction]], data: st.DataObject) -> None:
    try:
        shared_sandbox("auto").run("")
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation on this machine: {error}")
    case, score = functions["code-jsonl"]
    _check(case, score, data.draw(damaged(case.gold)))
