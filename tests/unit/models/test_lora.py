from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from groupwise.config import ConfigError, LoraConfig
from groupwise.models.load import set_training
from groupwise.models.lora import add_lora, merged_state_dict, trainable_parameters
from groupwise.models.tiny import make_tiny

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_layers": 2}
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
CONFIG = LoraConfig(rank=4, alpha=8.0)


def make(name: str = "tiny-qwen3") -> Any:
    return make_tiny(name, SMALL, seed=0)[0]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def move_adapters(model: Any) -> None:
    """Make adapters non-zero, as training would: the second matrix of an adapter begins at zero."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def test_fresh_adapters_change_nothing_and_alone_are_trained() -> None:
    model = make()
    before = logits(model)
    assert add_lora(model, CONFIG, seed=1) is model
    assert not any(module.training for module in model.modules())
    assert torch.equal(logits(model), before)
    names = trainable_parameters(model)
    assert len(names) == 2 * 7 * 2
    assert all(".lora_A." in name or ".lora_B." in name for name in names)


def test_all_weights_are_trained_without_adapters_and_a_tied_one_once() -> None:
    model = make("tiny-qwen3")
    names = trainable_parameters(model)
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert "lm_head.weight" in trainable_parameters(make("tiny-llama"))


def test_seed_alone_moves_the_adapters_and_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    first = trainable_parameters(add_lora(make(), CONFIG, seed=1))
    assert torch.equal(torch.rand(4), expected)
    same = trainable_parameters(add_lora(make(), CONFIG, seed=1))
    other = trainable_parameters(add_lora(make(), CONFIG, seed=2))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
def test_merged_weights_compute_what_the_adapters_do(name: str) -> None:
    plain = make(name)
    model = add_lora(make(name), CONFIG, seed=1)
    move_adapters(model)
    adapted, live = logits(model), {key: value.clone() for key, value in model.state_dict().items()}
    merged = merged_state_dict(model)
    assert list(merged) == list(plain.state_dict())
    plain.load_state_dict(merged, strict=True)
    torch.testing.assert_close(logits(plain), adapted, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits(model), adapted)
    assert all(torch.equal(value, live[key]) for key, value in model.state_dict().items())


def test_merging_a_plain_model_gives_its_weights() -> None:
    model = make()
    merged = merged_state_dict(model)
    assert list(merged) == list(model.state_dict())
    assert all(torch.equal(value, merged[key]) for key, value in model.state_dict().items())


def test_gradients_reach_the_adapters_alone() -> None:
    model = add_lora(make(), CONFIG, seed=1)
    model(IDS, labels=IDS).loss.backward()
    with_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert with_gradient == trainable_parameters(model).keys()


def test_dropout_of_adapters_is_on_in_training_alone() -> None:
    model = add_lora(make(), LoraConfig(rank=4, dropout=0.5), seed=1)
    move_adapters(model)
    assert torch.equal(logits(model), logits(model))
    set_training(model, True)
    assert not torch.equal(logits(model), logits(model))
    set_training(model, False)
    assert torch.equal(logits(model), logits(model))


def test_unknown_targets_are_answered_with_what_there_is() -> None:
    for targets in (("q_projection",), ("q_proj", "q_projection")):
        with pytest.raises(ConfigError, match=r"'q_projection' is not a linear layer .*down_proj, gate_proj.*'q_proj'"):
            add_lora(make(), LoraConfig(target_modules=targets), seed=1)
    with pytest.raises(ConfigError, match=r"'embed_tokens' is not a linear layer"):
        add_lora(make(), LoraConfig(target_modules=("embed_tokens",)), seed=1)
    with pytest.raises(ConfigError, match="name at least one of down_proj"):
        add_lora(make(), LoraConfig(target_modules=()), seed=1)


def test_a_tied_head_takes_no_adapter() -> None:
    with pytest.raises(ConfigError, match=r"'lm_head' shares its weight with the embedding"):
        add_lora(make("tiny-qwen3"), LoraConfig(target_modules=("lm_head",)), seed=1)
    add_lora(make("tiny-llama"), LoraConfig(target_modules=("lm_head",)), seed=1)


def test_adapters_are_added_once() -> None:
    model = add_lora(make(), CONFIG, seed=1)
    with pytest.raises(ConfigError, match="already has adapters"):
        add_lora(model, CONFIG, seed=1)


def test_missing_peft_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install groupwise\[lora\]"):
        add_lora(make(), CONFIG, seed=1)
