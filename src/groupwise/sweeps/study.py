"""Reads a sweep's folder: what was asked (sweep.json), and what the run directories below it say so far.

Contract: reads only, at any time; a sweep that is half done is a study with gaps. A run that was not begun, is not
finished, failed or cannot be read is named with its reason and never ends the reading. A folder without a readable
sweep.json is a `RunReadError`. Nothing here computes a score; see `scores`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from groupwise.base.harmless import visible
from groupwise.runs import layout
from groupwise.runs.files import RunReadError, read_lines
from groupwise.runs.reader import Run, last_turn
from groupwise.types import EvalRecord, StepRecord

FAILURES = "failures.jsonl"
FORMAT = 1
MAX_REASON_CHARS = 4000
"""Of the last lines of a failure: the end is kept, which names the error."""

Value = float | str | None
"""Of a knob: a number (infinity included) or a text; None where nobody said."""


class RunStatus(StrEnum):
    FINISHED = "finished"
    UNFINISHED = "unfinished"
    FAILED = "failed"
    MISSING = "missing"
    """Not begun: there is no run directory."""
    DAMAGED = "damaged"
    """There is one, and it cannot be read."""


@dataclass(frozen=True, slots=True)
class SeedRun:
    """One arm with one seed."""

    seed: int
    path: Path
    status: RunStatus
    reason: str = ""
    """Why it failed or cannot be read."""
    num_planned_steps: int = 0
    """By its recipe; 0 where that is not known."""
    steps: tuple[StepRecord, ...] = ()
    evals: tuple[EvalRecord, ...] = ()
    """Those with a known score, in order."""
    pass_rates: Mapping[str, float] = field(default_factory=dict)
    """By problem, at the last of them, where all its completions were kept; else {}."""

    @property
    def is_finished(self) -> bool:
        return self.status is RunStatus.FINISHED


@dataclass(frozen=True, slots=True)
class StudyArm:
    name: str
    settings: Mapping[str, Any]
    """The recipe keys that it sets."""
    is_base: bool
    runs: tuple[SeedRun, ...]
    """One per seed of the sweep, in that order."""
    recipe_text: str = ""
    """TOML that it begins with; "" where that is the sweep's."""

    @property
    def finished(self) -> tuple[SeedRun, ...]:
        return tuple(run for run in self.runs if run.is_finished)


@dataclass(frozen=True, slots=True)
class Member:
    """An arm as one value of a knob. The base arm is a value of several."""

    arm: StudyArm
    label: str
    """Differs from the other labels of the knob; nothing in it is unseen (`inert.visible`)."""
    value: Value


@dataclass(frozen=True, slots=True)
class StudyKnob:
    name: str
    keys: tuple[str, ...]
    members: tuple[Member, ...]
    """By value where the knob is ordered, else in the order of the sweep's file."""

    @property
    def is_ordered(self) -> bool:
        return len(self.members) > 1 and all(isinstance(member.value, float) for member in self.members)

    @property
    def base(self) -> Member | None:
        return next((member for member in self.members if member.arm.is_base), None)


@dataclass(frozen=True, slots=True)
class Study:
    name: str
    path: Path
    recipe_path: str
    recipe_text: str
    seeds: tuple[int, ...]
    knobs: tuple[StudyKnob, ...]
    arms: tuple[StudyArm, ...]

    @property
    def runs(self) -> tuple[tuple[StudyArm, SeedRun], ...]:
        return tuple((arm, run) for arm in self.arms for run in arm.runs)

    def gaps(self) -> tuple[str, ...]:
        """What is missing, a sentence for each run that is not finished."""
        return tuple(f"{arm.name}, seed {run.seed}: {gap_words(run)}." for arm, run in self.runs if not run.is_finished)


def gap_words(run: SeedRun) -> str:
    done = run.steps[-1].step if run.steps else 0
    progress = f"{done} of {run.num_planned_steps} steps" if run.num_planned_steps else f"{done} steps"
    if run.status is RunStatus.MISSING:
        return "not begun"
    if run.status is RunStatus.UNFINISHED:
        return f"unfinished, {progress}"
    last_line = next((line for line in reversed(run.reason.splitlines()) if line.strip()), "no reason was recorded")
    words = f"failed after {progress}" if run.status is RunStatus.FAILED else "cannot be read"
    return f"{words} ({last_line.strip()})"


def read_study(sweep_dir: Path) -> Study:
    sweep_dir = Path(sweep_dir)
    table = _read_table(sweep_dir / layout.SWEEP)
    try:
        return _study(sweep_dir, table)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, RunReadError):
            raise
        raise RunReadError(f"{sweep_dir / layout.SWEEP}: not what a sweep writes there ({error!r})") from error


