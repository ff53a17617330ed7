"""The state of a run, from its files: its progress, whether its trainer is alive, and what the doctor finds.

Contract: only the ends of files are read, so that a folder of many long runs is quick to list; a `RunSummary` is cached
until a file of the run changes. What cannot be read is in the run's entry `errors`. A run whose lock is held by a
living process is running, whatever its other files say; a process on another host cannot be checked and counts as
living.
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

from groupwise.base.json_values import dotted_items, plain
from groupwise.doctor import StageHistory, examine, read_stages
from groupwise.doctor.wording import ZERO_LOSS, clean_bill, vital_signs, with_words
from groupwise.runs import Run, RunReadError, last_turn, layout, read_holder
from groupwise.runs.records import eval_from_json, event_from_json, step_from_json
from groupwise.types import EvalRecord, StepRecord
from groupwise.web.dashboard.recipes import stage_tables
from groupwise.web.dashboard.tail import Identity, identity_of, last_records

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
    """Read a run as far as it can be read; what cannot be is in the entry `errors`."""
    errors: list[str] = []

    def read(get: Callable[[], T]) -> T | None:
        try:
            return get()
        except RunReadError as error:
            errors.append(str(error))
            return None

    def read_last(name: str, make: Callable[[Mapping[str, Any]], T], max_bytes: int) -> tuple[T, ...]:
        records, is_damaged = read(lambda: last_records(run_dir / name, make, max_bytes)) or ((), False)
        if is_damaged:
            errors.append(f"{run_dir / name} has damaged lines, which were left out")
        return records

    recipe = read(lambda: Run(run_dir).recipe_if_any) or {}
    info = read(lambda: Run(run_dir).info_if_any) or {}
    settings = dict(dotted_items(recipe))
    stages: list[dict[str, Any]] = [
        {"name": name, "algorithm": table.get("algorithm", ""), "steps": table.get("steps", 0)}
        for name, table in stage_tables(recipe).items()
    ]
    steps = read_last(layout.METRICS, step_from_json, METRICS_TAIL_BYTES)
    rewards = [value for record in steps if math.isfinite(value := record.metrics.get("reward/mean", math.nan))]
    evals = read_last(layout.EVALS, eval_from_json, EVALS_TAIL_BYTES)
    known = [record for record in evals if math.isfinite(record.pass_at_1)]
    events = read_last(layout.EVENTS, event_from_json, EVENTS_TAIL_BYTES)
    shown = {
        "task": settings.get("task.name"),
        "model": settings.get("model.path"),
        "fingerprint": str(info["fingerprint"]) if "fingerprint" in info else None,
        "stages": stages,
        "planned_steps": sum(stage["steps"] for stage in stages) or None,
        "step": steps[-1].step if steps else 0,
        "stage": steps[-1].stage if steps else None,
        "reward": rewards[-1] if rewards else None,
        "step_s": _usual_seconds(steps),
        "best": _eval(max(known, key=lambda record: record.pass_at_1, default=None)),
        "last_eval": _eval(evals[-1] if evals else None),
        "errors": errors,
    }
    return RunSummary(shown, _times(steps[-1]) if steps else {}, events)


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


def _times(record: StepRecord) -> dict[str, float]:
    """Return the seconds of each phase of a step."""
    return {
        name.removeprefix("time/").removesuffix("_s"): value
        for name, value in record.metrics.items()
        if name.startswith("time/") and name.endswith("_s") and math.isfinite(value)
    }


def _usual_seconds(steps: Sequence[StepRecord]) -> float | None:
    """Return the mean time from step to step, with evaluations and checkpoints between them."""
    sums = []
    for times in map(_times, steps[-RECENT_STEPS:]):
        if "step" in times:
            sums.append(times["step"] + times.get("eval", 0.0) + times.get("checkpoint", 0.0))
    return statistics.fmean(sums) if sums else None


def _eval(record: EvalRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {name: plain(getattr(record, name)) for name in ("step", "pass_at_1", "low", "high")}


def _seconds_since(written: Identity) -> float:
    return round(max(0.0, time.time() - written.modified_ns / 1e9), 3)
