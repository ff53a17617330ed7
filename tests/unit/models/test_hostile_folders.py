"""Folders of models that nobody should load, and honest ones that look a little like them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch

from groupwise.config import ConfigError, ModelConfig
from groupwise.evals.subject import open_subject
from groupwise.models.load import LoadedModel, load_model
from groupwise.models.tiny import make_tiny
from groupwise.planner.shapes import find_shape
from tests.factories import TINY_SIZES
from tests.unit.models.hostile_folders import HOSTILE, INDEX, MARK

HARMLESS = {"tokenizer of its own code"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, tokenizer = make_tiny("tiny-qwen3", {**TINY_SIZES, "context_tokens": 128}, seed=1)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path) -> LoadedModel:
    return load_model(ModelConfig(path=str(folder), device="cpu"), seed=1)


@pytest.mark.parametrize(("name", "build", "message"), HOSTILE, ids=[name for name, _, _ in HOSTILE])
def test_hostile_folders_are_refused_and_run_nothing(
    name: str, build: Callable[[Path], None], message: str, folder: Path
) -> None:
    build(folder)
    if name in HARMLESS:
        load(folder)
    else:
        with pytest.raises(ConfigError, match=f"model.path = '.*{message}") as caught:
            load(folder)
        assert "weights_only" not in str(caught.value)
        assert "trust_remote_code" not in str(caught.value)
    assert not (folder.parent / MARK).exists()


def test_a_cache_of_links_is_loaded(folder: Path) -> None:
    """As on the hub: a snapshot links to blobs outside of its folder."""
    expected = load(folder).model.state_dict()
    (folder.parent / "blobs").mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(folder.parent / "blobs" / str(number))
        file.symlink_to(f"../blobs/{number}")
    found = load(folder).model.state_dict()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_files_that_nothing_reads_do_not_matter(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    (folder / "train_results.json").write_text("not JSON")
    os.mkfifo(folder / "log")
    assert load(folder).context_tokens == 128


def test_a_plan_reads_the_same_folders(folder: Path) -> None:
    os.truncate(folder / "config.json", 1 << 40)
    with pytest.raises(ConfigError, match="are read"):
        find_shape(ModelConfig(path=str(folder)))


def test_an_index_on_the_hub_is_checked_before_the_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / INDEX
    index.write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("groupwise.models.load.hf_hub_download", lambda name, file: str(tmp_path / file))
    with pytest.raises(ConfigError, match=r"^model\.path = 'nobody/nothing': .*names 'pytorch_model\.bin'"):
        load(Path("nobody/nothing"))


@pytest.mark.parametrize(
    ("base", "message"),
    [("tiny-qwen3", "has no adapter_model.safetensors; a pickled adapter"), (5, "does not name its")],
)
def test_pickled_adapters_are_refused(base: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    (tmp_path / "adapter_model.bin").write_bytes(b"pickled")
    with pytest.raises(ConfigError, match=message):
        open_subject(str(tmp_path), None)
