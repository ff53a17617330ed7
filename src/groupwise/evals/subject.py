"""The subject of an evaluation: its policy and a fingerprint of its weights, from the name that a user gives.

- a run directory or one of its checkpoints: the recipe's model with those weights, adapters included
- a folder with adapter_config.json: its base model with the adapter merged (needs peft)
- anything that a recipe's model.path can be: a hub id, a folder (also exported or merged), a .gguf file, tiny-…
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.base.outside import local_path
from groupwise.config import ConfigError, ModelConfig, Recipe, make_recipe
from groupwise.models.export import load_run
from groupwise.models.load import LoadedModel, load_model
from groupwise.models.model_files import check_files, read_json
from groupwise.models.policy import Policy
from groupwise.runs import layout
from groupwise.runs.reader import Run

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES_THAT_MATTER = (".safetensors", ".json", ".jinja", ".model", ".txt")
"""Files of a folder that are fingerprinted: weights, configuration, tokenizer, chat template. Not its README."""


@dataclass(frozen=True)
class Subject:
    policy: Policy
    recipe: Recipe | None
    """The recipe that trained it, if it is a run."""
    model: dict[str, Any]
    """path, checkpoint and fingerprint, as in result.json."""


def open_subject(
    named: str, checkpoint: str | None = None, template_options: Mapping[str, Any] | None = None
) -> Subject:
    """Open a subject. For a run directory, `checkpoint` is "best" (the default), "last" or a name.

    `template_options` are model.chat_template_options for a model that is not a run. A run has its own.
    """
    path = local_path(named)
    options = dict(template_options or {})
    if (path / layout.RECIPE).is_file():
        return _open_run(path, checkpoint or "best", options)
    if path.parent.name == layout.CHECKPOINTS and (path.parents[1] / layout.RECIPE).is_file() and checkpoint is None:
        return _open_run(path.parents[1], path.name, options)
    if checkpoint is not None:
        raise ConfigError(f"--checkpoint {checkpoint}: only works with a run directory, and {named} is not one")
    if (path / ADAPTER).is_file() and not (path / "config.json").is_file():
        return _open_adapter(path, options)
    loaded = load_model(ModelConfig(path=named, chat_template_options=options), 0)
    return _plain(loaded, named, fingerprint_model(named, loaded.model), options)


def _plain(loaded: LoadedModel, path: str, mark: str, options: Mapping[str, Any]) -> Subject:
    if options:
        mark += f"+{json.dumps(options, sort_keys=True)}"
    policy = Policy(loaded, ema_decay=0.0)
    return Subject(policy, None, {"path": path, "checkpoint": None, "fingerprint": mark})


def _open_run(run_dir: Path, wanted: str, options: Mapping[str, Any]) -> Subject:
    if options:
        raise ConfigError(
            f"--chat-template-option {next(iter(options))}: {run_dir} is a run, which is evaluated as it was trained; "
            "remove the option"
        )
    recipe = make_recipe(Run(run_dir).recipe)
    # It may be evaluated on a different machine.
    here = replace(recipe, model=replace(recipe.model, device="auto"))
    policy, weights = load_run(run_dir, here, wanted)
    parts = [fingerprint_path(weights)]
    if recipe.model.lora is not None:
        parts.append(fingerprint_model(recipe.model.path, policy.model))
    model = {"path": str(run_dir), "checkpoint": weights.parent.name, "fingerprint": "+".join(parts)}
    return Subject(policy, recipe, model)


def _open_adapter(folder: Path, options: Mapping[str, Any]) -> Subject:
    check_files(folder, str(folder))
    base = read_json(folder / ADAPTER, str(folder)).get("base_model_name_or_path")
    if not isinstance(base, str):
        raise ConfigError(f"{folder / ADAPTER}: does not name its base model (base_model_name_or_path)")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ConfigError(f"{folder}: has no {ADAPTER_WEIGHTS}; a pickled adapter is never read: convert it")
    try:
        import peft
    except ImportError:
        missing = "an adapter needs peft, which is not installed; pip install groupwise[lora]"
        raise ConfigError(f"{folder}: {missing}") from None
    loaded = load_model(ModelConfig(path=base, chat_template_options=options), 0)
    mark = f"{fingerprint_path(folder)}+{fingerprint_model(base, loaded.model)}"
    try:
        merged = peft.PeftModel.from_pretrained(loaded.model, str(folder)).merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(f"{folder}: the adapter does not fit its base model {base!r}: {error}") from error
    return _plain(replace(loaded, model=merged.eval()), str(folder), mark, options)


def fingerprint_model(named: str, model: Any) -> str:
    """Return a fingerprint of the files; for a hub id, its name and commit; for a tiny model, name and config."""
    path = local_path(named)
    if path.exists():
        return fingerprint_path(path)
    commit = getattr(model.config, "_commit_hash", None)
    return f"{named}@{commit or hashlib.sha256(model.config.to_json_string().encode()).hexdigest()[:16]}"


def fingerprint_path(path: Path) -> str:
    """Return 16 hex digits from name and content of a file, or of the files of a folder that matter."""
    files = [file for file in path.iterdir() if file.suffix in FILES_THAT_MATTER] if path.is_dir() else [path]
    digest = hashlib.sha256()
    for place in sorted(files):
        with place.open("rb") as file:
            digest.update(place.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
