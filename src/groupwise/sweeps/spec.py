"""The sweep file: what to vary around which recipe, as a person wrote it. TOML → one frozen, validated `SweepSpec`.

Contract: every mistake that the file alone shows is a `ConfigError` that names the key, the value and the fix. Whether
the recipes that come of it are valid is asked in `arms`. Nothing here reads the recipe or runs anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from groupwise.config import RECIPES, ConfigError, build
from groupwise.config.recipe import find_shipped, parse_toml, read_text

SWEEPS = RECIPES / "sweeps"
"""The sweeps that come with groupwise."""
HELD_OUT = "eval/pass_at_1"
"""The objective that is read from evaluations: the last one of the run."""
BASE = "base"
"""The name of the arm that is the recipe itself."""
PLAIN_LIST = "arms"
"""The name of the knob that a plain list of arms makes."""
MAX_ARMS = 10_000

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,47}")


def check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where} = {name!r}: 1 to 48 letters, digits, '.', '_' or '-', not starting with '.'")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _check_keys(key: str, keys: tuple[str, ...], where: str) -> None:
    _require(bool(key) != bool(keys), f"{where}: give key (one recipe key) or keys (several that move together)")
    for one in (key, *keys):
        _require(
            one != "seed", f"{where}: seed is moved by the sweep itself; list the seeds in `seeds` at the top instead"
        )
    _require(len(set(keys)) == len(keys), f"{where}: keys = {list(keys)}: one is twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobSpec:
    name: str
    """Names its arms and their folders."""
    title: str = ""
    """What people read, as in "KL coefficient"; by default the name."""
    key: str = ""
    """A recipe key, as in stages.0.kl.coefficient …"""
    keys: tuple[str, ...] = ()
    """… or several that move together."""
    values: tuple[Any, ...]
    """One arm each. With several keys: a plain value for all of them, a list with one for each, or a table."""
    labels: tuple[str, ...] = ()
    """What people read for each value; by default the value."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Keys that all arms of this knob have besides."""

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        _check_keys(self.key, self.keys, self.name)
        _require(bool(self.values), f"{self.name}: values = []: list at least one")
        _require(
            len(self.labels) in (0, len(self.values)),
            f"{self.name}: {len(self.labels)} labels for {len(self.values)} values; give one for each, or none",
        )

    @property
    def all_keys(self) -> tuple[str, ...]:
        return self.keys or (self.key,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec:
    name: str
    label: str = ""
    """What people read; by default the name."""
    recipe: str = ""
    """Another recipe than the sweep's, which this arm begins with."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """The recipe keys that make this arm; empty is the recipe itself."""

    def __post_init__(self) -> None:
        check_name(self.name, "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSpec:
    name: str
    key: str = ""
    keys: tuple[str, ...] = ()
    """Several keys that all get the value."""
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    """Drawn evenly in the logarithm."""
    step: int | float | None = None
    """The grid from low on. Whole numbers for low, high and step give whole numbers."""
    choices: tuple[Any, ...] = ()
    """Instead of low and high: one of these."""

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        _check_keys(self.key, self.keys, self.name)
        if self.choices:
            given = [key for key in ("low", "high", "step") if getattr(self, key) is not None]
            _require(not given and not self.log, f"{self.name}: choices stand alone; drop {(*given, 'log')[0]}")
            plain = (str, int, float, bool)
            for choice in self.choices:
                _require(isinstance(choice, plain), f"{self.name}: choices: {choice!r} is no plain value")
            return
        if self.low is None or self.high is None:
            raise ConfigError(f"{self.name}: give low and high, or choices")
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        _require(finite and self.low < self.high, f"{self.name}: low = {self.low:g} must be below high = {self.high:g}")
        _require(not self.log or self.low > 0, f"{self.name}: low = {self.low:g}: log = true needs it above 0")
        _require(self.step is None or self.step > 0, f"{self.name}: step = {self.step}: must be above 0")
        _require(self.step is None or not self.log, f"{self.name}: step and log do not go together; drop one")

    @property
    def all_keys(self) -> tuple[str, ...]:
        return self.keys or (self.key,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    trials: int
    """How many sets of values to try; each is an arm with all seeds."""
    seed: int = 0
    """Of Optuna's sampler."""
    objective: str = HELD_OUT
    """The last held-out pass@1, or a metric of the steps: its mean over the last tenth of them, but at least three."""
    direction: Literal["maximize", "minimize"] = "maximize"
    ranges: tuple[RangeSpec, ...]

    def __post_init__(self) -> None:
        _require(1 <= self.trials <= MAX_ARMS, f"trials = {self.trials}: must be from 1 to {MAX_ARMS}")
        _require(self.seed >= 0, f"seed = {self.seed}: must not be negative")
        _require(bool(self.ranges), "ranges = []: add a [[search.ranges]] table with a name, a key, low and high")
        check_unique([one.name for one in self.ranges], "ranges")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    name: str
    """Names the folder."""
    recipe: str
    """One of `groupwise recipes`, or a TOML file: seen from the sweep file, else from the working directory."""
    description: str = ""
    seeds: tuple[int, ...] = (0,)
    """Each arm is run once with each."""
    jobs: int | str = 1
    """Runs at once; "auto": as many as fit."""
    keep_checkpoints: bool = True
    """false: those of a run are removed once it has finished. What is measured stays."""
    mode: Literal["each", "grid"] = "each"
    """Of knobs: one at a time around the recipe, or all combinations."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Recipe keys that all arms have."""
    knobs: tuple[KnobSpec, ...] = ()
    arms: tuple[ArmSpec, ...] = ()
    search: SearchSpec | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        given = [key for key in ("knobs", "arms", "search") if getattr(self, key)]
        _require(len(given) > 0, "nothing to vary: add [[knobs]], [[arms]] or a [search] table")
        _require(len(given) < 2, f"{' and '.join(given)}: a sweep has one of [[knobs]], [[arms]] and [search]")
        _require(self.mode == "each" or bool(self.knobs), f"mode = {self.mode!r}: is for [[knobs]]")
        _require(bool(self.seeds), "seeds = []: list at least one, as in [0, 1, 2]")
        _require(min(self.seeds) >= 0, f"seeds = {list(self.seeds)}: must not be negative")
        _require(len(frozenset(self.seeds)) == len(self.seeds), f"seeds = {list(self.seeds)}: one is twice")
        check_jobs(self.jobs, "jobs")
        check_unique([knob.name for knob in self.knobs], "knobs")
        check_unique([arm.name for arm in self.arms], "arms")


def check_unique(names: list[str], where: str) -> None:
    """Also where a file system does not tell capitals apart."""
    folded = [name.casefold() for name in names]
    for name in names:
        _require(folded.count(name.casefold()) == 1, f"{where}: two are called {name!r}; rename one")


def check_jobs(jobs: int | str, where: str) -> None:
    is_count = isinstance(jobs, int) and jobs >= 1
    _require(is_count or jobs == "auto", f'{where} = {jobs!r}: expected a number from 1 on, or "auto"')


def find_sweep(given: str) -> Path:
    """A file as given, or one of the sweeps that come with groupwise."""
    return find_shipped(given, SWEEPS, "sweep")


def load_spec(path: Path) -> SweepSpec:
    shipped = ", ".join(sorted(sweep.stem for sweep in SWEEPS.glob("*.toml")))
    return parse_spec(read_text(path, "sweep", f"those that come with groupwise: {shipped}"), origin=str(path))


def parse_spec(text: str, origin: str = "sweep") -> SweepSpec:
    return build(SweepSpec, parse_toml(text, origin), "")


def flatten(table: Mapping[str, Any], where: str = "set") -> dict[str, Any]:
    """{"stages": {"0": {"steps": 3}}} and {"stages.0.steps": 3} → {"stages.0.steps": 3}.

    A table inside is a path, so that what it does not name stays as the recipe has it; an empty one is a value.
    """
    flat: dict[str, Any] = {}

    def visit(value: Any, path: str) -> None:
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                visit(inner, f"{path}.{key}")
            return
        _require(path not in flat, f"{where}: {path} is set twice")
        _require(path != "seed", f"{where}: seed is moved by the sweep itself; list the seeds in `seeds` instead")
        check_value(value, f"{where}: {path}")
        flat[path] = value

    for key, value in table.items():
        visit(value, str(key))
    return flat


def check_value(value: Any, where: str) -> None:
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{where} = nan: no recipe key can be that; inf is off, where a key can be off")
    if isinstance(value, (list, tuple)):
        for inner in value:
            _require(not isinstance(inner, Mapping), f"{where}: a list of tables cannot be set; name the keys inside")
            check_value(inner, where)
