"""The sweep file: what to vary in which recipe. TOML → one frozen, validated `SweepSpec`.

Contract: every mistake that shows in the file itself is a `ConfigError` that names the key, the value and the fix.
`arms` validates the resulting recipes. Nothing here reads the recipe or runs anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from groupwise.base.json_values import dotted_items
from groupwise.config import RECIPES, ConfigError, build
from groupwise.config.build import Config, Name, Seed, Within, require, shown
from groupwise.config.recipe import find_shipped, parse_toml, read_text

SWEEPS = RECIPES / "sweeps"
"""Sweeps that come with groupwise."""
HELD_OUT = "eval/pass_at_1"
"""The objective that is read from evaluations: the last one of a run."""
BASE = "base"
"""Name of the arm that is the recipe itself."""
PLAIN_LIST = "arms"
"""Name of the knob that a plain list of arms makes."""
MAX_ARMS = 10_000

SEED_ERROR = "the sweep sets the seed itself; list the seeds in `seeds` at the top of the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyedConfig(Config):
    name: Name
    """Used in the names of arms and their folders."""
    key: str = ""
    """A recipe key, such as stages.0.kl.coefficient."""
    keys: tuple[str, ...] = ()
    """Several recipe keys that change together, instead of `key`."""

    @property
    def all_keys(self) -> tuple[str, ...]:
        return self.keys or (self.key,)

    def _check_keys(self) -> None:
        is_one = bool(self.key) != bool(self.keys)
        require(is_one, f"{self.name}: give key (one recipe key) or keys (several that change together)")
        require("seed" not in self.all_keys, f"{self.name}: {SEED_ERROR}")
        require(len(set(self.keys)) == len(self.keys), f"{self.name}: keys = {list(self.keys)}: one is given twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobSpec(_KeyedConfig):
    title: str = ""
    """Name for people, such as "KL coefficient". Default: `name`."""
    values: tuple[Any, ...]
    """One arm per value. With several keys: one value for all, a list with one value per key, or a table."""
    labels: tuple[str, ...] = ()
    """Label of each value. Default: the value."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Additional keys of all arms of this knob."""

    def check(self) -> None:
        self._check_keys()
        require(bool(self.values), f"{self.name}: values = []: give at least one")
        require(
            len(self.labels) in (0, len(self.values)),
            f"{self.name}: {len(self.labels)} labels for {len(self.values)} values; give one for each, or none",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec(Config):
    name: Name
    label: str = ""
    """Name for people. Default: `name`."""
    recipe: str = ""
    """Recipe that this arm starts from. Default: the sweep's."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Recipe keys of this arm; {} is the recipe itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSpec(_KeyedConfig):
    """Values of a key that a search may choose; several keys all get the same value."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    """Sample uniformly in the logarithm."""
    step: int | float | None = None
    """Grid spacing, from `low` on. If low, high and step are whole numbers, so are the values."""
    choices: tuple[Any, ...] = ()
    """Values to choose from, instead of low and high."""

    def check(self) -> None:
        self._check_keys()
        if self.choices:
            given = [key for key in ("low", "high", "step") if getattr(self, key) is not None]
            require(not given and not self.log, f"{self.name}: drop {(*given, 'log')[0]}, or choices")
            for choice in self.choices:
                is_plain = isinstance(choice, (str, int, float, bool))
                require(is_plain, f"{self.name}: choices: {choice!r} must be a string, number or boolean")
            return
        if self.low is None or self.high is None:
            raise ConfigError(f"{self.name}: give low and high, or choices")
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        require(finite and self.low < self.high, f"{self.name}: low = {self.low:g} must be below high = {self.high:g}")
        require(not self.log or self.low > 0, f"{self.name}: low = {self.low:g}: log = true needs it above 0")
        require(self.step is None or self.step > 0, f"{self.name}: step = {self.step}: must be above 0")
        require(self.step is None or not self.log, f"{self.name}: step and log cannot be combined; drop one")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec(Config):
    trials: Annotated[int, Within(f"[1, {MAX_ARMS}]")]
    """Number of sets of values to try; each is an arm with all seeds."""
    seed: Seed = 0
    """Seed of Optuna's sampler."""
    objective: str = HELD_OUT
    """The last held-out pass@1, or a metric of the steps: its mean over the last tenth of them, at least three."""
    direction: Literal["maximize", "minimize"] = "maximize"
    ranges: tuple[RangeSpec, ...]

    def check(self) -> None:
        require(bool(self.ranges), "ranges = []: add a [[search.ranges]] table with a name, a key, low and high")
        check_unique([one.name for one in self.ranges], "ranges")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec(Config):
    name: Name
    """Name of the folder."""
    recipe: str
    """One of `groupwise recipes`, or a TOML file, relative to the sweep file or else to the working directory."""
    description: str = ""
    seeds: tuple[Seed, ...] = (0,)
    """Each arm is run once with each seed."""
    jobs: int | str = 1
    """Number of runs at once; "auto": as many as fit."""
    keep_checkpoints: bool = True
    """false: delete the checkpoints of a run when it has finished. All measurements stay."""
    mode: Literal["each", "grid"] = "each"
    """Vary knobs one at a time ("each"), or run all combinations ("grid")."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Recipe keys of all arms."""
    knobs: tuple[KnobSpec, ...] = ()
    arms: tuple[ArmSpec, ...] = ()
    search: SearchSpec | None = None

    def check(self) -> None:
        given = [key for key in ("knobs", "arms", "search") if getattr(self, key)]
        require(len(given) > 0, "nothing to vary: add [[knobs]], [[arms]] or a [search] table")
        require(len(given) < 2, f"{' and '.join(given)}: give only one of [[knobs]], [[arms]], [search]")
        require(self.mode == "each" or bool(self.knobs), f"mode = {self.mode!r}: only for [[knobs]]; drop it")
        require(bool(self.seeds), "seeds = []: give at least one, such as [0, 1, 2]")
        require(len(frozenset(self.seeds)) == len(self.seeds), f"seeds = {list(self.seeds)}: one is given twice")
        check_jobs(self.jobs, "jobs")
        check_unique([knob.name for knob in self.knobs], "knobs")
        check_unique([arm.name for arm in self.arms], "arms")


def check_unique(names: list[str], where: str) -> None:
    """Check that names differ, also on file systems that ignore case."""
    folded = [name.casefold() for name in names]
    for name in names:
        require(folded.count(name.casefold()) == 1, f"{where}: two are called {name!r}; rename one")


def check_jobs(jobs: int | str, where: str) -> None:
    is_count = isinstance(jobs, int) and 1 <= jobs <= MAX_ARMS
    require(is_count or jobs == "auto", f'{where} = {shown(jobs)}: expected a number from 1 to {MAX_ARMS:,}, or "auto"')


def find_sweep(given: str) -> Path:
    """Return the path of a sweep file, or of one of the sweeps that come with groupwise."""
    return find_shipped(given, SWEEPS, "sweep")


def load_spec(path: Path) -> SweepSpec:
    shipped = ", ".join(sorted(sweep.stem for sweep in SWEEPS.glob("*.toml")))
    return parse_spec(read_text(path, "sweep", f"those that come with groupwise: {shipped}"), origin=str(path))


def parse_spec(text: str, origin: str = "sweep") -> SweepSpec:
    return build(SweepSpec, parse_toml(text, origin), "")


def flatten(table: Mapping[str, Any], where: str = "set") -> dict[str, Any]:
    """Return dotted recipe keys: {"stages": {"0": {"steps": 3}}} and {"stages.0.steps": 3} → {"stages.0.steps": 3}.

    A nested table is a path, so keys that it does not name keep the recipe's value; an empty table is a value.
    """
    flat: dict[str, Any] = {}
    for path, value in dotted_items(table):
        require(path not in flat, f"{where}: {path} is set twice; drop one")
        require(path != "seed", f"{where}: {SEED_ERROR}")
        check_value(value, f"{where}: {path}")
        flat[path] = value
    return flat


def check_value(value: Any, where: str) -> None:
    is_nan = isinstance(value, float) and math.isnan(value)
    require(not is_nan, f"{where} = nan: no recipe key can be nan; use inf where a key can be turned off")
    if isinstance(value, (list, tuple)):
        for inner in value:
            is_table = isinstance(inner, Mapping)
            require(not is_table, f"{where}: give keys such as stages.0.steps, not a list of tables")
            check_value(inner, where)
