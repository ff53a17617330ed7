"""`groupwise sample`: completions of one question, and the best of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from groupwise.cli import main
from groupwise.evals.sample import Choice, Sampled, choose, judge
from groupwise.tasks import make_task
from tests.factories import make_rollout


def judged(*texts: str, task: str | None = None, **fields: Any) -> list[Sampled]:
    made = None if task is None else make_task(task, {})
    return judge([make_rollout(text) for text in texts], "How many?", made, fields)


def test_the_majority_counts_answers_and_not_spellings() -> None:
    sampled = judged("so \\boxed{7}", "\\boxed{1/2}", "#### 0.5", "I think \\boxed{\\frac12}", "no idea")
    assert [entry.answer for entry in sampled] == ["7", "1/2", "0.5", "\\frac12", None]
    choice = choose(sampled, "majority")
    assert choice == Choice(1, "3 of 5 give the answer '1/2'")


def test_of_equal_votes_the_first_wins_and_no_answer_is_no_vote() -> None:
    assert choose(judged("\\boxed{2}", "\\boxed{3}"), "majority") == Choice(0, "1 of 2 give the answer '2'")
    assert choose(judged("none", "nothing"), "majority") is None
    assert choose(judged("\\boxed{2}"), "none") is None


def test_the_verifier_chooses_a_right_one() -> None:
    sampled = judged("\\boxed{17}", "\\boxed{18}", "18", "\\boxed{18.0}", task="gsm8k", answer=18)
    assert choose(sampled, "verifier") == Choice(1, "2 of 4 are judged correct")
    assert choose(judged("\\boxed{17}", task="gsm8k", answer=18), "verifier") is None


def test_a_question_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sample", "tiny-qwen3", "1+1=", "--n", "3", "--max-new-tokens", "5", "--json"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    lines = [json.loads(line) for line in first.splitlines()]
    assert len(lines) == 3
    assert all(1 <= line["tokens"] <= 5 and line["logprob"] < 0 for line in lines)
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    assert main([*arguments[:-1], "--best-of", "verifier", "--task", "arithmetic", "--fields", '{"answer": 2}']) == 0
    shown = capsys.readouterr().out
    assert "3 of 3" in shown
    assert "=== none picked" in shown


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--best-of", "verifier"], "--task"),
        (["--fields", "{"], "not JSON"),
        (["--fields", "[1]"], "expected an object"),
        (["--n", "0"], "--n = 0: must be from 1"),
        (["--max-new-tokens", "100000"], "tokens of context"),
        (["--task", "countdown"], "no key 'numbers'"),
    ],
)
def test_bad_input_is_refused(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "tiny-qwen3", "1+1=", "--max-new-tokens", "2", *more]) == 2
    assert message in capsys.readouterr().err
