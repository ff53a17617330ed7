"""The state of a run, from its files: its progress, whether its trainer is alive, and what the doctor finds.

Contract: only the ends of files are read, so that a folder of many long runs is quick to list; a `RunSummary` is cached
until a file of the run changes. A run whose lock is held by a living process is running, whatever its other files say;
a process on another host cannot be checked and counts as living.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from groupwise.base.json_values import dotted_items
from groupwise.doctor import StageHistory, examine, read_stages
from groupwise.doctor.wording import ZERO_LOSS, clean_bill, vital_signs, with_words
from groupwise.runs import Run, RunReadError, last_turn, layout, read_holder
from groupwise.web.dashboard.recipes import read_info, read_recipe, stage_tables
from groupwise.web.dashboard.tail import Identity, identity_of, last_lines

T = TypeVar("T")
State = Literal["running", "finished", "stopped", "failed"]

METRICS_TAIL_BYTES = 128 * 2**10
EVENTS_TAIL_BYTES = 128 * 2**10
EVALS_TAIL_BYTES = 2**20
RECENT_STEPS = 20
EXAMINED_EVERY_S = 2.0
WATCHED = (layout.RECIPE, layout.INFO, layout.LOCK, layout.METRICS, layout.EVALS, layout.EVENTS)
_WRITTEN = (*WATCHED, layout.ROLLOUTS, layout.TOKENS, layout.EVAL_ROLLOUTS, layout.CHECKPOINTS)

_ENDED_SILENTLY = "its process ended without a reason: it was killed, or its terminal shows the error"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The part of a run's state that changes only with its files."""

    shown: Mapping[str, Any]
    """Entries of /api/runs."""
    seconds: Mapping[str, float]
    """Duration of each phase of the newest step."""
    last_events: tuple[Mapping[str, Any], ...]


def read_summary(run_dir: Path) -> RunSummary:
    recipe, info = read_recipe(run_dir), read_info(run_dir)
    settings = dict(dotted_items(recipe))
    stages: list[dict[str, Any]] = [
        {"name": name, "algorithm": str(table.get("algorithm", "")), "steps": _whole(table.get("steps"))}
        for name, table in stage_tables(recipe).items()
    ]
    lines = [line for line in last_lines(run_dir / layout.METRICS, METRICS_TAIL_BYTES) if _is_step(line)]
    newest: Mapping[str, Any] = lines[-1] if lines else {"step": 0, "stage": None, "metrics": {}}
    rewards = [value for line in lines if (value := _number(line["metrics"].get("reward/mean"))) is not None]
    evals = [line for line in last_lines(run_dir / layout.EVALS, EVALS_TAIL_BYTES) if _is_eval(line)]
    known = [line for line in evals if line["pass_at_1"] is not None]
    shown = {
        "task": settings.get("task.name"),
        "model": settings.get("model.path"),
        "fingerprint": str(info["fingerprint"]) if "fingerprint" in info else None,
        "stages": stages,
        "planned_steps": sum(stage["steps"] for stage in stages) or None,
        "step": newest["step"],
        "stage": newest["stage"],
        "reward": rewards[-1] if rewards else None,
        "step_s": _usual_seconds(lines),
        "best": _eval(max(known, key=lambda line: float(line["pass_at_1"]), default=None)),
        "last_eval": _eval(evals[-1] if evals else None),
    }
    return RunSummary(shown, _times(newest["metrics"]), tuple(last_lines(run_dir / layout.EVENTS, EVENTS_TAIL_BYTES)))


def state_of(run_dir: Path, summary: RunSummary) -> tuple[State, str]:
    """Return the state and its reason; "" if there is nothing to say."""
    holder = read_holder(run_dir)
    if holder is not None and holder.is_alive:
        return "running", ""
    last = last_turn(summary.last_events)
    kind = last.get("kind")
    if kind == "finished":
        return "finished", ""
    if kind == "stopped":
        return "stopped", "it was asked to stop and saved its state; `groupwise train --resume` resumes it"
    if kind in ("rank_lost", "failed"):
        return "failed", str(last.get("reason") or kind)
    if kind in ("started", "resumed") or summary.last_events or holder is not None:
        return "failed", _ENDED_SILENTLY
    if (run_dir / layout.LOCK).exists() and summary.shown["step"] == 0:
        return "failed", "it ended before its first step"
    return "stopped", "it has no events, so it is unknown how it ended"


