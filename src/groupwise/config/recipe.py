"""A TOML file → one frozen, validated `Recipe`; and back to TOML, with a fingerprint.

Order of precedence: `--set a.b=c`, then the file, then the algorithm's preset, then what the engine needs, then the
schema's defaults.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from groupwise.config.build import ConfigError, build, nearest, to_table
from groupwise.config.presets import ALGORITHMS, ENGINE_DEFAULTS
from groupwise.config.schema import Recipe
from groupwise.config.stages import RlStage, SftStage

# What may differ between two runs that must give the same numbers.
_NOT_IN_FINGERPRINT = (
    *("name", "description", "logging", "verifier.workers"),
    *("engine.memory_share", "engine.url", "engine.weights_folder", "engine.timeout_s"),
)

RECIPES = Path(__file__).parents[1] / "recipes"
"""The recipes that come with groupwise."""


def find_recipe(given: str) -> Path:
    """A file as given, or one of the recipes that come with groupwise."""
    return find_shipped(given, RECIPES, "recipe")


def find_shipped(given: str, folder: Path, kind: str) -> Path:
    path = Path(given)
    if path.suffix == ".toml" or path.is_file():
        return path
    known = {shipped.stem: shipped for shipped in folder.glob("*.toml")}
    if given not in known:
        raise ConfigError(f"no {kind} named {given!r}; {nearest(given, known)}")
    return known[given]


def load_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read, override, validate. Relative paths inside a recipe are relative to the working directory, as typed."""
    hint = "`groupwise recipes` lists the ones that come with groupwise"
    return parse_recipe(read_text(path, "recipe", hint), overrides, origin=str(path))


def read_text(path: Path, kind: str, hint: str) -> str:
    """`hint`: what to do where there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no {kind} at {path}; {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {kind} {path}: {error}") from None


def parse_toml(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin} is not valid TOML: {error}") from None


def parse_recipe(text: str, overrides: Iterable[str] = (), origin: str = "recipe") -> Recipe:
    table = parse_toml(text, origin)
    for override in overrides:
        apply_override(table, override)
    return make_recipe(table)


def make_recipe(table: Mapping[str, Any]) -> Recipe:
    """Validate a recipe given as plain values."""
    table = dict(table)
    stages = table.get("stages")
    if not isinstance(stages, list) or not stages:
        raise ConfigError("stages: a recipe needs at least one [[stages]] table with an algorithm and steps")
    # Which keys a stage has depends on its algorithm, so stages are built one by one and put back as objects.
    engine = table.get("engine")
    defaults = ENGINE_DEFAULTS.get(str(engine.get("name")), {}) if isinstance(engine, Mapping) else {}
    table["stages"] = [_make_stage(stage, index, defaults) for index, stage in enumerate(stages)]
    recipe = build(Recipe, table, "")
    _check_name(recipe.name)
    return dataclasses.replace(recipe, stages=_with_unique_names(recipe.stages))


def _make_stage(table: Any, index: int, engine_defaults: Mapping[str, Any]) -> RlStage | SftStage:
    where = f"stages.{index}"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: expected a table, got {table!r}")
    algorithm = table.get("algorithm")
    if algorithm is None:
        raise ConfigError(f"{where}.algorithm: missing; one of {', '.join([*ALGORITHMS, 'sft'])}")
    algorithm = str(algorithm)
    if algorithm == "sft":
        return build(SftStage, table, where)
    if algorithm not in ALGORITHMS:
        names = [*ALGORITHMS, "sft"]
        raise ConfigError(f"{where}.algorithm = {algorithm!r}: {nearest(algorithm, names)}")
    return build(RlStage, _merge(_merge(engine_defaults, ALGORITHMS[algorithm]), table), where)


def _with_unique_names(stages: tuple[RlStage | SftStage, ...]) -> tuple[RlStage | SftStage, ...]:
    """grpo, sft, grpo → grpo-1, sft, grpo-2."""
    names = [stage.name or stage.algorithm for stage in stages]
    numbered = [
        f"{name}-{names[: index + 1].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]
    for name in numbered:
        # Two stages of one name would draw the same random numbers.
        if numbered.count(name) > 1:
            raise ConfigError(f"stages: two are called {name!r} (repeated names are numbered); rename one")
    return tuple(dataclasses.replace(stage, name=name) for stage, name in zip(stages, numbered, strict=True))


def _merge(defaults: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(defaults))
    for key, value in table.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,48}", name) or name.startswith("."):
        raise ConfigError(f"name = {name!r}: 1 to 48 letters, digits, '.', '_' or '-', not starting with '.'")


def apply_override(table: dict[str, Any], override: str) -> None:
    """`stages.0.optimizer.learning_rate=1e-5`: the value is read as TOML, or as a string where it is not TOML."""
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {override!r}: write it as key=value, for example seed=1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    set_key(table, key.strip(), value)


def set_key(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key such as `stages.0.optimizer.learning_rate` in a recipe's table."""
    path = key.split(".")
    node: Any = table
    for depth, part in enumerate(path[:-1]):
        node = _descend(node, part, ".".join(path[: depth + 1]))
    if not isinstance(node, dict):
        raise ConfigError(f"--set {key}: name a key inside the stage, such as stages.0.steps")
    node[path[-1]] = value


