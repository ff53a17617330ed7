"""Comparison of a plan with the output of `groupwise bench step RECIPE --json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.base.text_layout import aligned
from groupwise.config import ConfigError
from groupwise.planner.make_plan import StagePlan
from groupwise.runs.files import plain

MEMORY_TOLERANCE = 0.10
TIME_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True)
class PlanCheck:
    name: str
    planned: float
    measured: float
    tolerance: float | None
    """None: shown, but not judged."""

    @property
    def difference(self) -> float:
        return self.planned / self.measured - 1

    @property
    def is_within(self) -> bool:
        return self.tolerance is None or abs(self.difference) <= self.tolerance

    @property
    def cells(self) -> tuple[str, ...]:
        """The row under HEADING."""
        numbers = f"{self.planned:.3f}", f"{self.measured:.3f}", f"{self.difference:+.0%}"
        within = "within" if self.is_within else "NOT within"
        return (self.name, *numbers, "" if self.tolerance is None else f"{within} {self.tolerance:.0%}")

    def to_json(self) -> dict[str, Any]:
        return {**plain(self), "difference": self.difference, "is_within": self.is_within}


HEADING = ("", "planned", "measured", "", "")


def comparison_table(rows: Sequence[PlanCheck]) -> str:
    return "\n".join(aligned([HEADING, *(row.cells for row in rows)], has_notes=True))


def read_measured(path: Path) -> dict[str, Any]:
    """Read the last line of a file that `bench step --json` wrote."""
    try:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        measured = json.loads(lines[-1] if lines else "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--against {path}: cannot be read: {error}; create it with `groupwise bench step RECIPE --json`"
        ) from None
    missing = [
        key for key in ("stage", "device", "step_s", "phases_s", "mean_tokens", "peak_bytes") if key not in measured
    ]
    if missing:
        raise ConfigError(f"--against {path}: has no {missing[0]}; create it with `groupwise bench step RECIPE --json`")
    found: dict[str, Any] = measured
    return found


def compare(stage: StagePlan, measured: dict[str, Any]) -> list[PlanCheck]:
    rows = [PlanCheck("step, s", stage.step_s, measured["step_s"], TIME_TOLERANCE)]
    rows += [
        PlanCheck(f"  {phase}", stage.phases_s[phase], seconds, None)
        for phase, seconds in measured["phases_s"].items()
        if stage.phases_s.get(phase) and seconds > 0
    ]
    if measured["peak_bytes"]:
        rows.append(PlanCheck("peak, GiB", stage.usual.peak / 2**30, measured["peak_bytes"] / 2**30, MEMORY_TOLERANCE))
    return rows
