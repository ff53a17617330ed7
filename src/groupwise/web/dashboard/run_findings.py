"""The doctor's findings and vital signs of a run, cached until the run's files change.

Contract: a run is examined again when its files have changed, but at most every `EVERY_S` seconds. The answer for a run
that cannot be examined is the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from groupwise.doctor import StageHistory, examine, read_charts
from groupwise.doctor.wording import ZERO_LOSS, clean_bill, vital_signs, with_words
from groupwise.runs import Run, RunReadError
from groupwise.web.dashboard.state import signature

EVERY_S = 2.0


class Findings:
    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._lock = threading.Lock()
        self._answer: dict[str, Any] | None = None
        self._signature: object = None
        self._examined_at = 0.0

    def answer(self) -> dict[str, Any]:
        # One examination at a time: requests during it get its answer.
        with self._lock:
            if self._answer is not None and self._clock() - self._examined_at < EVERY_S:
                return self._answer
            now = signature(self._run_dir)
            if self._answer is None or now != self._signature:
                self._answer, self._signature = examine_run(self._run_dir), now
            self._examined_at = self._clock()
            return self._answer


def examine_run(run_dir: Path) -> dict[str, Any]:
    try:
        charts = read_charts(Run(run_dir))
        findings = examine(charts)
    except RunReadError as error:
        return {"as_of_step": 0, "findings": [], "clean_bill": "", "stages": [], "error": str(error)}
    return {
        "as_of_step": max((chart.steps[-1].step for chart in charts), default=0),
        "findings": [with_words(finding) for finding in findings],
        "clean_bill": clean_bill(charts) if charts and not findings else "",
        "stages": [_stage(chart) for chart in charts],
        "error": None,
    }


def _stage(chart: StageHistory) -> dict[str, Any]:
    signs = vital_signs(chart)
    losses = [abs(value) <= ZERO_LOSS for _, value in chart.series("policy/loss")]
    return {
        "name": chart.stage,
        "num_steps": len(chart.steps),
        "first_step": chart.steps[0].step,
        "last_step": chart.steps[-1].step,
        "vital_signs": signs,
        "is_loss_zero": sum(losses) * 2 > len(losses) if signs else None,
        "has_gradient": chart.num_dead * 2 <= len(chart.steps),
    }
