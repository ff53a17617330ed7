"""The folder of a sweep: sweep.json, the recipe that runs, where each run lies and how far it is.

Contract: `prepare` writes sweep.json and recipe.toml, or refuses with a `ConfigError` that names what changed since
they were written: runs that are there already must stay comparable with those to come. New arms and new seeds may join;
arms that are gone from the sweep file leave sweep.json, and their runs stay on disk. One writer at a time (`RunLock` of
the caller); readers need none.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from groupwise.base.harmless import printable
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
from groupwise.sweeps.arms import BASE_ARM, Arm, Knob, Sweep, json_value
from groupwise.sweeps.spec import flatten
from groupwise.sweeps.study import FAILURES, FORMAT

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
        """Beside the run directory, which is the trainer's own."""
        return self.run_dir.with_name(f"{self.run_dir.name}.log")

    @property
    def state(self) -> State:
        if not (self.run_dir / layout.RECIPE).exists():
            return "new"
        try:
            turn = last_turn(Run(self.run_dir).events())
        except RunReadError:
            return "begun"  # going on with it says what is wrong, and is a failure of this run alone
        return "finished" if turn.get("kind") == "finished" else "begun"

    @property
    def step(self) -> int:
        """The last step that was logged. Reads the end of the file alone: this is asked all the time."""
        lines = read_end(self.run_dir / layout.METRICS, _END_BYTES).split(b"\n")
        for line in reversed(lines[:-1]):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue
        return 0

    @property
    def score(self) -> float | None:
        """Held-out pass@1 of the last evaluation."""
        try:
            evals = Run(self.run_dir).evals()
        except RunReadError:
            return None
        return finite_or_none(evals[-1].pass_at_1) if evals else None

    def last_lines(self) -> list[str]:
        """Of what it printed."""
        text = read_end(self.log, _END_BYTES).decode("utf-8", "replace")
        lines = [printable(line).rstrip() for line in text.split("\n")]
        return [line for line in lines if line][-NUM_LAST_LINES:]


def recipe_file(arm: Arm) -> str:
    """What the arm begins with, in the sweep's folder."""
    return f"recipe-{arm.name}.toml" if arm.recipe_text else RECIPE


def jobs_of(sweep: Sweep, folder: Path, arms: Sequence[Arm]) -> list[SweepJob]:
    """Seed by seed, so that a sweep that is cut short is still a comparison."""
    steps = {arm.name: sweep.recipe(arm).total_steps for arm in arms}
    return [
        SweepJob(arm, seed, folder / layout.SWEEP_RUNS / arm.name / f"seed-{seed}", steps[arm.name])
        for seed in sweep.seeds
        for arm in arms
    ]


def check_runs(sweep: Sweep, jobs: Iterable[SweepJob]) -> None:
    """A run directory that is there already must hold this very recipe."""
    for job in jobs:
        if job.state != "new":
            there = make_recipe(Run(job.run_dir).recipe)
            changes = changed_keys(there, sweep.recipe(job.arm, job.seed))
            if changes:
                raise ConfigError(
                    f"{job.run_dir} was begun with another recipe: {_said(changes)}; take another --dir, or move that "
                    "run away"
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
        "knobs": [asdict(knob) | {"values": json_value(knob.values)} for knob in sweep.knobs],
        "arms": [_arm_to_json(arm) for arm in sweep.arms],
    }


def _arm_to_json(arm: Arm) -> dict[str, Any]:
    return {
        "name": arm.name,
        "label": arm.label,
        "knob": arm.knob,
        "value": json_value(arm.value),
        "set": {key: json_value(value) for key, value in arm.settings.items()},
        # The same once more as `--set` takes it, which tells infinity from the text "inf".
        "overrides": list(arm.overrides),
        "is_base": arm.is_base,
        **({"recipe": {"path": arm.recipe_path, "text": arm.recipe_text}} if arm.recipe_text else {}),
    }


def from_json(table: Mapping[str, Any]) -> Sweep:
    arms = tuple(
        Arm(
            name=entry["name"],
            label=entry["label"],
            knob=entry["knob"],
            value=entry["value"],
            settings=dict(_setting(text) for text in entry["overrides"]),
            is_base=entry["is_base"],
            recipe_path=entry.get("recipe", {}).get("path", ""),
            recipe_text=entry.get("recipe", {}).get("text", ""),
        )
        for entry in table["arms"]
    )
    knobs = tuple(
        Knob(
            name=entry["name"],
            keys=tuple(entry["keys"]),
            arms=tuple(entry["arms"]),
            labels=tuple(entry["labels"]),
            values=tuple(entry["values"]),
            title=entry.get("title", ""),
        )
        for entry in table["knobs"]
    )
    recipe = table["recipe"]
    return Sweep(table["name"], recipe["path"], recipe["text"], tuple(table["seeds"]), knobs, arms)


def _setting(override: str) -> tuple[str, Any]:
    key, _, text = override.partition("=")
    return key, tomllib.loads(f"value = {text}")["value"]


def read_sweep(folder: Path) -> Sweep | None:
    """What sweep.json says; None where there is none yet."""
    path = folder / layout.SWEEP
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table.get("format") != FORMAT:
            raise ConfigError(f"{path}: format is {table.get('format')!r}, and this groupwise writes {FORMAT}")
        return from_json(table)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not what a sweep writes there ({error!r}); take another --dir") from None


def prepare(sweep: Sweep, folder: Path) -> list[str]:
    """Write sweep.json and recipe.toml; what a person should know of it."""
    earlier = read_sweep(folder)
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
    """Before anything is written: a folder is new, or a sweep's."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; take another --dir")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names - {layout.LOCK} and layout.SWEEP not in names:
        raise ConfigError(f"{folder} holds something, and no sweep; take another --dir")


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
                f"{whose} is no longer what {folder / layout.SWEEP} began with: {_said(changes)}; runs of both "
                "would not be comparable. Undo the change, or take another --dir"
            )


def changed_keys(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """Key → (before, after), of what can move a number; empty where nothing can."""
    if fingerprint(before) == fingerprint(after):
        return {}
    old, new = (flatten_recipe(recipe) for recipe in (before, after))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return {key: (old.get(key), new.get(key)) for key in keys if key not in ("name", "description")}


def flatten_recipe(recipe: Recipe) -> dict[str, Any]:
    table = to_table(recipe)
    stages = {str(index): stage for index, stage in enumerate(table.pop("stages"))}
    seed = table.pop("seed")
    return flatten(table | {"stages": stages}) | {"seed": seed}


def _said(changes: Mapping[str, tuple[Any, Any]]) -> str:
    parts = [f"{key} was {_or_unset(old)} and is {_or_unset(new)}" for key, (old, new) in changes.items()]
    more = len(parts) - _MAX_NAMED_CHANGES
    return ", ".join(parts[:_MAX_NAMED_CHANGES]) + (f", and {more} more" if more > 0 else "")


def _or_unset(value: Any) -> str:
    return "not set" if value is None else repr(value)
