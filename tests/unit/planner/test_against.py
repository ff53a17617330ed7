"""A plan beside what `bench step --json` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import ConfigError
from groupwise.planner.make_plan import make_plan
from groupwise.planner.measure import compare, comparison_table, read_measured
from tests.unit.planner.works import H200, SMOLLM, small_recipe

(STAGE,) = make_plan(small_recipe(), SMOLLM, H200, prompt_tokens=100).stages


def measured(**changed: Any) -> dict[str, Any]:
    phases = {"sample": STAGE.phases_s["sample"], "score": 0.01, "logprobs": 0.0, "update": 0.1, "rest": 0.05}
    found = {"stage": "grpo", "device": "NVIDIA H200", "step_s": STAGE.step_s, "phases_s": phases, "mean_tokens": 128.0}
    return found | {"peak_bytes": STAGE.usual.peak} | changed


def test_what_agrees_is_within() -> None:
    rows = compare(STAGE, measured())
    assert [row.name.strip() for row in rows] == ["step, s", "sample", "update", "rest", "peak, GiB"]
    assert all(row.is_within for row in rows)
    assert rows[0].difference == 0


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"step_s": STAGE.step_s / 1.24}, []),
        ({"step_s": STAGE.step_s / 1.26}, ["step, s"]),
        ({"peak_bytes": STAGE.usual.peak / 1.11}, ["peak, GiB"]),
        ({"peak_bytes": STAGE.usual.peak / 0.91}, []),
        ({"peak_bytes": None}, []),
    ],
)
def test_what_differs_by_more_than_it_may_is_told(changed: dict[str, Any], wrong: list[str]) -> None:
    rows = compare(STAGE, measured(**changed))
    assert [row.name for row in rows if not row.is_within] == wrong
    lines = comparison_table(rows).splitlines()[1:]
    assert [row.name for row, line in zip(rows, lines, strict=True) if "NOT within" in line] == wrong


def test_the_last_line_of_a_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    path.write_text("a warning\n" + json.dumps(measured()) + "\n")
    assert read_measured(path)["mean_tokens"] == 128.0


@pytest.mark.parametrize(
    ("text", "reason"), [("", "cannot be read"), ("nonsense", "cannot be read"), ('{"stage": "grpo"}', "has no device")]
)
def test_another_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "step.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"{reason}.*bench step RECIPE --json"):
        read_measured(path)
