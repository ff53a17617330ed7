"""Result folders: what is written is read back, and what is damaged is named."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.runs.files import RunReadError, repair_tail
from groupwise.runs.results import (
    COMPLETIONS,
    RESULT,
    Estimate,
    Result,
    append_group,
    data_fingerprint,
    is_result,
    read_groups,
    read_result,
    say_estimate,
    write_result,
)
from groupwise.types import Message, Problem
from tests.factories import RIGHT, WRONG, make_scored

DONE = Result(
    model={"path": "./model", "checkpoint": None, "fingerprint": "abc"},
    task={"name": "gsm8k", "options": {"held_out": "test.jsonl", "levels": [1, 2]}},
    data={"split": "held_out", "fingerprint": "def", "count": 2},
    verifier="gsm8k/2",
    sampling={"n": 1, "temperature": 0.0, "stop_strings": []},
    recipe=None,
    scores={"pass@1": Estimate(0.5, 0.1, 0.9, 2, "wilson", 1)},
    by={"level": {"1": {"pass@1": Estimate(1.0, 0.2, 1.0, 1, "wilson")}}},
    contamination={"exact": 0, "near": 1, "overlaps": []},
    cost={"seconds": 1.5, "tokens": 10},
    versions={"python": "3.11"},
    is_finished=True,
)


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "result"
    assert not is_result(folder)
    write_result(folder, DONE)
    assert is_result(folder)
    assert read_result(folder) == DONE
    assert json.loads((folder / RESULT).read_text())["format"] == 1


def test_what_could_not_be_judged_is_null_in_the_file_and_nan_when_read(tmp_path: Path) -> None:
    write_result(tmp_path, replace(DONE, scores={"pass@1": Estimate(math.nan, 0.0, 1.0, 0, "wilson", 2)}, by={}))
    assert json.loads((tmp_path / RESULT).read_text())["scores"]["pass@1"]["value"] is None
    found = read_result(tmp_path).scores["pass@1"]
    assert math.isnan(found.value)
    assert (found.low, found.high, found.left_out) == (0.0, 1.0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ('{"format": 99}', "format 99"),
        ("[1]", "format"),
        ('{"format": 1}', "expected an object with 'model'"),
    ],
)
def test_a_damaged_result_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / RESULT).write_text(text)
    with pytest.raises(RunReadError, match=message) as error:
        read_result(tmp_path)
    assert RESULT in str(error.value)


def test_no_result_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunReadError, match="groupwise eval"):
        read_result(tmp_path)
    assert read_groups(tmp_path) == []


def test_groups_survive_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    first, second = make_scored("a", [("x", RIGHT)]), make_scored("b", [("y\x00\u2028", WRONG)])
    append_group(tmp_path, first)
    whole = (tmp_path / COMPLETIONS).read_bytes()
    append_group(tmp_path, second)
    both = (tmp_path / COMPLETIONS).read_bytes()
    (tmp_path / COMPLETIONS).write_bytes(both[: len(whole) + 30])
    assert read_groups(tmp_path) == [first]
    repair_tail(tmp_path / COMPLETIONS)
    append_group(tmp_path, second)
    assert read_groups(tmp_path) == [first, second]


def test_the_fingerprint_of_data_depends_on_ids_messages_answers_and_order() -> None:
    def one(key: str = "a", text: str = "q", answer: str = "1") -> Problem:
        return Problem(key, (Message("user", text),), answer)

    base = [one(), one("b")]
    others = [[one("b"), one()], [one("c"), one("b")], [one(text="r"), one("b")], [one(answer="2"), one("b")], [one()]]
    marks = {data_fingerprint(problems) for problems in [base, *others]}
    assert len(marks) == 6
    assert data_fingerprint(base) == data_fingerprint([one(), one("b")])


def test_reading_results_needs_no_torch() -> None:
    code = (
        "import sys\nimport groupwise.runs.results, groupwise.evals.scores, groupwise.evals.contamination, "
        "groupwise.evals.compare\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pass@1", (0.2669, 0.2437, 0.2914), ("26.7 %", "24.4 to 29.1")),
        ("truncated_share", (0.0, 0.0, 0.0029), ("0.0 %", "0.0 to 0.3")),
        ("mean_tokens", (290.13, 285.4, 294.77), ("290.13", "285.40 to 294.77")),
    ],
)
def test_shares_are_said_in_percent(name: str, value: tuple[float, float, float], said: tuple[str, str]) -> None:
    assert say_estimate(name, Estimate(*value, 100, "wilson")) == said
