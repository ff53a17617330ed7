"""Sizes of models against the models themselves, made without memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen2Config, Qwen3Config

from groupwise.base import hub
from groupwise.bench.engine_speed import SHAPES
from groupwise.config import ConfigError, LoraConfig, ModelConfig
from groupwise.models.lora import add_lora, trainable_parameters
from groupwise.models.tiny import make_tiny
from groupwise.planner.shapes import find_shape, shape_of

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
}
CONFIGS = {
    "qwen2 tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True),
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    **SHAPES,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_model(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS[name])
    shape = shape_of(CONFIGS[name], name)
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    modules = {key.rpartition(".")[2]: module for key, module in model.get_decoder().layers[0].named_modules()}
    linear = {key: module for key, module in modules.items() if isinstance(module, torch.nn.Linear)}
    assert shape.linear_sizes == {key: (each.in_features, each.out_features) for key, each in linear.items()}


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
def test_a_tiny_model_and_its_adapters(name: str) -> None:
    tiny = {"hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "num_layers": 2}
    model, _ = make_tiny(name, tiny, seed=0)
    shape = find_shape(ModelConfig(path=name, tiny=tiny))
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    lora = LoraConfig(rank=4, target_modules=("q_proj", "down_proj"))
    add_lora(model, lora, seed=0)
    adapters = trainable_parameters(model).values()
    assert shape.adapter_parameters(lora) == sum(weight.numel() for weight in adapters)


def test_a_folder_needs_no_weights(tmp_path: Path) -> None:
    CONFIGS["qwen3"].save_pretrained(tmp_path)
    shape = find_shape(ModelConfig(path=str(tmp_path)))
    assert shape == shape_of(CONFIGS["qwen3"], "")
    assert shape.head_size == 32


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path = '.*nowhere'.*config\.json is enough"):
        find_shape(ModelConfig(path=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match="mixtures of experts"):
        shape_of(MixtralConfig(**SIZES), "mixtral")


def test_a_hub_that_does_not_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_answers", lambda address: False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"model\.path = 'nobody/nothing'.*config\.json is enough"):
        find_shape(ModelConfig(path="nobody/nothing"))
    assert time.monotonic() - start < 10


class _Bare:
    def get_text_config(self) -> Any:
        return type("Text", (), {"model_type": "odd", "hidden_size": 8, "num_hidden_layers": 1})()


def test_a_configuration_without_sizes_is_refused() -> None:
    with pytest.raises(ConfigError, match="no num_attention_heads"):
        shape_of(_Bare(), "odd")
