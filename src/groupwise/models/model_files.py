"""Checks of a model folder before a library reads it.

Contract: the files that are read are regular files of a sane size, links into a cache included. JSON is of bounded
depth and digits. Weights are safetensors inside the folder, also where an index names them. Anything else is a
ConfigError that names the file. What the folder must contain is checked elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from groupwise.base.outside import MAX_LOG_BYTES, file_bytes, json_value, open_file
from groupwise.config.build import ConfigError, require

WEIGHTS = "*.safetensors"
INDEX = "model.safetensors.index.json"
MAX_LAYERS = 10_000
_JSON = ("*config.json", "*token*.json", "chat_template.json", "vocab.json", "tekken.json", "*.safetensors.index.json")
_OTHER = ("*.jinja", "additional_chat_templates/*.jinja", "*.model", "*.txt")


def check_files(folder: Path, where: str) -> None:
    """Check the files of a model folder that libraries read. `where` begins the messages of errors."""
    for pattern in (WEIGHTS, *_OTHER):
        for file in folder.glob(pattern):
            try:
                open_file(file, sys.maxsize if pattern == WEIGHTS else MAX_LOG_BYTES).close()
            except OSError as error:
                raise ConfigError(f"{where}: {error}") from None
    for pattern in _JSON:
        for file in folder.glob(pattern):
            table = read_json(file, where)
            if file.name == "config.json":
                _check_config(table, f"{where}: {file.name}")
            elif file.name.endswith(".index.json"):
                check_index(table, f"{where}: {file.name}")


def read_json(file: Path, where: str) -> Any:
    """Return the object in a JSON file of a model."""
    try:
        table = json_value(file_bytes(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {file.name} cannot be read ({error})") from None
    require(isinstance(table, dict), f"{where}: {file.name}: not a JSON object")
    return table


def check_index(table: Mapping[str, Any], where: str) -> None:
    """Refuse an index of weights that are pickled, or outside of its folder."""
    names = table.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ConfigError(f"{where}: weight_map is not a table from the names of weights to files")
    for name in sorted(set(names.values())):
        path = PurePosixPath(name)
        require(
            path.suffix == ".safetensors",
            f"{where} names {name!r}, which is not a safetensors file. Pickled weights can run code and are never "
            "read; convert them to safetensors",
        )
        require(
            not path.is_absolute() and ".." not in path.parts,
            f"{where} names {name!r}, which is outside of the folder; put the weights beside the index",
        )


def _check_config(table: Mapping[str, Any], where: str) -> None:
    named = table.get("transformers_weights")
    require(
        named is None or str(named).endswith((".safetensors", ".safetensors.index.json")),
        f"{where}: transformers_weights = {named!r}: not a safetensors file; remove the key",
    )
    for part in (table, *(value for value in table.values() if isinstance(value, dict))):
        for key, value in part.items():
            # Libraries make an object for each.
            if key.endswith(("layers", "n_layer")) and isinstance(value, int) and value > MAX_LAYERS:
                raise ConfigError(f"{where}: {key} = {value}: more than {MAX_LAYERS:,} layers")
