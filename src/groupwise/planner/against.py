"""A plan against what `groupwise bench step RECIPE --json` measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.config import ConfigError
from groupwise.planner.make_plan import StagePlan

MEMORY_TOLERANCE = 0.10
TIME_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True)
class PlanCheck:
    name: str
    planned: float
    measured: float
    tolerance: float | None
    """None: shown, and not judged."""

    @property
    def difference(self) -> float:
        return self.planned / self.measured - 1

    @property
    def is_within(self) -> bool:
        return self.tolerance is None or abs(self.difference) <= self.tolerance

    def __str__(self) -> str:
        judged = (
            "" if self.tolerance is None else f"   {'within' if self.is_within else 'NOT within'} {self.tolerance:.0%}"
        )
        return f"{self.name:<16}{self.planned:>10.3f}{self.measured:>10.3f}{self.difference:>+9.0%}{judged}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "planned": self.planned,
            "measured": self.measured,
            "difference": self.difference,
            "tolerance": self.tolerance,
            "is_within": self.is_within,
        }


HEADING = f"{'':<16}{'planned':>10}{'measured':>10}"


def read_measured(path: Path) -> dict[str, Any]:
    """The last line of a file that `bench step --json` wrote."""
    try:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        measured = json.loads(lines[-1] if lines else "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--against {path}: cannot be read: {error}; write it with `groupwise bench step RECIPE --json`"
        ) from None
    missing = [
        key for key in ("stage", "device", "step_s", "phases_s", "mean_tokens", "peak_bytes") if key not in measured
    ]
    if missing:
        raise ConfigError(f"--against {path}: has no {missing[0]}; write it with `groupwise bench step RECIPE --json`")
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