def _descend(node: Any, part: str, where: str) -> Any:
    if isinstance(node, list):
        tables = [entry for entry in node if isinstance(entry, dict)]
        if len(tables) < len(node):
            raise ConfigError(f"--set {where}: stages must be tables, and one is not")
        # By number, by its own name, or by its algorithm where no other stage has it.
        by_name = {str(index): entry for index, entry in enumerate(tables)}
        algorithms = [entry.get("algorithm") for entry in tables]
        for entry in tables:
            name = entry.get("name") or entry.get("algorithm")
            if entry.get("name") or algorithms.count(name) == 1:
                by_name.setdefault(str(name), entry)
        if part not in by_name:
            raise ConfigError(f"--set {where}: no such stage; known: {', '.join(by_name)}")
        return by_name[part]
    if not isinstance(node, dict):
        raise ConfigError(f"--set {where}: is inside {node!r}, which is not a table")
    child = node.setdefault(part, {})
    if not isinstance(child, (dict, list)):
        raise ConfigError(f"--set {where}: is {child!r}, not a table")
    return child


def fingerprint(recipe: Recipe) -> str:
    """16 hex digits of everything in the recipe that can move a number."""
    table = to_table(recipe)
    for key in _NOT_IN_FINGERPRINT:
        *path, last = key.split(".")
        node = table
        for part in path:
            node = node[part]
        del node[last]
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()[:16]


def dump_toml(table: Mapping[str, Any]) -> str:
    """The resolved recipe as TOML that `parse_recipe` reads back to the same object."""
    lines: list[str] = []
    _dump_table(table, "", lines)
    return "\n".join(lines).strip() + "\n"


def _dump_table(table: Mapping[str, Any], where: str, lines: list[str]) -> None:
    nested = {key: value for key, value in table.items() if _is_table(value)}
    for key, value in table.items():
        if key not in nested:
            lines.append(f"{_dump_key(key)} = {_dump_value(value)}")
    for key, value in nested.items():
        path = f"{where}.{_dump_key(key)}" if where else _dump_key(key)
        if isinstance(value, Mapping):
            lines.extend(["", f"[{path}]"])
            _dump_table(value, path, lines)
        else:
            for entry in value:
                lines.extend(["", f"[[{path}]]"])
                _dump_table(entry, path, lines)


def _is_table(value: Any) -> bool:
    is_list_of_tables = isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping) or is_list_of_tables


def _dump_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _dump_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(_dump_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_dump_key(key)} = {_dump_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    # TOML's basic strings take JSON's escapes, but not its surrogate pairs; and TOML refuses a bare DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