def _read_table(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunReadError(f"{path.parent} is no sweep: {path.name} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise RunReadError(f"{path}: not JSON ({error})") from error
    if not isinstance(table, dict):
        raise RunReadError(f"{path}: a JSON object is expected, not a {type(table).__name__}")
    if table.get("format") != FORMAT:
        raise RunReadError(
            f"{path}: format is {table.get('format')!r}, and this version of groupwise reads {FORMAT}; "
            "analyse the sweep with the version that made it"
        )
    return table


def _study(sweep_dir: Path, table: Mapping[str, Any]) -> Study:
    seeds = tuple(int(seed) for seed in table["seeds"])
    failures = _failures(sweep_dir / FAILURES)
    arms: dict[str, StudyArm] = {}
    for entry in table["arms"]:
        name = layout.validate_run_name(entry["name"])
        folder = sweep_dir / layout.SWEEP_RUNS / name
        runs = tuple(_read_run(folder / f"seed-{seed}", seed, failures.get((name, seed))) for seed in seeds)
        own = (entry.get("recipe") or {}).get("text")
        arms[name] = StudyArm(name, dict(entry.get("set") or {}), bool(entry.get("is_base")), runs, str(own or ""))
    stray = [name for knob in table["knobs"] for name in knob["arms"] if name not in arms]
    if stray:
        raise RunReadError(
            f"{sweep_dir / layout.SWEEP}: a knob names the arm {stray[0]!r}, which is not among the arms"
        )
    recipe = table.get("recipe") or {}
    entries = {entry["name"]: entry for entry in table["arms"]}
    knobs = tuple(_knob(knob, arms, entries) for knob in table["knobs"])
    return Study(
        name=visible(str(table.get("name") or sweep_dir.resolve().name)),
        path=sweep_dir,
        recipe_path=str(recipe.get("path") or ""),
        recipe_text=str(recipe.get("text") or ""),
        seeds=seeds,
        knobs=tuple(knob for knob in knobs if knob.members),
        arms=tuple(arms.values()),
    )


def _knob(table: Mapping[str, Any], arms: Mapping[str, StudyArm], entries: Mapping[str, Any]) -> StudyKnob:
    """An arm that stands in several knobs has a label and a value of its own in each."""
    names = table["arms"]
    values = table.get("values") or [entries[name].get("value") for name in names]
    labels = [visible(str(label)) for label in table.get("labels") or [entries[name]["label"] for name in names]]
    members = [
        Member(arms[name], label if labels.count(label) == 1 else f"{label} ({name})", _value(value))
        for name, label, value in zip(names, labels, values, strict=True)
    ]
    title = visible(str(table.get("title") or table["name"]))
    knob = StudyKnob(title, tuple(str(key) for key in table.get("keys") or ()), tuple(members))
    if not knob.is_ordered:
        return knob
    in_order = sorted(members, key=lambda member: member.value if isinstance(member.value, float) else math.nan)
    return StudyKnob(knob.name, knob.keys, tuple(in_order))


def _value(value: Any) -> Value:
    if isinstance(value, bool) or value is None:
        return None if value is None else str(value).lower()
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str):
        infinities = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf}
        return infinities.get(value.strip().lower(), value)
    return json.dumps(value, ensure_ascii=False)


def _failures(path: Path) -> dict[tuple[str, int], str]:
    """The newest reason by arm and seed."""
    found = {}
    for number, entry in read_lines(path):
        try:
            lines = entry.get("last_lines") or ""
            text = lines if isinstance(lines, str) else "\n".join(map(str, lines))
            code = entry.get("exit_code")
            reason = text.strip() or ("" if code is None else f"exit code {code}")
            found[str(entry["arm"]), int(entry["seed"])] = reason[-MAX_REASON_CHARS:]
        except (KeyError, TypeError, ValueError) as error:
            raise RunReadError(f"{path}, line {number}: not the record it should be ({error!r})") from error
    return found


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
        recipe = run.recipe if (path / layout.RECIPE).is_file() else {}
        num_planned = sum(int(stage.get("steps", 0)) for stage in recipe.get("stages", []))
        is_finished = turn.get("kind") == "finished"
        # Of one that goes on they are written at this moment, perhaps.
        pass_rates = _pass_rates(run, evals[-1]) if is_finished and evals else {}
    except (RunReadError, OSError, TypeError, ValueError, AttributeError) as error:
        return SeedRun(seed, path, RunStatus.DAMAGED, str(error))
    if is_finished:
        return SeedRun(seed, path, RunStatus.FINISHED, "", num_planned, steps, evals, pass_rates)
    if failure is None and turn.get("kind") in ("failed", "rank_lost"):  # the sweep died before it could write it down
        failure = str(turn.get("reason") or "")
    status = RunStatus.UNFINISHED if failure is None else RunStatus.FAILED
    return SeedRun(seed, path, status, failure or "", num_planned, steps, evals)


def _pass_rates(run: Run, record: EvalRecord) -> dict[str, float]:
    groups = run.eval_rollouts(record.step)
    judged = {scored.group.prompt.problem.id: scored.pass_rate for scored in groups}
    known = {problem_id: rate for problem_id, rate in judged.items() if rate is not None}
    return known if len(known) == record.num_problems else {}
