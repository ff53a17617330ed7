"""Recomputing activations: gradients stay as they are bit for bit, less is kept, and nothing is computed twice over."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, GPT2Config

from groupwise.bench.update_speed import UpdateTiming, UpdateWork, bench_update, make_policy
from groupwise.config import ConfigError, LoraConfig, ModelConfig
from groupwise.models.load import Recomputed, load_model, recompute_activations, set_training
from groupwise.models.lora import add_lora, trainable_parameters

SMALL = {"hidden_size": 32, "intermediate_size": 96, "num_layers": 3}
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]])
CHOICES: tuple[Any, ...] = (False, "mlp", True)


def make(which: Any, *, lora: bool = False, dropout: float = 0.0, name: str = "tiny-qwen3") -> Any:
    config = ModelConfig(path=name, device="cpu", tiny=SMALL, gradient_checkpointing=which)
    model = load_model(config, seed=1).model
    if lora:
        add_lora(model, LoraConfig(rank=4, dropout=dropout), seed=2)
        with torch.no_grad():
            for key, weight in trainable_parameters(model).items():
                if "lora_B" in key:  # as after some training: they begin as zeros
                    weight.normal_(std=0.1, generator=torch.Generator().manual_seed(3))
    return model


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


def learn(model: Any) -> tuple[dict[str, torch.Tensor], int, int]:
    """(gradients, bytes that the forward pass kept besides the weights, products in the backward pass)."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    for module in model.modules():
        if isinstance(module, Recomputed) and module.recomputes:
            # It holds its input itself, past autograd's hooks.
            module.register_forward_pre_hook(lambda _, inputs: (keep(inputs[0]),))
    set_training(model, True)
    torch.manual_seed(4)  # for the dropout of adapters
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(IDS, labels=IDS, use_cache=False).loss
    num_bytes = sum(kept.values())
    with Products() as products:
        loss.backward()
    set_training(model, False)
    gradients = {key: weight.grad for key, weight in trainable_parameters(model).items() if weight.grad is not None}
    return gradients, num_bytes, products.count


@pytest.mark.parametrize(("lora", "dropout"), [(False, 0.0), (True, 0.0), (True, 0.4)])
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
def test_gradients_are_the_same_and_less_is_kept(name: str, lora: bool, dropout: float) -> None:
    learned = {which: learn(make(which, lora=lora, dropout=dropout, name=name)) for which in CHOICES}
    expected, everything, _ = learned[False]
    assert expected
    for which in ("mlp", True):
        gradients, kept, _ = learned[which]
        assert gradients.keys() == expected.keys()
        assert all(torch.equal(gradients[key], expected[key]) for key in expected), which
        assert kept < everything
    feed_forward = everything - learned["mlp"][1]
    # gate, silu(gate), up and their product, for each token of each layer.
    assert feed_forward >= SMALL["num_layers"] * IDS.numel() * 4 * SMALL["intermediate_size"] * 4
    assert learned[True][1] < learned["mlp"][1]


def test_the_feed_forward_part_is_computed_again_once_and_without_its_last_product() -> None:
    products = {which: learn(make(which))[2] for which in CHOICES}
    assert products["mlp"] - products[False] == 2 * SMALL["num_layers"]  # gate and up
    assert products[True] > products["mlp"]


def test_only_in_training_mode_and_with_gradients() -> None:
    model = make("mlp")
    counted: list[int] = []
    model.model.layers[0].mlp.up_proj.register_forward_pre_hook(lambda *_: counted.append(1))
    model(IDS, labels=IDS).loss.backward()
    assert len(counted) == 1
    set_training(model, True)
    with torch.no_grad():
        model(IDS, use_cache=False)
    assert len(counted) == 2
    model(IDS, labels=IDS, use_cache=False).loss.backward()
    assert len(counted) == 4
    set_training(model, False)
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("which", ["mlp", True])
@pytest.mark.parametrize("lora", [False, True])
def test_it_goes_around_a_forward_that_was_replaced(lora: bool, which: Any) -> None:
    """Replace the feed-forward block as fused.py does after loading, also where its products have adapters."""
    plain, model = make(False, lora=lora), make(which, lora=lora)
    calls: list[bool] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    for layer in model.model.layers:
        layer.mlp.forward = types.MethodType(forward, layer.mlp)
    gradients, _, _ = learn(model)
    expected, _, _ = learn(plain)
    assert len(calls) == 2 * SMALL["num_layers"]
    assert all(torch.equal(gradients[key], expected[key]) for key in expected)


def test_weights_keep_their_names_and_a_copy_computes_the_same() -> None:
    plain, model = make(False), make("mlp")
    assert list(model.state_dict()) == list(plain.state_dict())
    copied = copy.deepcopy(model)
    first, second = learn(model), learn(copied)
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert first[1:] == second[1:]


def test_a_model_without_such_parts_is_refused() -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20, "n_positions": 32}
    model = AutoModelForCausalLM.from_config(GPT2Config(**sizes))
    with pytest.raises(ConfigError, match=r"gradient_checkpointing = 'mlp': the layers of GPT2LMHeadModel.*use true"):
        recompute_activations(model, "mlp")


@pytest.mark.parametrize("value", [1, 0, "layers", "yes"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r'gradient_checkpointing = .*: expected true, false or "mlp"'):
        ModelConfig(path="tiny-qwen3", gradient_checkpointing=value)


BENCH: dict[str, Any] = {
    "model": "tiny-qwen3", "sequences": 3, "longest": 30, "prompt_tokens": 8, "updates": 2, "peak_tflops": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("lora", "note"),
    [
        (None, "some activations are recomputed, between 6 N and 8 N in total, so MFU is too low"),
        (2, "and some activations are recomputed, between 4 N and 6 N in total, so MFU is too high"),
    ],
)
def test_the_bench_takes_it(lora: int | None, note: str) -> None:
    work = UpdateWork(**BENCH, lora=lora, checkpointing="mlp")
    layers = make_policy(work).model.model.layers
    assert all(isinstance(layer.mlp, Recomputed) and not isinstance(layer, Recomputed) for layer in layers)
    timing = bench_update(work)
    assert isinstance(timing, UpdateTiming)
    assert note in timing.note


def test_the_bench_takes_nothing_else() -> None:
    wrong: Any = "attention"
    with pytest.raises(ConfigError, match="--checkpointing attention: give no value"):
        UpdateWork(**BENCH, checkpointing=wrong)
