"""Records of a sweep: its arms, its knobs, and the runs of each arm once they are read; and their form in sweep.json.

Contract: `read_sweep` reads what `to_json` returns, also as older versions wrote it. A folder without a readable
sweep.json raises `RunReadError`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from groupwise.base.json_values import plain
from groupwise.base.outside import file_json
from groupwise.config import ConfigError, Recipe, parse_recipe
from groupwise.config.recipe import dump_value, parse_override
from groupwise.runs import layout
from groupwise.runs.files import RunReadError, reading
from groupwise.sweeps.spec import BASE
from groupwise.types import EvalRecord, StepRecord

FORMAT = 1
Value = int | float | str
"""Value of a knob: a number, so that it can be placed on an axis, or text."""


class RunStatus(StrEnum):
    FINISHED = "finished"
    UNFINISHED = "unfinished"
    FAILED = "failed"
    MISSING = "missing"
    """Not started: there is no run directory."""
    DAMAGED = "damaged"
    """The run directory cannot be read."""


@dataclass(frozen=True, slots=True)
class SeedRun:
    """One arm with one seed."""

    seed: int
    path: Path
    status: RunStatus
    reason: str = ""
    """Why it failed or cannot be read."""
    num_planned_steps: int = 0
    """Steps in its recipe; 0 if unknown."""
    steps: tuple[StepRecord, ...] = ()
    evals: tuple[EvalRecord, ...] = ()
    """Evaluations with a known score, in order."""
    pass_rates: Mapping[str, float] = field(default_factory=dict)
    """Pass rate by problem at the last evaluation; {} unless all its completions were kept."""

    @property
    def is_finished(self) -> bool:
        return self.status is RunStatus.FINISHED


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    label: str = ""
    knob: str = ""
    """The knob that made it; "" for the base and for arms that no single knob made."""
    value: Value = ""
    """Value of that knob; "" if there is no single knob."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Recipe key → value, in addition to what all arms have."""
    is_base: bool = False
    recipe_path: str = ""
    recipe_text: str = ""
    """Recipe of an arm that has its own, as in `Sweep`; "" otherwise."""
    runs: tuple[SeedRun, ...] = ()
    """One per seed of the sweep, in that order; () until `read_study` reads them."""

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(f"{key}={dump_value(value)}" for key, value in self.settings.items())


BASE_ARM = Arm(BASE, BASE, is_base=True)
"""The recipe itself."""


@dataclass(frozen=True, slots=True)
class Knob:
    name: str
    keys: tuple[str, ...]
    arms: tuple[Arm, ...]
    """Each with its label and value in this knob: an arm may belong to several knobs.

    In the order of the sweep file. `read_study` sorts numbers.
    """
    title: str = ""
    """Name for people; "" if `name` serves. `read_study` puts it in `name`."""

    @property
    def is_ordered(self) -> bool:
        return len(self.arms) > 1 and all(isinstance(arm.value, (int, float)) for arm in self.arms)


@dataclass(frozen=True, slots=True)
class Sweep:
    name: str
    recipe_path: str
    recipe_text: str
    """TOML, including what all arms have, but not resolved: an arm that sets the algorithm gets that preset."""
    seeds: tuple[int, ...]
    knobs: tuple[Knob, ...]
    arms: tuple[Arm, ...]

    @property
    def runs(self) -> tuple[tuple[Arm, SeedRun], ...]:
        return tuple((arm, run) for arm in self.arms for run in arm.runs)

    @property
    def gaps(self) -> tuple[tuple[Arm, SeedRun], ...]:
        """The runs that are not finished."""
        return tuple((arm, run) for arm, run in self.runs if not run.is_finished)

    def recipe(self, arm: Arm, seed: int | None = None) -> Recipe:
        seeds = () if seed is None else (f"seed={seed}",)
        try:
            text, origin = arm.recipe_text or self.recipe_text, arm.recipe_path or self.recipe_path
            return parse_recipe(text, (*arm.overrides, *seeds), origin=origin)
        except ConfigError as error:
            raise ConfigError(f"arm {arm.name!r}: {error}") from None


# ---- sweep.json ----


def to_json(sweep: Sweep) -> dict[str, Any]:
    knobs = [
        {
            "name": knob.name,
            "keys": list(knob.keys),
            "arms": [arm.name for arm in knob.arms],
            "labels": [arm.label for arm in knob.arms],
            "values": [plain(arm.value, str) for arm in knob.arms],
            "title": knob.title,
        }
        for knob in sweep.knobs
    ]
    return {
        "format": FORMAT,
        "name": sweep.name,
        "recipe": {"path": sweep.recipe_path, "text": sweep.recipe_text},
        "seeds": list(sweep.seeds),
        "knobs": knobs,
        "arms": [_arm_to_json(arm) for arm in sweep.arms],
    }


def _arm_to_json(arm: Arm) -> dict[str, Any]:
    return {
        "name": arm.name,
        "label": arm.label,
        "knob": arm.knob,
        "value": plain(arm.value, str),
        "set": plain(arm.settings, str),
        # Settings again in the form of `--set`, which distinguishes infinity from the text "inf".
        "overrides": list(arm.overrides),
        "is_base": arm.is_base,
        **({"recipe": {"path": arm.recipe_path, "text": arm.recipe_text}} if arm.recipe_text else {}),
    }


def read_sweep(sweep_dir: Path) -> Sweep:
    path = sweep_dir / layout.SWEEP
    with reading(path):
        try:
            table = file_json(path)
        except FileNotFoundError:
            raise RunReadError(f"{sweep_dir} is not a sweep: it has no {path.name}") from None
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
    arms = {entry["name"]: _arm_from_json(entry) for entry in table["arms"]}
    recipe = table.get("recipe") or {}
    return Sweep(
        name=str(table.get("name") or ""),
        recipe_path=str(recipe.get("path") or ""),
        recipe_text=str(recipe.get("text") or ""),
        seeds=tuple(int(seed) for seed in table["seeds"]),
        knobs=tuple(_knob_from_json(entry, arms) for entry in table["knobs"]),
        arms=tuple(arms.values()),
    )


def _arm_from_json(table: Mapping[str, Any]) -> Arm:
    recipe = table.get("recipe") or {}
    # Overrides tell infinity from the text "inf"; `set` does not.
    settings = dict(map(parse_override, table["overrides"])) if "overrides" in table else dict(table.get("set") or {})
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


def _knob_from_json(table: Mapping[str, Any], arms: Mapping[str, Arm]) -> Knob:
    stray = [name for name in table["arms"] if name not in arms]
    if stray:
        raise ValueError(f"a knob names the arm {stray[0]!r}, which is not among the arms")
    known = [arms[name] for name in table["arms"]]
    labels = table.get("labels") or [arm.label for arm in known]
    values = table.get("values") or [arm.value for arm in known]
    own = tuple(
        replace(arm, label=str(label), value=_value(value))
        for arm, label, value in zip(known, labels, values, strict=True)
    )
    return Knob(str(table["name"]), tuple(map(str, table.get("keys") or ())), own, str(table.get("title") or ""))


def _value(value: Any) -> Value:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        infinities = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf}
        return infinities.get(value.strip().lower(), value)
    return value if isinstance(value, (int, float)) else json.dumps(value, ensure_ascii=False)
