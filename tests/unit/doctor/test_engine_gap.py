"""The gap between engine and trainer against what it was when the stage began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from groupwise.doctor.checks import examine
from groupwise.doctor.stage_history import read_stages
from groupwise.runs.reader import Run


@pytest.mark.parametrize(("start", "end", "is_named"), [(1e-6, 0.02, True), (0.005, 0.03, False), (1e-6, 1e-3, False)])
def test_an_engine_gap_that_grows_is_named(start: float, end: float, is_named: bool, make: Any, tmp_path: Path) -> None:
    def gap(number: int) -> dict[str, float]:
        return {"engine/logprob_gap_mean": start if number < 20 else end}

    findings = examine(read_stages(Run(make.run(tmp_path / "run", change=gap))))
    assert [finding.check for finding in findings] == ["engine_gap"] * is_named
