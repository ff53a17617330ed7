"""`groupwise verify`: one result per row, in order, whatever the rows are like."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from groupwise.cli import main
from groupwise.types import Message, Problem, Score, Verdict


@dataclass(frozen=True)
class ByIdOnly:
    """A task of one's own without bare_problem."""

    verifier: ClassVar[str] = "by-id/1"

    def problems(self, split: str) -> list[Problem]:
        return [Problem(f"{split}-{n}", (Message("user", str(n)),), str(n)) for n in range(3)]

    def score(self, problem: Problem, completion: str) -> Score:
        if completion == "spin":
            while True:
                pass
        is_right = completion == problem.answer
        return Score(float(is_right), Verdict.CORRECT if is_right else Verdict.WRONG, {}, self.verifier)


BY_ID = f"{__name__}:ByIdOnly"


def verify(capsys: pytest.CaptureFixture[str], tmp_path: Path, task: str, rows: list[Any], *more: str) -> list[Any]:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows))
    status = main(["verify", task, str(path), "--json", *more])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == (2 if any(".jsonl, row " in line["detail"] for line in lines) else 0)
    return lines


def test_countdown_rows_carry_their_own_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows: list[Any] = [
        {"completion": "<answer>(1 + 2) * 3</answer>", "numbers": [1, 2, 3], "target": 9},
        {"completion": "<answer>1 + 2 + 3</answer>", "nums": [3, 2, 1], "target": 9, "id": "mine"},
        {"completion": "no idea", "numbers": [1, 2], "target": 3},
    ]
    lines = verify(capsys, tmp_path, "countdown", rows)
    assert [line["verdict"] for line in lines] == ["correct", "wrong", "unparsed"]
    assert [line["row"] for line in lines] == [1, 2, 3]
    assert lines[0]["reward"] == 1.0 == sum(lines[0]["parts"].values())
    assert lines[1]["id"] == "mine"
    assert all(line["seconds"] >= 0 and line["verifier"] == "countdown/1" for line in lines)


def test_a_row_that_cannot_be_read_costs_no_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = {"completion": "<answer>7</answer>", "answer": 7}
    rows: list[Any] = [
        good,
        b"{not json",
        {"answer": 7},
        {"completion": 7, "answer": 7},
        [1, 2],
        {"completion": "<answer>7</answer>", "answer": 7.5},
        {"completion": "<answer>7</answer>"},
        b'{"completion": "x", "answer": NaN}',
        b"",
        {"completion": "<answer>7</answer>", "answer": "7"},
    ]
    lines = verify(capsys, tmp_path, "arithmetic", rows)
    verdicts = ["correct", *["error"] * 7, "correct"]
    assert [line["verdict"] for line in lines] == verdicts
    assert [line["row"] for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    for line, reason in zip(
        lines[1:8],
        ["not valid JSON", "'completion'", "expected a string", "an object", "an integer", "'answer'", "NaN"],
        strict=True,
    ):
        assert f"row {line['row']}" in line["detail"]
        assert reason in line["detail"]


def test_rows_by_id(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        {"completion": "2", "id": "train-2"},
        {"completion": "2", "id": "held_out-1"},
        {"completion": "2", "id": "nobody"},
        {"completion": "spin", "id": "train-0"},
        {"completion": "1", "id": "held_out-1"},
        {"completion": "1", "id": ["held_out-1"]},
    ]
    lines = verify(capsys, tmp_path, BY_ID, rows, "--seconds", "0.2")
    assert [line["verdict"] for line in lines] == ["correct", "wrong", "error", "timed_out", "correct", "error"]
    assert "its id 'nobody' does not help: no problem of the task has it" in lines[2]["detail"]
    assert [line["id"] for line in lines] == [row["id"] for row in rows]


def test_many_rows_keep_their_order(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("groupwise.scoring.verify.ROWS_AHEAD", 50)
    rows = [{"completion": f"<answer>{n % 7}</answer>", "answer": n % 5, "id": n} for n in range(500)]
    lines = verify(capsys, tmp_path, "arithmetic", rows)
    assert [line["id"] for line in lines] == list(range(500))
    assert [line["verdict"] == "correct" for line in lines] == [n % 7 == n % 5 for n in range(500)]


def test_an_id_hides_no_other_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Not even where the task has no problems to look it up in."""
    lines = verify(capsys, tmp_path, "jsonl", [{"completion": "x", "id": "a"}, {"completion": "x", "id": None}])
    path = tmp_path / "rows.jsonl"
    assert lines[0]["detail"].startswith(f"{path}, row 1: no key 'answer'; it has completion, id; and its id 'a' does")
    assert lines[1]["detail"] == f"{path}, row 2: no key 'answer'; it has completion, id"


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_a_file_without_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content, encoding="utf-8")
    assert main(["verify", "arithmetic", str(tmp_path / "rows.jsonl")]) == 2
    assert "rows.jsonl: no rows" in capsys.readouterr().err


def test_the_reasoning_is_scored_where_that_is_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"completion": "1 + 1 = 2, 2 * 2 = 5 <answer>5</answer>", "answer": 5}]
    (line,) = verify(capsys, tmp_path, "arithmetic", rows, "--process", "arithmetic")
    assert (line["verdict"], line["process"]) == ("correct", 0.5)


def test_a_summary_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"completion": "<answer>7</answer>", "answer": 7}\n{"completion": "\\u001b[31m", "answer": 7}\n{}\n'
    )
    assert main(["verify", "arithmetic", str(path)]) == 2
    shown = capsys.readouterr()
    assert "3 completions: 1 correct, 1 unparsed, 1 error" in shown.out
    assert "correct 50.0 % of judged completions" in shown.out
    assert "row 3: error" in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "arithmetic", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["verify", "arithmetics", "nowhere.jsonl"], "did you mean 'arithmetic'?"),
        (["verify", "arithmetic", "nowhere.jsonl", "--set", "levls=[1]"], "did you mean 'levels'?"),
        (["verify", "arithmetic", "nowhere.jsonl", "--seconds", "0"], "--seconds = 0.0: must be above 0"),
        (["verify", "arithmetic", "nowhere.jsonl", "--process", "magic"], "expected one of arithmetic"),
        (["verify", "arithmetic", os.devnull], "is a device, not a regular file"),
        (["validate", BY_ID], "has neither gold_completion(problem) nor demonstrate(problem)"),
    ],
)
def test_bad_input_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
