from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise.config import ConfigError
from groupwise.models import merge
from groupwise.models.merge import merge_folders
from groupwise.models.model_files import INDEX
from groupwise.models.tiny import make_tiny

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_layers": 2}


def save(
    folder: Path,
    seed: int,
    *,
    name: str = "tiny-llama",
    shard: str | None = None,
    dtype: torch.dtype = torch.float32,
    **sizes: int,
) -> Path:
    model, tokenizer = make_tiny(name, {**SMALL, **sizes}, seed=seed)
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    tokenizer.save_pretrained(folder)
    return folder


def read(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def edit_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
def test_merge_equals_the_mean_by_hand_and_loads(name: str, tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", 1, name=name), save(tmp_path / "b", 2, name=name)
    merge_folders([a, b], [0.7, 0.3], tmp_path / "out")
    left, right, merged = read(a), read(b), read(tmp_path / "out")
    assert merged.keys() == left.keys()
    for key, tensor in merged.items():
        torch.testing.assert_close(tensor, 0.7 * left[key] + 0.3 * right[key], atol=1e-7, rtol=1e-6)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.equal(loaded.model.embed_tokens.weight, merged["model.embed_tokens.weight"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template
    assert tokenizer.encode("<think>a") == AutoTokenizer.from_pretrained(a).encode("<think>a")
    assert (tmp_path / "out/generation_config.json").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "out"}


def test_sharded_and_whole_folders_merge_alike(tmp_path: Path) -> None:
    whole_a, whole_b = save(tmp_path / "a", 1), save(tmp_path / "b", 2)
    shards_a, shards_b = save(tmp_path / "sa", 1, shard="40KB"), save(tmp_path / "sb", 2, shard="30KB")
    assert len(list(shards_a.glob("*.safetensors"))) > 1
    assert len(list(shards_b.glob("*.safetensors"))) != len(list(shards_a.glob("*.safetensors")))
    merge_folders([whole_a, whole_b], [0.7, 0.3], tmp_path / "whole")
    merge_folders([shards_a, shards_b], [0.7, 0.3], tmp_path / "sharded")
    merge_folders([whole_a, shards_b], [0.7, 0.3], tmp_path / "mixed")
    expected = read(tmp_path / "whole")
    for out in ("sharded", "mixed"):
        merged = read(tmp_path / out)
        assert merged.keys() == expected.keys()
        assert all(torch.equal(merged[key], expected[key]) for key in expected)
    assert (tmp_path / "sharded" / INDEX).is_file()
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "sharded", output_loading_info=True)
    assert not info["missing_keys"]
    assert torch.equal(loaded.lm_head.weight, expected["lm_head.weight"])


def test_sums_are_in_float32_and_the_first_dtype_stays(tmp_path: Path) -> None:
    folders = [save(tmp_path / str(seed), seed, dtype=torch.bfloat16) for seed in (1, 2)]
    folders.append(save(tmp_path / "3", 3))
    merge_folders(folders, [0.5, 0.3, 0.2], tmp_path / "out")
    parts, merged = [read(folder) for folder in folders], read(tmp_path / "out")
    for key, tensor in merged.items():
        total = 0.5 * parts[0][key].float()
        total = total.add(parts[1][key].float(), alpha=0.3).add(parts[2][key], alpha=0.2)
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, total.to(torch.bfloat16))


def test_one_folder_of_weight_one_is_copied_bit_for_bit(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", 1), save(tmp_path / "b", 2)
    merge_folders([a, b], [1.0, 0.0], tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (a / "model.safetensors").read_bytes()


def test_scalars_and_whole_numbers(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", 1), save(tmp_path / "b", 2)
    for folder, value in ((a, 1.0), (b, 3.0)):
        tensors = {"scale": torch.tensor(value), "steps": torch.tensor([4, 5]), "none": torch.zeros(0, 3)}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    merge_folders([a, b], [0.5, 0.5], tmp_path / "out")
    merged = read(tmp_path / "out")
    assert merged["scale"].item() == 2.0
    assert merged["scale"].shape == ()
    assert merged["steps"].tolist() == [4, 5]
    assert merged["none"].shape == (0, 3)
    tensors["steps"] = torch.tensor([4, 6])
    save_file(tensors, b / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"steps \(torch\.int64\) differs"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "out2")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.7, 0.7], r"0\.7 \+ 0\.7 = 1\.4: must sum to 1; normalized: 0\.5, 0\.5"),
        ([1.0, -1.0], r"= 0: must sum to 1$"),
        ([float("nan"), 1.0], r"= nan: must sum to 1$"),
        ([1.0], r"2 folders and 1 weights"),
    ],
)
def test_weights_must_sum_to_one(weights: list[float], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        merge_folders([tmp_path / "a", tmp_path / "b"], weights, tmp_path / "out")
    with pytest.raises(ConfigError, match="nothing to merge"):
        merge_folders([], [], tmp_path / "out")


def test_different_models_are_refused(tmp_path: Path) -> None:
    a = save(tmp_path / "a", 1)
    others = {
        r"architectures is \['LlamaForCausalLM'\] .*\['Qwen3ForCausalLM'\]": save(tmp_path / "q", 2, name="tiny-qwen3"),
        r"layers\.0\.mlp\.down_proj\.weight has shape \(32, 48\) .*\(32, 64\)": save(
            tmp_path / "wide", 2, intermediate_size=64
        ),
        r"differ in 9 tensors: only .*deep has model\.layers\.2\.": save(tmp_path / "deep", 2, num_layers=3),
        r"num_attention_heads is 4 .*2 in the second": save(tmp_path / "heads", 2, num_heads=2),
    }
    for message, other in others.items():
        with pytest.raises(ConfigError, match=message):
            merge_folders([a, other], [0.5, 0.5], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_different_vocabularies_are_refused(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", 1), save(tmp_path / "b", 2)
    table = json.loads((b / "tokenizer.json").read_text())
    vocabulary = table["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (b / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(ConfigError, match="different vocabularies"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "out")


def test_old_and_new_spellings_of_a_configuration_are_the_same(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", 1), save(tmp_path / "b", 2)
    table = json.loads((b / "config.json").read_text())
    table["rope_theta"] = table.pop("rope_parameters")["rope_theta"]
    del table["head_dim"]
    (b / "config.json").write_text(json.dumps(table))
    merge_folders([a, b], [0.5, 0.5], tmp_path / "out")
    edit_json(b / "config.json", rope_theta=123.0)
    with pytest.raises(ConfigError, match="rope_parameters is"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "out2")


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", 1), save(tmp_path / "b", 2, shard="40KB")
    with pytest.raises(ConfigError, match=r"nothing: not a model folder"):
        merge_folders([a, tmp_path / "nothing"], [0.5, 0.5], tmp_path / "out")
    next(iter(sorted(b.glob("*.safetensors")))).unlink()
    with pytest.raises(ConfigError, match=r"model-00001-of-.* is missing, though"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "out")
    (b / INDEX).unlink()
    with pytest.raises(ConfigError, match="b: no weights"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "out")
    (b / "model.safetensors").write_bytes((a / "model.safetensors").read_bytes()[:-5])
    with pytest.raises(ConfigError, match="damaged"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "out")
    shutil.copyfile(a / "model.safetensors", b / "model.safetensors")
    (b / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "out")


def test_output_must_be_new_or_empty(tmp_path: Path) -> None:
    a, b = save(tmp_path / "a", 1), save(tmp_path / "b", 2)
    (tmp_path / "empty").mkdir()
    merge_folders([a, b], [0.5, 0.5], tmp_path / "empty")
    assert (tmp_path / "empty/model.safetensors").is_file()
    with pytest.raises(ConfigError, match="exists and is not an empty folder"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="exists and is not an empty folder"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "file")


def test_nothing_is_left_behind_when_a_merge_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = save(tmp_path / "a", 1), save(tmp_path / "b", 2)
    calls = []

    def fail_late(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 5:
            raise OSError("disk full")

    monkeypatch.setattr(merge, "_write", fail_late)
    with pytest.raises(OSError, match="disk full"):
        merge_folders([a, b], [0.5, 0.5], tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
