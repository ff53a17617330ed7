"""`groupwise validate`: a sound verifier passes, and each way of being unsound is told with the row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from groupwise.cli import main
from groupwise.types import Message, Problem, Score, Verdict


@dataclass(frozen=True)
class Flawed:
    """The answer in letters, judged with a flaw of one's choice."""

    flaw: str = ""

    verifier: ClassVar[str] = "flawed/1"

    def problems(self, split: str) -> list[Problem]:
        # Two problems share an answer: that of one is right for the other.
        return [Problem(f"{split}-{n}", (Message("user", f"{split} {n}?"),), f"x{n % 4}") for n in range(6)]

    def gold_completion(self, problem: Problem) -> str | None:
        if self.flaw == "no gold" and problem.id == "train-1":
            return None
        # The same answer in two spellings, so that completions differ where answers do not.
        return problem.answer if problem.id.endswith(("0", "1", "2", "3")) else problem.answer.upper()

    def score(self, problem: Problem, completion: str) -> Score:
        is_right = completion.lower() == problem.answer
        if self.flaw == "blind" and problem.id == "train-2":
            is_right = False
        if self.flaw == "prompt" and completion == problem.messages[0].content:
            is_right = True
        if self.flaw == "empty" and not completion:
            is_right = True
        if self.flaw == "raises" and "boxed" in completion:
            raise ValueError("a brace too many")
        if self.flaw == "any x" and completion.startswith("x") and problem.id == "held_out-0":
            is_right = True
        reward = 0.5 if self.flaw == "half" else 1.0
        return Score(reward * is_right, Verdict.CORRECT if is_right else Verdict.WRONG, {}, self.verifier)


def validate(capsys: pytest.CaptureFixture[str], flaw: str, *more: str) -> tuple[int, dict[str, object]]:
    status = main(["validate", f"{__name__}:Flawed", "--json", "--set", f"flaw={flaw}", *more])
    return status, json.loads(capsys.readouterr().out)


def test_a_sound_verifier_passes(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = validate(capsys, "")
    assert status == 0
    assert (found["problems"], found["gold"], found["gold_failed"]) == (12, 12, 0)
    assert found["wrong"] == 12 * 10
    assert found["failures"] == []


@pytest.mark.parametrize(
    ("flaw", "expected"),
    [
        ("blind", [("train-2", "gold", "wrong")]),
        ("prompt", [(f"{split}-{n}", "the prompt", "correct") for split in ("train", "held_out") for n in range(6)]),
        ("empty", [(f"{split}-{n}", "nothing", "correct") for split in ("train", "held_out") for n in range(6)]),
        ("any x", [("held_out-0", "another problem's answer", "correct")]),
        ("half", [(f"{split}-{n}", "gold", "correct") for split in ("train", "held_out") for n in range(6)]),
    ],
)
def test_each_flaw_is_told_with_its_rows(
    capsys: pytest.CaptureFixture[str], flaw: str, expected: list[tuple[str, str, str]]
) -> None:
    status, found = validate(capsys, flaw)
    assert status == 1
    assert [(row["id"], row["kind"], row["verdict"]) for row in found["failures"]] == expected  # type: ignore


def test_a_verifier_that_fails_on_a_wrong_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = validate(capsys, "raises", "--limit", "1")
    assert status == 1
    failures = found["failures"]
    assert [(row["kind"], row["verdict"]) for row in failures] == [  # type: ignore
        (kind, "error") for _ in range(2) for kind in ("empty box", "not an answer")
    ]
    assert "a brace too many" in failures[0]["detail"]  # type: ignore


def test_problems_without_gold_are_counted_not_failed(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = validate(capsys, "no gold")
    assert status == 0
    assert (found["problems"], found["gold"]) == (12, 11)
    assert main(["validate", f"{__name__}:Flawed", "--set", "flaw=no gold"]) == 0
    assert "1 of 12 problems have no gold answer" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["arithmetic", "countdown", "format-copy"])
def test_the_generated_tasks_are_sound(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", task, "--limit", "30"]) == 0
    assert "60 of 60 are judged correct" in capsys.readouterr().out
