"""The folder of a sweep: sweep.json, the base recipe, where each run lies and how far it is.

Contract: `prepare` writes sweep.json and recipe.toml, or refuses with a `ConfigError` that names what changed since
they were written: existing runs must stay comparable with new ones. New arms and new seeds may join; arms that are gone
from the sweep file leave sweep.json, and their runs stay on disk. One writer at a time (the caller holds `RunLock`);
readers need no lock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from groupwise.base.harmless import printable
from groupwise.base.json_values import dotted_items
from groupwise.config import ConfigError, Recipe, fingerprint, make_recipe, to_table
from groupwise.runs import layout
from groupwise.runs.files import (
    RunReadError,
    append_line,
    encode_line,
    finite_or_none,
    read_end,
    write_atomic,
    write_failure,
)
from groupwise.runs.reader import Run, last_turn
from groupwise.sweeps.arms import json_value
from groupwise.sweeps.study import FAILURES, FORMAT, read_sweep
from groupwise.sweeps.sweep_records import BASE_ARM, Arm, Knob, Sweep

RECIPE = "recipe.toml"
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
            turn = last_turn(Run(self.run_dir).events())
        except RunReadError:
            return "begun"  # resuming it reports the problem as a failure of this run only
        return "finished" if turn.get("kind") == "finished" else "begun"

    @property
    def step(self) -> int:
        """The last logged step. Reads only the end of the file, because it is polled."""
        lines = read_end(self.run_dir / layout.METRICS, _END_BYTES).split(b"\n")
        for line in reversed(lines[:-1]):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue
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


def recipe_file(arm: Arm) -> str:
    """Return the file in the sweep's folder with the recipe that the arm starts from."""
    return f"recipe-{arm.name}.toml" if arm.recipe_text else RECIPE


def jobs_of(sweep: Sweep, folder: Path, arms: Sequence[Arm]) -> list[SweepJob]:
    """List the runs seed by seed, so that a sweep that is cut short can still compare its arms."""
    steps = {arm.name: sweep.recipe(arm).total_steps for arm in arms}
    return [
        SweepJob(arm, seed, folder / layout.SWEEP_RUNS / arm.name / f"seed-{seed}", steps[arm.name])
        for seed in sweep.seeds
        for arm in arms
    ]


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
    try:
        append_line(path, encode_line(entry), fsync=False)
    except OSError as error:
        raise write_failure(path, error) from error


# ---- sweep.json ----


def to_json(sweep: Sweep) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": sweep.name,
        "recipe": {"path": sweep.recipe_path, "text": sweep.recipe_text},
        "seeds": list(sweep.seeds),
        "knobs": [_knob_to_json(knob) for knob in sweep.knobs],
        "arms": [_arm_to_json(arm) for arm in sweep.arms],
    }


def _knob_to_json(knob: Knob) -> dict[str, Any]:
    members = knob.members
    arms, labels = [member.arm.name for member in members], [member.label for member in members]
    values = [json_value(member.value) for member in members]
    table: dict[str, Any] = {"name": knob.name, "keys": list(knob.keys), "arms": arms, "labels": labels}
    return table | {"values": values, "title": knob.title}


def _arm_to_json(arm: Arm) -> dict[str, Any]:
    return {
        "name": arm.name,
        "label": arm.label,
        "knob": arm.knob,
        "value": json_value(arm.value),
        "set": {key: json_value(value) for key, value in arm.settings.items()},
        # Settings again in the form of `--set`, which distinguishes infinity from the text "inf".
        "overrides": list(arm.overrides),
        "is_base": arm.is_base,
        **({"recipe": {"path": arm.recipe_path, "text": arm.recipe_text}} if arm.recipe_text else {}),
    }


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
    text = json.dumps(to_json(sweep), ensure_ascii=True, allow_nan=False, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / RECIPE, [sweep.recipe_text.encode()])
        for arm in sweep.arms:
            if arm.recipe_text:
                write_atomic(folder / recipe_file(arm), [arm.recipe_text.encode()])
        write_atomic(folder / layout.SWEEP, [text.encode(), b"\n"])
    except OSError as error:
        raise write_failure(folder / layout.SWEEP, error) from error


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
