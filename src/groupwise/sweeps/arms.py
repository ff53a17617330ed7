"""Turns a sweep file into arms, each a recipe that is validated before anything runs.

Contract: `resolve` returns arms with unique names that are safe as folder names; no two arms are the same recipe. If
knobs vary one at a time, a value that gives an existing recipe (that of the base or of another knob) makes no second
arm: the existing arm belongs to both knobs. Otherwise two equal arms are an error that names both.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.config import ConfigError, apply_override, dump_toml, find_recipe, to_table
from groupwise.config.recipe import parse_override, parse_toml, read_text
from groupwise.sweeps.spec import MAX_ARMS, PLAIN_LIST, KnobSpec, SweepSpec, check_unique, check_value, flatten
from groupwise.sweeps.sweep_records import BASE_ARM, Arm, Knob, Sweep, Value

_MAX_NAME = 64


def resolve(spec: SweepSpec, spec_folder: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Validate all arms. `overrides`: from the command line, for all arms, like the `set` of the sweep file."""
    for override in overrides:
        if parse_override(override)[0] == "seed":
            raise ConfigError(f"--set {override}: the sweep sets the seed; list the seeds in `seeds`")
    common = (*Arm("", settings=flatten(spec.set)).overrides, *overrides)
    bare = Sweep(spec.name, spec.recipe, _recipe_text(spec.recipe, spec_folder, common), spec.seeds, (), ())
    identity = partial(_identity, bare)
    base = identity(BASE_ARM)  # also checks the recipe of a search
    if spec.search is not None:
        return bare
    if spec.knobs and spec.mode == "each":
        knobs, arms = _one_at_a_time(spec, identity, base)
    else:
        knob = _listed(spec, spec_folder, common) if spec.arms else _combined(spec)
        knob = _with_distinct_arms(knob, identity, base)
        knobs, arms = (knob,), knob.arms
    if len(arms) > MAX_ARMS:
        raise ConfigError(f"more than {MAX_ARMS} arms; use fewer values, or a [search] with a number of trials")
    check_unique([arm.name for arm in arms], "arms")
    return replace(bare, knobs=knobs, arms=arms)


def _recipe_text(given: str, spec_folder: Path, overrides: Sequence[str]) -> str:
    """Return the TOML of a recipe with the overrides that all arms have."""
    beside = spec_folder / given
    try:
        path = beside if beside.suffix == ".toml" and beside.exists() else find_recipe(given)
        hint = "give a path relative to the sweep file or to the working directory"
        table = parse_toml(read_text(path, "recipe", hint), str(path))
        for override in overrides:
            apply_override(table, override)
    except ConfigError as error:
        raise ConfigError(f"recipe = {given!r}: {error}") from None
    return dump_toml(table)


def _identity(sweep: Sweep, arm: Arm) -> str:
    """Return a text that equal recipes share. The name of a run does not make it another run."""
    table = to_table(sweep.recipe(arm))
    shown = {key: value for key, value in table.items() if key not in ("name", "description")}
    return json.dumps(shown, sort_keys=True, default=str)


def _one_at_a_time(
    spec: SweepSpec, identity: Callable[[Arm], str], base: str
) -> tuple[tuple[Knob, ...], tuple[Arm, ...]]:
    first = {base: BASE_ARM}
    arms: dict[str, Arm] = {}
    knobs = []
    for knob in spec.knobs:
        own: dict[str, Arm] = {}
        for made in arms_of(knob):
            arm = first.setdefault(identity(made), made)
            if arm.name in own:
                raise ConfigError(
                    f"knobs: {knob.name}: {own[arm.name].label} and {made.label} are the same recipe; drop one"
                )
            own[arm.name] = replace(arm, label=made.label, value=made.value)
            if arms.setdefault(arm.name, arm) is not arm:
                raise ConfigError(f"knobs: two arms would be called {arm.name!r}; rename the knob {knob.name!r}")
        knobs.append(Knob(knob.name, knob.all_keys, tuple(own.values()), knob.title))
    return tuple(knobs), tuple(sorted(arms.values(), key=lambda arm: not arm.is_base))


