"""Reads a sweep's folder: what was planned (sweep.json), and what its run directories contain so far.

Contract: only reads, at any time; a sweep that is half done is a study with gaps. A run that was not started, is not
finished, failed or cannot be read is reported with its reason and never stops the reading. A folder without a readable
sweep.json raises `RunReadError`. Nothing here computes a score; see `arm_scores`.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.base.harmless import visible
from groupwise.runs import layout
from groupwise.runs.files import RunReadError, read_lines
from groupwise.runs.reader import Run, last_turn
from groupwise.sweeps.sweep_records import Arm, Knob, Member, RunStatus, SeedRun, Sweep, Value
from groupwise.types import EvalRecord

FAILURES = "failures.jsonl"
FORMAT = 1
MAX_REASON_CHARS = 4000
"""Characters kept of a failure's last lines: those at the end, which name the error."""


@dataclass(frozen=True, slots=True)
class Study(Sweep):
    """A sweep with its runs. Labels are unique in their knob and safe to print; ordered knobs are sorted by value."""

    path: Path

    @property
    def runs(self) -> tuple[tuple[Arm, SeedRun], ...]:
        return tuple((arm, run) for arm in self.arms for run in arm.runs)

    def gaps(self) -> tuple[str, ...]:
        """Return a sentence for each run that is not finished."""
        return tuple(f"{arm.name}, seed {run.seed}: {gap_words(run)}." for arm, run in self.runs if not run.is_finished)


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


def read_study(sweep_dir: Path) -> Study:
    sweep_dir = Path(sweep_dir)
    sweep = read_sweep(sweep_dir)
    failures = _failures(sweep_dir / FAILURES)
    arms = {}
    for arm in sweep.arms:
        paths = {seed: sweep_dir / layout.SWEEP_RUNS / arm.name / f"seed-{seed}" for seed in sweep.seeds}
        runs = tuple(_read_run(path, seed, failures.get((arm.name, seed))) for seed, path in paths.items())
        arms[arm.name] = replace(arm, runs=runs)
    return Study(
        name=visible(sweep.name or sweep_dir.resolve().name),
        recipe_path=sweep.recipe_path,
        recipe_text=sweep.recipe_text,
        seeds=sweep.seeds,
        knobs=tuple(_for_people(knob, arms) for knob in sweep.knobs if knob.members),
        arms=tuple(arms.values()),
        path=sweep_dir,
    )


def _for_people(knob: Knob, arms: Mapping[str, Arm]) -> Knob:
    labels = [visible(member.label) for member in knob.members]
    members = [
        Member(
            arms[member.arm.name], label if labels.count(label) == 1 else f"{label} ({member.arm.name})", member.value
        )
        for member, label in zip(knob.members, labels, strict=True)
    ]
    if knob.is_ordered:
        members.sort(key=lambda member: member.value if isinstance(member.value, (int, float)) else math.nan)
    return replace(knob, name=visible(knob.title or knob.name), members=tuple(members))


# ---- sweep.json ----


def read_sweep(sweep_dir: Path) -> Sweep:
    path = sweep_dir / layout.SWEEP
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunReadError(f"{sweep_dir} is not a sweep: {path.name} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise RunReadError(f"{path}: not JSON ({error})") from error
    if not isinstance(table, dict):
        raise RunReadError(f"{path}: expected a JSON object, got a {type(table).__name__}")
    if table.get("format") != FORMAT:
        raise RunReadError(
            f"{path}: format is {table.get('format')!r}, and this version of groupwise reads {FORMAT}; "
            "use the version that wrote it"
        )
    try:
        return from_json(table)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RunReadError(f"{path}: not a valid sweep ({error!r})") from error


def from_json(table: Mapping[str, Any]) -> Sweep:
    arms = {entry["name"]: _arm(entry) for entry in table["arms"]}
    recipe = table.get("recipe") or {}
    return Sweep(
        name=str(table.get("name") or ""),
        recipe_path=str(recipe.get("path") or ""),
        recipe_text=str(recipe.get("text") or ""),
        seeds=tuple(int(seed) for seed in table["seeds"]),
        knobs=tuple(_knob(entry, arms) for entry in table["knobs"]),
        arms=tuple(arms.values()),
    )


def _arm(table: Mapping[str, Any]) -> Arm:
    recipe = table.get("recipe") or {}
    # Overrides tell infinity from the text "inf"; `set` does not.
    settings = dict(map(_setting, table["overrides"])) if "overrides" in table else dict(table.get("set") or {})
    return Arm(
        name=layout.validate_run_name(table["name"]),
        label=str(table["label"]),
        knob=str(table.get("knob") or ""),
        value=_value(table.get("value", "")),
        settings=settings,
        is_base=bool(table.get("is_base")),
        recipe_path=str(recipe.get("path") or ""),
        recipe_text=str(recipe.get("text") or ""),
    )


def _setting(override: str) -> tuple[str, Any]:
    key, _, text = override.partition("=")
    return key, tomllib.loads(f"value = {text}")["value"]


def _knob(table: Mapping[str, Any], arms: Mapping[str, Arm]) -> Knob:
    stray = [name for name in table["arms"] if name not in arms]
    if stray:
        raise ValueError(f"a knob names the arm {stray[0]!r}, which is not among the arms")
    own = [arms[name] for name in table["arms"]]
    labels = [str(label) for label in table.get("labels") or [arm.label for arm in own]]
    values = [_value(value) for value in table.get("values") or [arm.value for arm in own]]
    members = tuple(Member(*member) for member in zip(own, labels, values, strict=True))
    return Knob(str(table["name"]), tuple(map(str, table.get("keys") or ())), members, str(table.get("title") or ""))


def _value(value: Any) -> Value:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        infinities = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf}
        return infinities.get(value.strip().lower(), value)
    if isinstance(value, (int, float)):
        return value
    return json.dumps(value, ensure_ascii=False)


# ---- runs ----


def _failures(path: Path) -> dict[tuple[str, int], str]:
    """Return the latest reason by arm and seed."""
    found = {}
    for number, entry in read_lines(path):
        try:
            lines = entry.get("last_lines") or ""
            text = lines if isinstance(lines, str) else "\n".join(map(str, lines))
            code = entry.get("exit_code")
            reason = text.strip() or ("" if code is None else f"exit code {code}")
            found[str(entry["arm"]), int(entry["seed"])] = reason[-MAX_REASON_CHARS:]
        except (KeyError, TypeError, ValueError) as error:
            raise RunReadError(f"{path}, line {number}: not a valid record ({error!r})") from error
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
