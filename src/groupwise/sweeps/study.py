"""Reads a sweep's folder: what was planned (sweep.json), and what its run directories contain so far.

Contract: only reads, at any time; a sweep that is half done is a study with gaps. A run that was not started, is not
finished, failed or cannot be read is reported with its reason and never stops the reading. Nothing here computes a
score; see `arm_scores`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.base.harmless import visible
from groupwise.runs import layout
from groupwise.runs.files import RunReadError, read_records
from groupwise.runs.reader import Run, last_turn
from groupwise.sweeps.sweep_records import Arm, Knob, RunStatus, SeedRun, Sweep, read_sweep
from groupwise.types import EvalRecord

FAILURES = "failures.jsonl"
MAX_REASON_CHARS = 4000
"""Characters kept of a failure's last lines: those at the end, which name the error."""


@dataclass(frozen=True, slots=True)
class Study(Sweep):
    """A sweep with its runs. Labels are unique in their knob and safe to print; ordered knobs are sorted by value."""

    path: Path

    @property
    def runs(self) -> tuple[tuple[Arm, SeedRun], ...]:
        return tuple((arm, run) for arm in self.arms for run in arm.runs)

    @property
    def gaps(self) -> tuple[tuple[Arm, SeedRun], ...]:
        """The runs that are not finished."""
        return tuple((arm, run) for arm, run in self.runs if not run.is_finished)


def gap_words(run: SeedRun) -> str:
    done = run.steps[-1].step if run.steps else 0
    progress = f"{done} of {run.num_planned_steps} steps" if run.num_planned_steps else f"{done} steps"
    if run.status is RunStatus.MISSING:
        return "not started"
    if run.status is RunStatus.UNFINISHED:
        return f"unfinished, {progress}"
    last_line = next((line for line in reversed(run.reason.splitlines()) if line.strip()), "no reason was recorded")
    words = f"failed after {progress}" if run.status is RunStatus.FAILED else "cannot be read"
    return f"{words} ({last_line.strip()})"


def run_dir_of(sweep_dir: Path, arm: Arm, seed: int) -> Path:
    return sweep_dir / layout.SWEEP_RUNS / arm.name / f"seed-{seed}"


def read_study(sweep_dir: Path) -> Study:
    sweep_dir = Path(sweep_dir)
    sweep = read_sweep(sweep_dir)
    # The latest failure of each run counts.
    failures = dict(read_records(sweep_dir / FAILURES, _failure))
    runs = {
        arm.name: tuple(
            _read_run(run_dir_of(sweep_dir, arm, seed), seed, failures.get((arm.name, seed))) for seed in sweep.seeds
        )
        for arm in sweep.arms
    }
    return Study(
        name=visible(sweep.name or sweep_dir.resolve().name),
        recipe_path=sweep.recipe_path,
        recipe_text=sweep.recipe_text,
        seeds=sweep.seeds,
        knobs=tuple(_for_people(knob, runs) for knob in sweep.knobs if knob.arms),
        arms=tuple(replace(arm, runs=runs[arm.name]) for arm in sweep.arms),
        path=sweep_dir,
    )


def _for_people(knob: Knob, runs: Mapping[str, tuple[SeedRun, ...]]) -> Knob:
    labels = [visible(arm.label) for arm in knob.arms]
    unique = [
        label if labels.count(label) == 1 else f"{label} ({arm.name})"
        for arm, label in zip(knob.arms, labels, strict=True)
    ]
    arms = [replace(arm, label=label, runs=runs[arm.name]) for arm, label in zip(knob.arms, unique, strict=True)]
    if knob.is_ordered:
        arms.sort(key=lambda arm: float(arm.value))
    return replace(knob, name=visible(knob.title or knob.name), arms=tuple(arms))


def _failure(entry: Mapping[str, Any]) -> tuple[tuple[str, int], str]:
    """Return arm and seed, and the reason."""
    lines = entry.get("last_lines") or ""
    text = lines if isinstance(lines, str) else "\n".join(map(str, lines))
    code = entry.get("exit_code")
    reason = text.strip() or ("" if code is None else f"exit code {code}")
    return (str(entry["arm"]), int(entry["seed"])), reason[-MAX_REASON_CHARS:]


def _read_run(path: Path, seed: int, failure: str | None) -> SeedRun:
    if not (path / layout.RECIPE).is_file() and not (path / layout.METRICS).is_file():
        if failure is None:
            return SeedRun(seed, path, RunStatus.MISSING)
        return SeedRun(seed, path, RunStatus.FAILED, failure)
    run = Run(path)
    try:
        steps = tuple(run.steps())
        evals = tuple(record for record in run.evals() if math.isfinite(record.pass_at_1))
        turn = last_turn(run.events())
        num_planned = sum(int(stage.get("steps", 0)) for stage in run.recipe_if_any.get("stages", []))
        is_finished = turn.get("kind") == "finished"
        # An unfinished run may be writing its completions right now.
        pass_rates = _pass_rates(run, evals[-1]) if is_finished and evals else {}
    except (RunReadError, OSError, TypeError, ValueError, AttributeError) as error:
        return SeedRun(seed, path, RunStatus.DAMAGED, str(error))
    if is_finished:
        return SeedRun(seed, path, RunStatus.FINISHED, "", num_planned, steps, evals, pass_rates)
    if failure is None and turn.get("kind") in ("failed", "rank_lost"):  # the sweep died before it recorded the failure
        failure = str(turn.get("reason") or "")
    status = RunStatus.UNFINISHED if failure is None else RunStatus.FAILED
    return SeedRun(seed, path, status, failure or "", num_planned, steps, evals)


def _pass_rates(run: Run, record: EvalRecord) -> dict[str, float]:
    groups = run.eval_rollouts(record.step)
    judged = {scored.group.prompt.problem.id: scored.pass_rate for scored in groups}
    known = {problem_id: rate for problem_id, rate in judged.items() if rate is not None}
    return known if len(known) == record.num_problems else {}
