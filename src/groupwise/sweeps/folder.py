"""The folder of a sweep: sweep.json, the base recipe, where each run lies, how far it is, and what it contains so far.

Contract: `prepare` writes sweep.json and recipe.toml, or refuses with a `ConfigError` that names what changed since
they were written: existing runs must stay comparable with new ones. New arms and new seeds may join; arms that are gone
from the sweep file leave sweep.json, and their runs stay on disk. One writer at a time (the caller holds `RunLock`).

`read_study` needs no lock and reads at any time; a sweep that is half done is a study with gaps. A run that was not
started, is not finished, failed or cannot be read is reported with its reason and never stops the reading. Nothing here
computes a score; see `arm_scores`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from groupwise.base.harmless import printable, visible
from groupwise.base.json_values import dotted_items, finite_or_none
from groupwise.config import ConfigError, Recipe, fingerprint, make_recipe, to_table
from groupwise.runs import layout
from groupwise.runs.files import RunReadError, append_line, encode_line, parse_object, read_end, read_records, writing
from groupwise.runs.reader import Run, last_turn
from groupwise.runs.typed import typed
from groupwise.sweeps.sweep_records import BASE_ARM, Arm, Knob, RunStatus, SeedRun, Sweep, read_sweep, to_json
from groupwise.types import EvalRecord
from groupwise.web.bundle import save_text

RECIPE = "recipe.toml"
FAILURES = "failures.jsonl"
MAX_REASON_CHARS = 4000
"""Characters kept of a failure's last lines: those at the end, which name the error."""
NUM_LAST_LINES = 20
_END_BYTES = 64 << 10
_MAX_NAMED_CHANGES = 4

State = Literal["new", "begun", "finished"]


@dataclass(frozen=True, slots=True)
class SweepJob:
    """One arm with one seed: a run."""

    arm: Arm
    seed: int
    run_dir: Path
    total_steps: int

    @property
    def name(self) -> str:
        return f"{self.arm.name}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """The log lies beside the run directory, which only the trainer writes."""
        return self.run_dir.with_name(f"{self.run_dir.name}.log")

    @property
    def state(self) -> State:
        if not (self.run_dir / layout.RECIPE).exists():
            return "new"
        try:
            return "finished" if Run(self.run_dir).status == "finished" else "begun"
        except RunReadError:
            return "begun"  # resuming it reports the problem as a failure of this run only

    @property
    def step(self) -> int:
        """The last logged step. Reads only the end of the file, because it is polled."""
        with contextlib.suppress(OSError):
            lines = read_end(self.run_dir / layout.METRICS, _END_BYTES).split(b"\n")
            steps = (table.get("step") for line in reversed(lines[:-1]) if (table := parse_object(line)))
            return next((step for step in steps if isinstance(step, int)), 0)
        return 0

    @property
    def score(self) -> float | None:
        """Held-out pass@1 at the last evaluation."""
        try:
            evals = Run(self.run_dir).evals()
        except RunReadError:
            return None
        return finite_or_none(evals[-1].pass_at_1) if evals else None

    def last_lines(self) -> list[str]:
        """Return the last lines that the run printed."""
        text = read_end(self.log, _END_BYTES).decode("utf-8", "replace")
        lines = [printable(line).rstrip() for line in text.split("\n")]
        return [line for line in lines if line][-NUM_LAST_LINES:]


def run_dir_of(sweep_dir: Path, arm: Arm, seed: int) -> Path:
    return sweep_dir / layout.SWEEP_RUNS / arm.name / f"seed-{seed}"


def recipe_file(arm: Arm) -> str:
    """Return the file in the sweep's folder with the recipe that the arm starts from."""
    return f"recipe-{arm.name}.toml" if arm.recipe_text else RECIPE


def jobs_of(sweep: Sweep, folder: Path, arms: Sequence[Arm]) -> list[SweepJob]:
    """List the runs seed by seed, so that a sweep that is cut short can still compare its arms."""
    steps = {arm.name: sweep.recipe(arm).total_steps for arm in arms}
    return [SweepJob(arm, seed, run_dir_of(folder, arm, seed), steps[arm.name]) for seed in sweep.seeds for arm in arms]


def check_runs(sweep: Sweep, jobs: Iterable[SweepJob]) -> None:
    """Check that existing run directories have exactly the recipe of their arm."""
    for job in jobs:
        if job.state != "new":
            changes = changed_keys(make_recipe(Run(job.run_dir).recipe), sweep.recipe(job.arm, job.seed))
            if changes:
                raise ConfigError(
                    f"{job.run_dir} was started with another recipe: {_said(changes)}; use another --dir, or move "
                    "that run away"
                )


def record_failure(folder: Path, job: SweepJob, exit_code: int, lines: Sequence[str]) -> None:
    entry = {"arm": job.arm.name, "seed": job.seed, "exit_code": exit_code, "last_lines": list(lines)}
    path = folder / FAILURES
    with writing(path):
        append_line(path, encode_line(entry), fsync=False)


def earlier_sweep(folder: Path) -> Sweep | None:
    """Return the sweep that sweep.json describes; None if it does not exist yet."""
    return read_sweep(folder) if (folder / layout.SWEEP).exists() else None


