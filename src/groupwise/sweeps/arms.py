"""From a sweep file to the arms that it asks for, each a recipe that was validated before anything runs.

Contract: `resolve` returns arms with unique, folder-safe names, of which no two are the same recipe. Where knobs are
turned one at a time, a value that gives a recipe that is there already (the base's, or another knob's) does not make a
second arm: the first one stands in both knobs. Anywhere else two equal arms are an error that names both.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from groupwise.config import (
    ConfigError,
    Recipe,
    apply_override,
    dump_toml,
    find_recipe,
    parse_recipe,
    to_table,
)
from groupwise.config.recipe import parse_toml, read_text
from groupwise.sweeps.spec import BASE, MAX_ARMS, PLAIN_LIST, KnobSpec, SweepSpec, check_unique, check_value, flatten

_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    label: str
    knob: str
    """The knob that made it; "" of the base and of arms that no single knob made."""
    value: int | float | str
    """What the knob is turned to; "" where no single knob is."""
    settings: Mapping[str, Any]
    """Recipe key → value, beyond what all arms have."""
    is_base: bool = False
    recipe_path: str = ""
    recipe_text: str = ""
    """Of an arm with a recipe of its own, as in `Sweep`; "" of all others."""

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(f"{key}={toml_value(value)}" for key, value in self.settings.items())


BASE_ARM = Arm(BASE, BASE, "", "", {}, is_base=True)
"""The recipe itself."""


@dataclass(frozen=True, slots=True)
class Knob:
    name: str
    keys: tuple[str, ...]
    arms: tuple[str, ...]
    """Names, in the order of the file."""
    labels: tuple[str, ...]
    """Of each arm in this knob: one that stands in several knobs reads differently in each."""
    values: tuple[int | float | str, ...]
    title: str = ""
    """What people read; "" is the name."""


@dataclass(frozen=True, slots=True)
class Sweep:
    name: str
    recipe_path: str
    recipe_text: str
    """TOML, with what all arms have, and not resolved: an arm that sets the algorithm gets that algorithm's preset."""
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
    """As `--set key=VALUE` reads it back."""
    if isinstance(value, Mapping):
        return "{}"  # `flatten` leaves no other table
    return dump_toml({"value": value}).removeprefix("value = ").rstrip("\n")


def json_value(value: Any) -> Any:
    """As sweep.json holds it: JSON has no infinity and no dates."""
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, (list, tuple)):
        return [json_value(inner) for inner in value]
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else value


def resolve(spec: SweepSpec, spec_folder: Path, overrides: Sequence[str] = ()) -> Sweep:
    """`overrides`: of the command line; they stand with the `set` that all arms have."""
    for override in overrides:
        if override.partition("=")[0].strip() == "seed":
            raise ConfigError(f"--set {override}: seeds are moved by the sweep; list them in `seeds`")
    common = (*Arm("", "", "", "", flatten(spec.set)).overrides, *overrides)
    bare = Sweep(spec.name, spec.recipe, _recipe_text(spec.recipe, spec_folder, common), spec.seeds, (), ())
    recipes = _Recipes(bare)
    if spec.search is not None:
        return bare
    if spec.arms:
        knobs, arms = _listed(spec, recipes, lambda recipe: _recipe_text(recipe, spec_folder, common))
    elif spec.mode == "grid":
        knobs, arms = _combined(spec, recipes)
    else:
        knobs, arms = _one_at_a_time(spec, recipes)
    check_unique([arm.name for arm in arms], "arms")
    return replace(bare, knobs=knobs, arms=arms)


def _recipe_text(given: str, spec_folder: Path, overrides: Sequence[str]) -> str:
    """TOML of a recipe with what all arms have."""
    try:
        path = _recipe_path(given, spec_folder)
        hint = "name a file seen from the sweep file or from the working directory"
        table = parse_toml(read_text(path, "recipe", hint), str(path))
        for override in overrides:
            apply_override(table, override)
    except ConfigError as error:
        raise ConfigError(f"recipe = {given!r}: {error}") from None
    return dump_toml(table)


def _recipe_path(given: str, spec_folder: Path) -> Path:
    beside = spec_folder / given
    if Path(given).suffix == ".toml" and beside.exists():
        return beside
    return find_recipe(given)


@dataclass(slots=True)
class _Recipes:
    """What each arm comes to, to tell equal ones."""

    sweep: Sweep
    base_identity: str = ""
    found: dict[str, Arm] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.base_identity = self._identity(BASE_ARM)

    def known(self, arm: Arm) -> Arm | None:
        """The arm that is the same recipe, if one is here; else this one is from now on."""
        identity = self._identity(arm)
        if identity in self.found:
            return self.found[identity]
        if len(self.found) >= MAX_ARMS:
            raise ConfigError(f"more than {MAX_ARMS} arms; take fewer values, or a [search] with so many trials")
        self.found[identity] = arm
        return None

    def is_base(self, arm: Arm) -> bool:
        return self._identity(arm) == self.base_identity

    def _identity(self, arm: Arm) -> str:
        table = to_table(self.sweep.recipe(arm))
        # What a run is called makes it no other run.
        shown = {key: value for key, value in table.items() if key not in ("name", "description")}
        return json.dumps(shown, sort_keys=True, default=str)


