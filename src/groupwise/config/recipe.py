"""Reads a TOML file into one frozen, validated `Recipe`; writes it back to TOML; computes its fingerprint.

Order of precedence: `--set a.b=c`, the file, the algorithm's preset, the engine's defaults, the schema's defaults.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.base.outside import MAX_DEPTH, file_text, toml_table
from groupwise.config.build import ConfigError, UnknownKey, build, key_paths, nearest, require, shown, to_table
from groupwise.config.presets import ALGORITHMS, ENGINE_DEFAULTS
from groupwise.config.schema import Recipe
from groupwise.config.stages import RlStage, SftStage
from groupwise.config.synonyms import SYNONYMS

# Keys that may differ between two runs that must give the same numbers.
_NOT_IN_FINGERPRINT = (
    *("name", "description", "logging", "verifier.workers"),
    *("engine.memory_share", "engine.url", "engine.weights_folder", "engine.timeout_s"),
)

# Keys of RL stages that older versions did not have. At their defaults they change no number, and a run that an older
# version started can be resumed.
_NEW_IN_STAGES = (
    *("loss.normalize_batch", "loss.gate_positive", "loss.gate_negative", "loss.pull", "loss.off_policy_mask"),
    *("loss.importance_level", "loss.importance_floor", "loss.router_balance", "kl.unbiased", "entropy"),
)

MAX_RECIPE_BYTES = 1 << 20
MAX_PLACES = 3
"""Of a key that is elsewhere in the recipe: more of them are no help."""

RECIPES = Path(__file__).parents[1] / "recipes"
"""The recipes that come with groupwise."""


def find_recipe(given: str) -> Path:
    """Return the path of a recipe: a file, or the name of one that comes with groupwise."""
    return find_shipped(given, RECIPES, "recipe")


def find_shipped(given: str, folder: Path, kind: str) -> Path:
    path = Path(given)
    if path.suffix == ".toml" or path.is_file():
        return path
    known = {shipped.stem: shipped for shipped in folder.glob("*.toml")}
    if given in known:
        return known[given]
    if given and path.exists():
        return path  # a folder, or a device: reading it says so
    raise ConfigError(f"no {kind} named {shown(given)}; {nearest(given, known)}")


def load_recipe(path: Path, overrides: Iterable[str] = (), settings: Mapping[str, Any] | None = None) -> Recipe:
    """Read, override and validate a recipe. Paths in it are relative to the working directory.

    Overrides are texts such as "seed=1"; settings are dotted keys with their values.
    """
    hint = "`groupwise recipes` lists the ones that come with groupwise"
    return parse_recipe(read_text(path, "recipe", hint), overrides, settings, str(path))


def read_text(path: Path, kind: str, hint: str) -> str:
    """Read a text file of the given kind; `hint` says what to do when it does not exist."""
    try:
        return file_text(path, max_bytes=MAX_RECIPE_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"no {kind} at {path}; {hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the {kind} {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the {kind} {str(path)!r}: {error}") from None


def parse_toml(text: str, origin: str) -> dict[str, Any]:
    require(text.strip() != "", f"{origin} is empty")
    try:
        return toml_table(text)
    except ValueError as error:
        why = str(error).replace("Cannot overwrite a value", "a key is given twice")
        raise ConfigError(f"{origin} is not valid TOML: {why}") from None


def parse_recipe(
    text: str, overrides: Iterable[str] = (), settings: Mapping[str, Any] | None = None, origin: str = "recipe"
) -> Recipe:
    table = parse_toml(text, origin)
    for override in overrides:
        apply_override(table, override)
    for key, value in (settings or {}).items():
        set_key(table, key, value)
    return make_recipe(table)


def make_recipe(table: Mapping[str, Any]) -> Recipe:
    """Validate a recipe given as plain values."""
    table = dict(table)
    stages = table.get("stages")
    if not isinstance(stages, list) or not stages:
        raise ConfigError("stages: a recipe needs at least one [[stages]] table with an algorithm and steps")
    # The keys of a stage depend on its algorithm, so stages are built one by one and put back as objects.
    engine = table.get("engine")
    defaults = ENGINE_DEFAULTS.get(str(engine.get("name")), {}) if isinstance(engine, Mapping) else {}
    try:
        table["stages"] = [_make_stage(stage, index, defaults) for index, stage in enumerate(stages)]
        recipe = build(Recipe, table, "")
    except UnknownKey as error:
        if not (places := _places_of(error, stages)):
            raise
        raise UnknownKey(error.where, error.key, f"did you mean {' or '.join(map(repr, places))}?") from None
    return dataclasses.replace(recipe, stages=_with_unique_names(recipe.stages))


def _places_of(error: UnknownKey, stages: Sequence[Any]) -> list[str]:
    """Return the dotted names of the keys of this name elsewhere in the recipe; those near it, if any are."""
    paths = list(key_paths(Recipe, ""))
    for index, stage in enumerate(stages):
        is_sft = isinstance(stage, Mapping) and stage.get("algorithm") == "sft"
        paths += key_paths(SftStage if is_sft else RlStage, f"stages.{index}")
    names = (error.key, SYNONYMS.get(error.key.lower()))
    places = [path for path in paths if path.rpartition(".")[2] in names]
    near = [path for path in places if error.where and path.startswith(f"{error.where}.")] or places
    return near if len(near) <= MAX_PLACES else []


def _make_stage(table: Any, index: int, engine_defaults: Mapping[str, Any]) -> RlStage | SftStage:
    where = f"stages.{index}"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: expected a table, got {shown(table)}")
    known = [*ALGORITHMS, "sft"]
    if table.get("algorithm") is None:
        raise ConfigError(f"{where}.algorithm: missing; set it to one of {', '.join(known)}")
    algorithm = str(table["algorithm"])
    if algorithm not in known:
        raise ConfigError(f"{where}.algorithm = {shown(algorithm)}: {nearest(algorithm, known)}")
    if algorithm == "sft":
        return build(SftStage, table, where)
    return build(RlStage, _merge(_merge(engine_defaults, ALGORITHMS[algorithm]), table), where)


def _with_unique_names(stages: tuple[RlStage | SftStage, ...]) -> tuple[RlStage | SftStage, ...]:
    """Number repeated names: grpo, sft, grpo become grpo-1, sft, grpo-2."""
    names = [stage.name or stage.algorithm for stage in stages]
    numbered = [
        f"{name}-{names[: index + 1].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]
    for name in numbered:
        # Two stages of the same name would have the same random numbers.
        if numbered.count(name) > 1:
            raise ConfigError(f"stages: two are called {shown(name)} (repeated names get numbers); rename one")
    return tuple(dataclasses.replace(stage, name=name) for stage, name in zip(stages, numbered, strict=True))


def _merge(defaults: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(defaults))
    for key, value in table.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def parse_override(override: str, option: str = "--set") -> tuple[str, Any]:
    """Return key and value of an override such as `stages.0.optimizer.learning_rate=1e-5`.

    A value that is not TOML is a string.
    """
    key, separator, text = override.partition("=")
    path = key.strip()
    if not separator or not all(path.split(".")) or path.count(".") > MAX_DEPTH:
        raise ConfigError(f"{option} {shown(override)}: write it as key=value, for example seed=1")
    if any("\ud800" <= letter <= "\udfff" for letter in override):
        raise ConfigError(f"{option} {shown(override)}: not UTF-8")
    try:
        table = toml_table(f"value = {text}")
    except ValueError:
        return path, text
    if len(table) > 1:
        raise ConfigError(f"{option} {shown(override)}: more than one key; give each a {option} of its own")
    return path, table["value"]


def apply_override(table: dict[str, Any], override: str) -> None:
    set_key(table, *parse_override(override))


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
            raise ConfigError(f"--set {where}: every stage must be a table, and one is not")
        # By number, by name, or by an algorithm that no other stage has.
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
        raise ConfigError(f"--set {where}: {shown(node)} is not a table and has no keys")
    child = node.setdefault(part, {})
    if not isinstance(child, (dict, list)):
        raise ConfigError(f"--set {where}: {shown(child)} is not a table and has no keys")
    return child


def fingerprint(recipe: Recipe) -> str:
    """Return 16 hex digits of everything in the recipe that can change a number."""
    table = to_table(recipe)
    for key in _NOT_IN_FINGERPRINT:
        holder, last = _holder(table, key)
        del holder[last]
    defaults = to_table(RlStage(algorithm="", steps=1, problems_per_step=1, rollouts_per_problem=2))
    for stage, built in zip(table["stages"], recipe.stages, strict=True):
        for key in _NEW_IN_STAGES if isinstance(built, RlStage) else ():
            holder, last = _holder(stage, key)
            if holder[last] == _holder(defaults, key)[0][last]:
                del holder[last]
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _holder(table: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the table that has a dotted key, and the key's name in it."""
    *path, last = key.split(".")
    for part in path:
        table = table[part]
    return table, last


def dump_toml(table: Mapping[str, Any]) -> str:
    """Return the table as TOML; `parse_recipe` reads a whole recipe back to the same object."""
    lines: list[str] = []
    _dump_table(table, "", lines)
    return "\n".join(lines).strip() + "\n"


def _dump_table(table: Mapping[str, Any], where: str, lines: list[str]) -> None:
    lines.extend(f"{_dump_key(key)} = {dump_value(value)}" for key, value in table.items() if not _is_table(value))
    for key, value in table.items():
        if _is_table(value):
            path = f"{where}.{_dump_key(key)}" if where else _dump_key(key)
            is_single = isinstance(value, Mapping)
            for entry in [value] if is_single else value:
                lines.extend(["", f"[{path}]" if is_single else f"[[{path}]]"])
                _dump_table(entry, path, lines)


def _is_table(value: Any) -> bool:
    is_list_of_tables = isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping) or is_list_of_tables


def _dump_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else dump_value(key)


def dump_value(value: Any) -> str:
    """Write a value on one line, so that `--set key=VALUE` reads it back."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(dump_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_dump_key(key)} = {dump_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    # TOML writes booleans, integers and strings like JSON, except for surrogate pairs and a bare DEL in strings.
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