def describe(run_dir: Path, summary: RunSummary) -> dict[str, Any]:
    """Return a run's entry for /api/runs, without id, name and index."""
    state, reason = state_of(run_dir, summary)
    step, planned, step_s = (summary.shown[name] for name in ("step", "planned_steps", "step_s"))
    metrics_file = identity_of(run_dir / layout.METRICS)
    written = [identity for name in _WRITTEN if (identity := identity_of(run_dir / name)) is not None]
    phase = None
    if step and metrics_file is not None:
        phase = {"step": step, "ago_s": _seconds_since(metrics_file), "seconds": dict(summary.seconds)}
    is_estimated = state == "running" and planned is not None and step_s is not None
    return {
        **summary.shown,
        "state": state,
        "reason": reason,
        "last_write_s": min(map(_seconds_since, written), default=None),
        "phase": phase,
        "left_s": max(0, planned - step) * step_s if is_estimated else None,
    }


class CachedReading(Generic[T]):
    """The result of `read` for a run directory. It is read again when the run's files have changed, but at most every
    `every_s` seconds."""

    def __init__(
        self,
        run_dir: Path,
        read: Callable[[Path], T],
        every_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._read, self._every_s, self._clock = run_dir, read, every_s, clock
        self._lock = threading.Lock()
        self._looked_at = -math.inf
        self._cached: tuple[object, T] | None = None
        """The state of the files that were read, and the result."""

    def get(self) -> T:
        # One reading at a time: requests during it get its result.
        with self._lock:
            if self._cached is None or self._clock() - self._looked_at >= self._every_s:
                files = tuple(identity_of(self._run_dir / name) for name in WATCHED)
                if self._cached is None or self._cached[0] != files:
                    self._cached = files, self._read(self._run_dir)
                self._looked_at = self._clock()
            return self._cached[1]


def examine_run(run_dir: Path) -> dict[str, Any]:
    """Return the doctor's findings and vital signs; for a run that cannot be examined, the reason."""
    try:
        stages = read_stages(Run(run_dir))
        findings = examine(stages)
    except RunReadError as error:
        return {"as_of_step": 0, "findings": [], "clean_bill": "", "stages": [], "error": str(error)}
    return {
        "as_of_step": max((stage.steps[-1].step for stage in stages), default=0),
        "findings": [with_words(finding) for finding in findings],
        "clean_bill": clean_bill(stages) if stages and not findings else "",
        "stages": [_stage(stage) for stage in stages],
        "error": None,
    }


def _stage(stage: StageHistory) -> dict[str, Any]:
    signs = vital_signs(stage)
    losses = [abs(value) <= ZERO_LOSS for _, value in stage.series("policy/loss")]
    return {
        "name": stage.name,
        "num_steps": len(stage.steps),
        "first_step": stage.steps[0].step,
        "last_step": stage.steps[-1].step,
        "vital_signs": signs,
        "is_loss_zero": sum(losses) * 2 > len(losses) if signs else None,
        "has_gradient": stage.num_dead * 2 <= len(stage.steps),
    }


def _is_step(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("step"), int) and "stage" in line and isinstance(line.get("metrics"), Mapping)


def _is_eval(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("step"), int) and (
        line.get("pass_at_1", "") is None or _number(line.get("pass_at_1")) is not None
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _times(metrics: Mapping[str, Any]) -> dict[str, float]:
    named = {
        name: _number(value) for name, value in metrics.items() if name.startswith("time/") and name.endswith("_s")
    }
    return {name.removeprefix("time/").removesuffix("_s"): value for name, value in named.items() if value is not None}


def _usual_seconds(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean time from step to step, with evaluations and checkpoints between them."""
    sums = []
    for line in lines[-RECENT_STEPS:]:
        times = _times(line["metrics"])
        if "step" in times:
            sums.append(times["step"] + times.get("eval", 0.0) + times.get("checkpoint", 0.0))
    return statistics.fmean(sums) if sums else None


def _eval(line: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if line is None:
        return None
    return {name: line.get(name) for name in ("step", "pass_at_1", "low", "high")}


def _seconds_since(written: Identity) -> float:
    return round(max(0.0, time.time() - written.modified_ns / 1e9), 3)