def _one_at_a_time(spec: SweepSpec, recipes: _Recipes) -> tuple[tuple[Knob, ...], tuple[Arm, ...]]:
    arms: dict[str, Arm] = {}
    knobs = []
    for knob in spec.knobs:
        members: dict[str, Turn] = {}
        for turn in turns_of(knob):
            made = Arm(name_of([turn]), turn.label, knob.name, turn.value, turn.settings)
            if recipes.is_base(made):
                made = BASE_ARM
            arm = recipes.known(made) or made
            if arm.name in members:
                raise ConfigError(
                    f"knobs: {knob.name}: {members[arm.name].label} and {turn.label} are the same recipe; drop one"
                )
            members[arm.name] = turn
            if arms.setdefault(arm.name, arm) is not arm:
                raise ConfigError(f"knobs: two arms would be called {arm.name!r}; rename the knob {knob.name!r}")
        turns = members.values()
        labels, values = tuple(turn.label for turn in turns), tuple(turn.value for turn in turns)
        knobs.append(Knob(knob.name, knob.all_keys, tuple(members), labels, values, knob.title))
    ordered = sorted(arms.values(), key=lambda arm: not arm.is_base)
    return tuple(knobs), tuple(ordered)


def _combined(spec: SweepSpec, recipes: _Recipes) -> tuple[tuple[Knob, ...], tuple[Arm, ...]]:
    total = math.prod(len(knob.values) for knob in spec.knobs)
    if total > MAX_ARMS:
        raise ConfigError(f'mode = "grid": {total} combinations, and {MAX_ARMS} is the most; take fewer values')
    arms = []
    for combination in itertools.product(*(turns_of(knob) for knob in spec.knobs)):
        settings: dict[str, Any] = {}
        for turn in combination:
            clash = [key for key in turn.settings if key in settings and settings[key] != turn.settings[key]]
            if clash:
                raise ConfigError(f'mode = "grid": two knobs set {clash[0]}, to different values; leave one out')
            settings |= turn.settings
        label = ", ".join(f"{turn.knob} {turn.label}" for turn in combination)
        arms.append(Arm(name_of(combination), label, "", label, settings))
    keys = tuple(dict.fromkeys(key for knob in spec.knobs for key in knob.all_keys))
    return _as_one_knob(" × ".join(knob.name for knob in spec.knobs), keys, arms, recipes)


def _listed(
    spec: SweepSpec, recipes: _Recipes, text_of: Callable[[str], str]
) -> tuple[tuple[Knob, ...], tuple[Arm, ...]]:
    arms = []
    for arm in spec.arms:
        label, text = arm.label or arm.name, ""
        if arm.recipe:
            try:
                text = text_of(arm.recipe)
            except ConfigError as error:
                raise ConfigError(f"arms: {arm.name}: {error}") from None
        settings = flatten(arm.set, f"arms: {arm.name}")
        arms.append(Arm(arm.name, label, "", label, settings, recipe_path=arm.recipe, recipe_text=text))
    keys = tuple(dict.fromkeys(key for arm in arms for key in arm.settings))
    return _as_one_knob(PLAIN_LIST, keys, arms, recipes)


def _as_one_knob(
    name: str, keys: tuple[str, ...], arms: Sequence[Arm], recipes: _Recipes
) -> tuple[tuple[Knob, ...], tuple[Arm, ...]]:
    for arm in arms:
        same = recipes.known(arm)
        if same is not None:
            raise ConfigError(f"arms {same.name!r} and {arm.name!r} are the same recipe; drop one")
    made = tuple(replace(arm, knob=name, is_base=recipes.is_base(arm)) for arm in arms)
    names, labels = tuple(arm.name for arm in made), tuple(arm.label for arm in made)
    return (Knob(name, keys, names, labels, tuple(arm.value for arm in made)),), made


@dataclass(frozen=True, slots=True)
class Turn:
    """A knob at one of its values."""

    knob: str
    label: str
    value: int | float | str
    settings: Mapping[str, Any]


def turns_of(knob: KnobSpec) -> list[Turn]:
    besides = flatten(knob.set, f"knobs: {knob.name}: set")
    turns = []
    for index, value in enumerate(knob.values):
        settings = _settings_of(knob, value)
        label = knob.labels[index] if knob.labels else label_of(value)
        turns.append(Turn(knob.name, label, plain_value(value, label), besides | settings))
    return turns


def _settings_of(knob: KnobSpec, value: Any) -> dict[str, Any]:
    where, keys = f"knobs: {knob.name}: values", knob.all_keys
    if isinstance(value, Mapping):
        given = flatten(value, where)
        if set(given) != set(keys):
            raise ConfigError(f"{where}: {sorted(given)} are not the keys of the knob, {sorted(keys)}")
        return given
    check_value(value, where)
    if len(keys) > 1 and isinstance(value, list):
        if len(value) != len(keys):
            raise ConfigError(f"{where}: {value!r} has {len(value)} values for {len(keys)} keys; give one for each")
        return dict(zip(keys, value, strict=True))
    return dict.fromkeys(keys, value)


def plain_value(value: Any, label: str) -> int | float | str:
    """A number where it is one, so that it can be an axis; else a text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return value
    return value if isinstance(value, str) else label


def label_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key.rpartition('.')[2]} {label_of(inner)}" for key, inner in flatten(value).items())
    if isinstance(value, (list, tuple)):
        return " / ".join(label_of(inner) for inner in value)
    return str(value)


def name_of(turns: Sequence[Turn]) -> str:
    """Safe as a folder: kl-0.02; of several knobs kl-0.02_epochs-4."""
    text = "_".join(f"{turn.knob}-{_slug(turn)}" for turn in turns)
    if len(text) <= _MAX_NAME:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: _MAX_NAME - 9]}-{digest}"


def _slug(turn: Turn) -> str:
    value = turn.value
    text = label_of(value) if isinstance(value, (int, float)) else value
    text = re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("∞", "inf")).strip("-.")
    if isinstance(value, (int, float)) and value < 0:
        return f"minus-{text}"
    # Other letters leave nothing: told apart by what they were.
    return text or hashlib.sha256(turn.label.encode(errors="replace")).hexdigest()[:8]
