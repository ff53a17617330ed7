"""Records of a sweep: its arms, its knobs, and the runs of each arm once they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from groupwise.config import ConfigError, Recipe, dump_toml, parse_recipe
from groupwise.sweeps.spec import BASE
from groupwise.types import EvalRecord, StepRecord

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
    label: str
    knob: str
    """The knob that made it; "" for the base and for arms that no single knob made."""
    value: Value
    """Value of that knob; "" if there is no single knob."""
    settings: Mapping[str, Any]
    """Recipe key → value, in addition to what all arms have."""
    is_base: bool = False
    recipe_path: str = ""
    recipe_text: str = ""
    """Recipe of an arm that has its own, as in `Sweep`; "" otherwise."""
    runs: tuple[SeedRun, ...] = ()
    """One per seed of the sweep, in that order; () until a study reads them."""

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(f"{key}={toml_value(value)}" for key, value in self.settings.items())

    @property
    def finished(self) -> tuple[SeedRun, ...]:
        return tuple(run for run in self.runs if run.is_finished)


BASE_ARM = Arm(BASE, BASE, "", "", {}, is_base=True)
"""The recipe itself."""


@dataclass(frozen=True, slots=True)
class Member:
    """An arm as one value of a knob. An arm may belong to several knobs, with another label in each."""

    arm: Arm
    label: str
    value: Value


@dataclass(frozen=True, slots=True)
class Knob:
    name: str
    keys: tuple[str, ...]
    members: tuple[Member, ...]
    """In the order of the sweep file. A study sorts numbers."""
    title: str = ""
    """Name for people; "" if `name` serves. A study puts it in `name`."""

    @property
    def is_ordered(self) -> bool:
        return len(self.members) > 1 and all(isinstance(member.value, (int, float)) for member in self.members)

    @property
    def base(self) -> Member | None:
        return next((member for member in self.members if member.arm.is_base), None)


@dataclass(frozen=True, slots=True)
class Sweep:
    name: str
    recipe_path: str
    recipe_text: str
    """TOML, including what all arms have, but not resolved: an arm that sets the algorithm gets that preset."""
    seeds: tuple[int, ...]
    knobs: tuple[Knob, ...]
    arms: tuple[Arm, ...]

    def recipe(self, arm: Arm, seed: int | None = None, extra: Iterable[str] = ()) -> Recipe:
        seeds = () if seed is None else (f"seed={seed}",)
        try:
            text, origin = arm.recipe_text or self.recipe_text, arm.recipe_path or self.recipe_path
            return parse_recipe(text, (*arm.overrides, *seeds, *extra), origin=origin)
        except ConfigError as error:
            raise ConfigError(f"arm {arm.name!r}: {error}") from None


def toml_value(value: Any) -> str:
    """Write a value so that `--set key=VALUE` reads it back."""
    if isinstance(value, Mapping):
        return "{}"  # `flatten` leaves only empty tables
    return dump_toml({"value": value}).removeprefix("value = ").rstrip("\n")
