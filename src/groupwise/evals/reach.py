"""Time to accuracy: seconds of training until held-out pass@1 first reached a score.

Contract: only run directories are read. Runs whose recipes differ only in the seed form one row, with Student's
interval over them. Seconds are the sum of the steps' times up to that evaluation. Evaluating, saving and loading are
excluded and reported separately, because their frequency is a free choice.

The first evaluation above a score is more often lucky than unlucky: with few held-out problems, scores are reached a
little early. The table shows the number of problems.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.base.json_values import plain
from groupwise.base.stats import mean, student_interval
from groupwise.runs import Run, RunReadError, layout
from groupwise.runs.reader import by_experiment, read_each
from groupwise.types import EvalRecord, StepRecord


@dataclass(frozen=True, slots=True)
class Reached:
    """One run and one score."""

    run: str
    step: int | None
    """None if the score was not reached."""
    train_s: float
    """Seconds until then; if it was not reached, of the whole run."""
    aside_s: float
    """Additional seconds for evaluating and saving."""
    tokens: float
    """Tokens sampled until then."""


@dataclass(frozen=True, slots=True)
class ReachRow:
    label: str
    device: str
    num_problems: int
    """Problems of the held-out evaluation."""
    score: float
    runs: tuple[Reached, ...]

    @property
    def num_reached(self) -> int:
        return sum(run.step is not None for run in self.runs)

    @property
    def seconds(self) -> tuple[float, float, float] | None:
        """(mean, low, high) over the runs if all reached the score. A single run has no interval."""
        if self.num_reached < len(self.runs):
            return None
        values = [run.train_s for run in self.runs]
        low, high = student_interval(values) if len(values) > 1 else (math.nan, math.nan)
        return mean(values), max(low, 0.0), high

    def to_json(self) -> dict[str, Any]:
        return dict(plain(self)) | {"num_reached": self.num_reached, "seconds": plain(self.seconds)}


@dataclass(frozen=True, slots=True)
class _TrainedRun:
    path: Path
    recipe: Mapping[str, Any]
    device: str
    steps: Sequence[StepRecord]
    evals: Sequence[EvalRecord]


def time_to_scores(paths: Sequence[Path], scores: Sequence[float]) -> tuple[list[ReachRow], list[str]]:
    """Return a row for each recipe and score, in the given order, and the errors of runs that cannot be read."""
    found, errors = read_each((run_dir for given in paths for run_dir in _runs_of(given)), _read_run)
    rows = by_experiment(found)
    names = [str(runs[0].recipe.get("name", "?")) for runs in rows]
    labels = [
        f"{name} ({_place(runs)})" if names.count(name) > 1 else name for name, runs in zip(names, rows, strict=True)
    ]
    shown = [_row(label, runs, score) for label, runs in zip(labels, rows, strict=True) for score in sorted(scores)]
    return shown, errors


def _read_run(path: Path) -> _TrainedRun:
    run = Run(path)
    device = run.info.get("machine", {}).get("device_name", "unknown")
    return _TrainedRun(run.path, run.recipe, device, run.steps(), run.evals())


def _runs_of(path: Path) -> list[Path]:
    """Return all runs of a sweep, or the run itself."""
    if not os.path.isfile(path / layout.SWEEP):
        return [path]
    return sorted(recipe.parent for recipe in path.glob(f"{layout.SWEEP_RUNS}/*/*/{layout.RECIPE}"))


def _place(runs: Sequence[_TrainedRun]) -> str:
    """Return the folder that tells the runs from those of another recipe of the same name."""
    folders = {run.path.resolve().parent for run in runs}
    return folders.pop().name if len(runs) > 1 and len(folders) == 1 else runs[0].path.resolve().name


def _row(label: str, runs: Sequence[_TrainedRun], score: float) -> ReachRow:
    devices = {run.device for run in runs}
    if len(devices) > 1:
        raise RunReadError(
            f"{label}: its runs are from {' and '.join(sorted(devices))}, whose seconds are not comparable"
        )
    counts = {record.num_problems for run in runs for record in run.evals}
    return ReachRow(label, devices.pop(), max(counts, default=0), score, tuple(_reached(run, score) for run in runs))


def _reached(run: _TrainedRun, score: float) -> Reached:
    found = next((record.step for record in run.evals if record.pass_at_1 >= score), None)
    steps = [record for record in run.steps if found is None or record.step <= found]

    def total(*names: str) -> float:
        values = (record.metrics.get(name, 0.0) for record in steps for name in names)
        return math.fsum(value for value in values if math.isfinite(value))

    tokens = steps[-1].metrics.get("tokens/total", 0.0) if steps else 0.0
    aside = total("time/eval_s", "time/checkpoint_s")
    return Reached(str(run.path), found, total("time/step_s"), aside, tokens)