def _combined(spec: SweepSpec) -> Knob:
    """Return all combinations of the knobs as one knob."""
    total = math.prod(len(knob.values) for knob in spec.knobs)
    if total > MAX_ARMS:
        raise ConfigError(f'mode = "grid": {total} combinations, the maximum is {MAX_ARMS}; use fewer values')
    arms = []
    for combination in itertools.product(*(arms_of(knob) for knob in spec.knobs)):
        settings: dict[str, Any] = {}
        for turn in combination:
            clash = [key for key in turn.settings if key in settings and settings[key] != turn.settings[key]]
            if clash:
                raise ConfigError(f'mode = "grid": two knobs set {clash[0]} to different values; drop one of them')
            settings |= turn.settings
        label = ", ".join(f"{turn.knob} {turn.label}" for turn in combination)
        arms.append(Arm(name_of(combination), label, value=label, settings=settings))
    keys = tuple(dict.fromkeys(key for knob in spec.knobs for key in knob.all_keys))
    return Knob(" × ".join(knob.name for knob in spec.knobs), keys, tuple(arms))


def _listed(spec: SweepSpec, spec_folder: Path, common: Sequence[str]) -> Knob:
    """Return the listed arms as one knob."""
    arms = []
    for arm in spec.arms:
        label, text = arm.label or arm.name, ""
        if arm.recipe:
            try:
                text = _recipe_text(arm.recipe, spec_folder, common)
            except ConfigError as error:
                raise ConfigError(f"arms: {arm.name}: {error}") from None
        settings = flatten(arm.set, f"arms: {arm.name}")
        arms.append(Arm(arm.name, label, "", label, settings, recipe_path=arm.recipe, recipe_text=text))
    return Knob(PLAIN_LIST, tuple(dict.fromkeys(key for arm in arms for key in arm.settings)), tuple(arms))


def _with_distinct_arms(knob: Knob, identity: Callable[[Arm], str], base: str) -> Knob:
    """Check that no two arms are the same recipe, and mark the one that is the base recipe."""
    first: dict[str, Arm] = {}
    for arm in knob.arms:
        same = first.setdefault(identity(arm), arm)
        if same is not arm:
            raise ConfigError(f"arms {same.name!r} and {arm.name!r} are the same recipe; drop one")
    arms = tuple(replace(arm, knob=knob.name, is_base=recipe == base) for recipe, arm in first.items())
    return replace(knob, arms=arms)


def arms_of(knob: KnobSpec) -> list[Arm]:
    """Return the knob at each of its values."""
    extra = flatten(knob.set, f"knobs: {knob.name}: set")
    arms = []
    for index, value in enumerate(knob.values):
        label = knob.labels[index] if knob.labels else label_of(value)
        arm = Arm("", label, knob.name, plain_value(value, label), extra | _settings_of(knob, value))
        arms.append(replace(arm, name=name_of([arm])))
    return arms


def _settings_of(knob: KnobSpec, value: Any) -> dict[str, Any]:
    where, keys = f"knobs: {knob.name}: values", knob.all_keys
    if isinstance(value, Mapping):
        given = flatten(value, where)
        if set(given) != set(keys):
            raise ConfigError(f"{where}: {sorted(given)} are not the keys of the knob; give {sorted(keys)}")
        return given
    check_value(value, where)
    if len(keys) > 1 and isinstance(value, list):
        if len(value) != len(keys):
            raise ConfigError(f"{where}: {value!r} has {len(value)} values for {len(keys)} keys; give one for each")
        return dict(zip(keys, value, strict=True))
    return dict.fromkeys(keys, value)


def plain_value(value: Any, label: str) -> Value:
    """Return a number unchanged, so that it can be placed on an axis, and anything else as text."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, (int, float, str)) else label


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


def name_of(arms: Sequence[Arm]) -> str:
    """Return a name that is safe as a folder: kl-0.02, or kl-0.02_epochs-4 for several knobs."""
    text = "_".join(f"{arm.knob}-{_slug(arm)}" for arm in arms)
    if len(text) <= _MAX_NAME:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: _MAX_NAME - 9]}-{digest}"


def _slug(arm: Arm) -> str:
    value = arm.value
    text = label_of(value) if isinstance(value, (int, float)) else value
    text = re.sub(r"[^A-Za-z0-9.]+", "-", text.replace("∞", "inf")).strip("-.")
    if isinstance(value, (int, float)) and value < 0:
        return f"minus-{text}"
    # Labels in other scripts leave nothing: use a hash of the label.
    return text or hashlib.sha256(arm.label.encode(errors="replace")).hexdigest()[:8]
