"""Linear merge: the weighted mean of several models' weights, written as a folder that transformers loads.

Contract: all folders are in Hugging Face format with safetensors (sharded or not) and have the same architecture,
tensors and vocabulary. The weights sum to 1. The output has the first folder's files, layout and dtypes; sums are in
float32 and rounded once. One tensor per folder is in memory at a time. The output folder appears only when complete.

Adapters (lora.py), task arithmetic and optimizer state are not merged here.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from groupwise.base.outside import json_value
from groupwise.config.build import ConfigError
from groupwise.models.export import new_folder, refuse_full
from groupwise.models.model_files import INDEX, check_files, read_json

_COPIED = (
    "config.json",
    "generation_config.json",
    INDEX,
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)

_SAME_IN_CONFIG = (
    "architectures",
    "model_type",
    "hidden_act",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
    "sliding_window",
    "tie_word_embeddings",
)
"""Settings that change how the same tensors are used. Everything else shows in the shapes."""


def merge_folders(folders: Sequence[Path], weights: Sequence[float], out: Path) -> None:
    """Write out = Σ weights[i] · folders[i], tensor by tensor."""
    folders, out = [Path(folder) for folder in folders], Path(out)
    _check_weights(folders, weights)
    refuse_full(out)
    locations = [_locate_tensors(folder) for folder in folders]
    _check_alike(folders, locations)
    with new_folder(out) as folder:
        for pattern in _COPIED:
            for file in folders[0].glob(pattern):
                shutil.copyfile(file, folder / file.name)
        for shard in sorted(set(locations[0].values())):
            _merge_shard(folders, weights, locations, shard, folder / shard.name)


def _check_weights(folders: Sequence[Path], weights: Sequence[float]) -> None:
    if not folders:
        raise ConfigError("nothing to merge: name at least one folder")
    if len(folders) != len(weights):
        raise ConfigError(f"{len(folders)} folders and {len(weights)} weights: give one weight for each folder")
    total = math.fsum(weights)
    if not abs(total - 1) <= 1e-6:  # also catches NaN
        shown = " + ".join(f"{weight:g}" for weight in weights)
        fix = ""
        if math.isfinite(total) and total != 0:
            fix = "; normalized: " + ", ".join(f"{weight / total:.6g}" for weight in weights)
        raise ConfigError(f"weights {shown} = {total:g}: must sum to 1{fix}")


def _locate_tensors(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: not a model folder (no config.json)")
    check_files(folder, str(folder))
    index = folder / INDEX
    if index.is_file():
        located = {key: folder / name for key, name in read_json(index, str(folder))["weight_map"].items()}
        for shard in set(located.values()):
            if not shard.is_file():
                raise ConfigError(f"{folder}: {shard.name} is missing, though {INDEX} names it")
        return located
    single = folder / "model.safetensors"
    if not single.is_file():
        raise ConfigError(f"{folder}: no weights (neither {single.name} nor {INDEX}); only safetensors are merged")
    return dict.fromkeys(_read_header(single)[0], single)


def _check_alike(folders: Sequence[Path], locations: Sequence[dict[str, Path]]) -> None:
    configs = [_read_config(folder) for folder in folders]
    for folder, config in zip(folders, configs, strict=True):
        if config.get("quantization_config") is not None:
            raise ConfigError(f"{folder}: its weights are stored quantized and have no mean; merge the original models")
    first_config, first_vocabulary = configs[0], _vocabulary(folders[0])
    first_shapes = _shapes(locations[0])
    for folder, located, config in zip(folders[1:], locations[1:], configs[1:], strict=True):
        pair = f"{folders[0]} and {folder}"
        for key in _SAME_IN_CONFIG:
            if first_config.get(key) != config.get(key):
                raise ConfigError(
                    f"{pair} are different models: {key} is {first_config.get(key)!r} in the first and "
                    f"{config.get(key)!r} in the second"
                )
        shapes = _shapes(located)
        if only := sorted(first_shapes.keys() ^ shapes.keys()):
            owner = folders[0] if only[0] in first_shapes else folder
            raise ConfigError(f"{pair} differ in {len(only)} tensors: only {owner} has {only[0]}")
        for key, shape in first_shapes.items():
            if shapes[key] != shape:
                raise ConfigError(f"{pair}: {key} has shape {shape} in the first and {shapes[key]} in the second")
        vocabulary = _vocabulary(folder)
        if first_vocabulary is not None and vocabulary is not None and first_vocabulary != vocabulary:
            raise ConfigError(
                f"{pair} have different vocabularies: the same id means different text, so they cannot be merged"
            )


def _shapes(located: dict[str, Path]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for shard in sorted(set(located.values())):
        header, _ = _read_header(shard)
        if strays := sorted(key for key in header if located.get(key) != shard):
            raise ConfigError(f"{shard}: has a tensor {strays[0]} that {INDEX} does not place there")
        shapes.update({key: tuple(entry["shape"]) for key, entry in header.items()})
    if lost := sorted(located.keys() - shapes.keys()):
        raise ConfigError(f"{located[lost[0]]}: has no tensor {lost[0]}, though {INDEX} says so")
    return shapes


def _vocabulary(folder: Path) -> Any:
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    table = read_json(file, str(folder))
    added = [(token["id"], token["content"]) for token in table.get("added_tokens", [])]
    return table.get("model", {}).get("vocab"), added


def _merge_shard(
    folders: Sequence[Path], weights: Sequence[float], locations: Sequence[dict[str, Path]], shard: Path, out: Path
) -> None:
    """Write `out` with the header of `shard`, byte for byte, and the merged tensors at its offsets."""
    header, header_bytes = _read_header(shard)
    with ExitStack() as stack, out.open("wb") as file:
        paths = {located[key] for located in locations for key in header}
        opened = {path: stack.enter_context(safe_open(path, framework="pt")) for path in sorted(paths)}
        file.write(header_bytes)
        for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]):
            sources = [opened[located[key]] for located in locations]
            _write(file, _merge_tensor(folders, weights, key, sources), entry, key)


def _merge_tensor(folders: Sequence[Path], weights: Sequence[float], key: str, sources: Sequence[Any]) -> torch.Tensor:
    """Return the weighted mean of a tensor. `sources` are the open files, one per folder."""
    first = sources[0].get_tensor(key)
    if not first.is_floating_point():
        for folder, source in zip(folders[1:], sources[1:], strict=True):
            if not torch.equal(first, source.get_tensor(key)):
                raise ConfigError(f"{folders[0]} and {folder}: {key} ({first.dtype}) differs and cannot be averaged")
        return first
    total = first.to(torch.float32) * weights[0]
    for weight, source in zip(weights[1:], sources[1:], strict=True):
        total.add_(source.get_tensor(key).to(torch.float32), alpha=weight)
    return total.to(first.dtype)


def _write(file: BinaryIO, tensor: torch.Tensor, entry: dict[str, Any], key: str) -> None:
    begin, end = entry["data_offsets"]
    # As bytes, because numpy has no bfloat16. reshape(-1) first, because a scalar cannot be viewed.
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if len(data) != end - begin:
        raise ConfigError(f"{key}: {len(data)} bytes instead of {end - begin}; the first folder's file is damaged")
    file.write(data)


def _read_config(folder: Path) -> dict[str, Any]:
    """Read config.json through transformers, because older files use other names or omit defaults."""
    try:
        return dict(AutoConfig.from_pretrained(folder, trust_remote_code=False).to_dict())
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder}: config.json cannot be read ({error})") from error


def _read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return (tensors by name, the raw header). The format: eight bytes of length, JSON of that length, tensors."""
    try:
        with safe_open(path, framework="pt"):  # checks that header and file agree
            pass
    except SafetensorError as error:
        raise ConfigError(f"{path}: is not a safetensors file, or damaged ({error})") from error
    with path.open("rb") as file:
        length = file.read(8)
        raw = file.read(int.from_bytes(length, "little"))
    return {key: entry for key, entry in json_value(raw).items() if key != "__metadata__"}, length + raw