def prepare(sweep: Sweep, folder: Path) -> list[str]:
    """Write sweep.json and recipe.toml. Return notes for the user."""
    earlier = earlier_sweep(folder)
    notes = []
    if earlier is not None:
        _refuse_changes(earlier, sweep, folder)
        kept = {arm.name for arm in sweep.arms}
        gone = [arm.name for arm in earlier.arms if arm.name not in kept]
        if gone:
            notes.append(
                f"no longer in the sweep file: {', '.join(gone)}; their runs stay in {folder / layout.SWEEP_RUNS}"
            )
    check_runs(sweep, jobs_of(sweep, folder, sweep.arms))
    write(sweep, folder)
    return notes


def refuse_strangers(folder: Path) -> None:
    """Check, before anything is written, that the folder is new, empty or a sweep."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; use another --dir")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names - {layout.LOCK} and layout.SWEEP not in names:
        raise ConfigError(f"{folder} is not empty and not a sweep; use another --dir")


def write(sweep: Sweep, folder: Path) -> None:
    save_text(folder / RECIPE, sweep.recipe_text)
    for arm in sweep.arms:
        if arm.recipe_text:
            save_text(folder / recipe_file(arm), arm.recipe_text)
    save_text(folder / layout.SWEEP, json.dumps(to_json(sweep), ensure_ascii=True, allow_nan=False, indent=1) + "\n")


def _refuse_changes(earlier: Sweep, now: Sweep, folder: Path) -> None:
    arms = {arm.name: arm for arm in now.arms}
    pairs = [(BASE_ARM, BASE_ARM), *((arm, arms[arm.name]) for arm in earlier.arms if arm.name in arms)]
    for before, after in pairs:
        changes = changed_keys(earlier.recipe(before), now.recipe(after))
        if changes:
            whose = "the recipe" if before is BASE_ARM else f"arm {before.name!r}"
            raise ConfigError(
                f"{whose} is no longer what {folder / layout.SWEEP} was written with: {_said(changes)}. Old and new "
                "runs would not be comparable; undo the change, or use another --dir"
            )


def changed_keys(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return key → (before, after) for the differences that can affect results; {} if there are none."""
    if fingerprint(before) == fingerprint(after):
        return {}
    old, new = _flat(before), _flat(after)
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return {key: (old.get(key), new.get(key)) for key in keys if key not in ("name", "description")}


def _flat(recipe: Recipe) -> dict[str, Any]:
    table = to_table(recipe)
    return dict(dotted_items(table | {"stages": {str(index): stage for index, stage in enumerate(table["stages"])}}))


def _said(changes: Mapping[str, tuple[Any, Any]]) -> str:
    parts = [f"{key} was {_or_unset(old)} and is {_or_unset(new)}" for key, (old, new) in changes.items()]
    more = len(parts) - _MAX_NAMED_CHANGES
    return ", ".join(parts[:_MAX_NAMED_CHANGES]) + (f", and {more} more" if more > 0 else "")


def _or_unset(value: Any) -> str:
    return "not set" if value is None else repr(value)


# ---- what its runs contain ----


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


def read_study(sweep_dir: Path) -> Sweep:
    """Return the sweep with its runs. Labels are unique in their knob and safe to print; numbers are in order."""
    sweep = read_sweep(sweep_dir)
    # The latest failure of each run counts.
    failures = dict(read_records(sweep_dir / FAILURES, _failure))
    runs = {
        arm.name: tuple(
            _read_run(run_dir_of(sweep_dir, arm, seed), seed, failures.get((arm.name, seed))) for seed in sweep.seeds
        )
        for arm in sweep.arms
    }
    return replace(
        sweep,
        name=visible(sweep.name or sweep_dir.resolve().name),
        knobs=tuple(_for_people(knob, runs) for knob in sweep.knobs if knob.arms),
        arms=tuple(replace(arm, runs=runs[arm.name]) for arm in sweep.arms),
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
    text = lines if isinstance(lines, str) else "\n".join(typed(tuple[str, ...], lines, "last_lines"))
    code = entry.get("exit_code")
    reason = text.strip() or ("" if code is None else f"exit code {code}")
    return (typed(str, entry.get("arm"), "arm"), typed(int, entry.get("seed"), "seed")), reason[-MAX_REASON_CHARS:]


def _read_run(path: Path, seed: int, failure: str | None) -> SeedRun:
    if not os.path.lexists(path / layout.RECIPE) and not os.path.lexists(path / layout.METRICS):
        if failure is None:
            return SeedRun(seed, path, RunStatus.MISSING)
        return SeedRun(seed, path, RunStatus.FAILED, failure)
    try:
        run = Run(path)
        steps = tuple(run.steps())
        evals = tuple(record for record in run.evals() if math.isfinite(record.pass_at_1))
        turn = last_turn(run.events())
        num_planned = sum(int(stage.get("steps", 0)) for stage in run.recipe_if_any.get("stages", []))
        is_finished = turn.get("kind") == "finished"
        # An unfinished run may be writing its completions right now.
        pass_rates = _pass_rates(run, evals[-1]) if is_finished and evals else {}
    except RunReadError as error:
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
