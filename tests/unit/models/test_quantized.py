"""Quantized layers against plain ones that have the same values dense: outputs, gradients, engines and exports."""

from __future__ import annotations

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, GPT2Config

from groupwise.config import ConfigError, LoraConfig, ModelConfig, OptimizerConfig
from groupwise.data.batch import Example
from groupwise.engines.engine import Request
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.engines.reference import ReferenceEngine
from groupwise.engines.vllm.vllm_engine import PublishedWeights
from groupwise.kernels.joined import join, lay_side_by_side
from groupwise.models.load import LoadedModel, load_model
from groupwise.models.lora import add_lora, merged_state_dict, trainable_parameters
from groupwise.models.merge import merge_folders
from groupwise.models.policy import AGREEMENT, Policy
from groupwise.models.quantized import QuantizedLinear, quantize
from groupwise.models.tiny import make_tiny
from groupwise.types import Problem, Prompt, SamplingParams
from tests.factories import each_quantization, needs_bitsandbytes
from tests.unit.models.test_load import write_gguf

CPU = torch.device("cpu")
SMALL = {"hidden_size": 48, "intermediate_size": 80, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
"""Rows of 48 and 80 weights end inside a block of 64."""
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])
LORA = LoraConfig(rank=4)

Kind = Literal["4bit", "8bit"]


def make_linear(rows: int, columns: int, bias: bool = False) -> nn.Linear:
    torch.manual_seed(rows + columns)
    linear = nn.Linear(columns, rows, bias=bias)
    nn.init.normal_(linear.weight, std=0.02)
    return linear


def load(kind: str, path: str | Path = "tiny-qwen3", **settings: Any) -> LoadedModel:
    tiny = SMALL if str(path).startswith("tiny-") else {}
    config = ModelConfig(path=str(path), device="cpu", tiny=tiny, quantization=kind, lora=LORA, **settings)  # type: ignore[arg-type]
    return load_model(config, seed=1)


def with_adapters(model: Any) -> Any:
    """Make adapters non-zero, as after some training: the second matrix of an adapter begins at zero."""
    add_lora(model, LORA, seed=2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in trainable_parameters(model).values():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


def densified(model: Any) -> Any:
    """The oracle: plain linear layers with the values that the quantized ones compute with."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, QuantizedLinear):
            linear = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
            linear.weight.data.copy_(module.dense())
            if module.bias is not None:
                linear.bias.data.copy_(module.bias)
            model.set_submodule(name, linear.requires_grad_(False))
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


# -- one layer --


@needs_bitsandbytes
@pytest.mark.parametrize(("rows", "columns"), [(48, 32), (31, 50), (64, 64), (33, 48), (40, 160), (7, 3)])
def test_nf4_is_what_the_paper_says(rows: int, columns: int) -> None:
    """Unpacked by hand: two values a byte, the first in the upper half; 64 values a scale, and 256 scales a scale."""
    from bitsandbytes.functional import get_4bit_type

    linear = make_linear(rows, columns)
    layer = QuantizedLinear(linear, "4bit", CPU, torch.float32)
    state, outer = layer.scales, layer.scales.state2
    assert layer.weight.numel() == (rows * columns + 1) // 2
    assert state.absmax.dtype == torch.uint8
    scales = outer.code[state.absmax.long()] * outer.absmax.repeat_interleave(256)[: len(state.absmax)] + state.offset
    halves = torch.stack([layer.weight.flatten() >> 4, layer.weight.flatten() & 15], dim=1).flatten().long()
    values = get_4bit_type("nf4", device="cpu")[halves][: rows * columns]
    expected = values * scales.repeat_interleave(64)[: rows * columns]
    torch.testing.assert_close(layer.dense(), expected.view(rows, columns), rtol=1e-6, atol=1e-9)
    error = (layer.dense() - linear.weight).norm() / linear.weight.norm()
    assert error < 0.12  # of normal weights: about 0.09


@needs_bitsandbytes
def test_int8_is_that_of_bitsandbytes() -> None:
    from bitsandbytes.functional import int8_vectorwise_quant

    linear = make_linear(40, 50)
    linear.weight.data[3] = 0.0
    linear.weight.data = linear.weight.data.half().float()  # bitsandbytes takes nothing else
    layer = QuantizedLinear(linear, "8bit", CPU, torch.float32)
    whole = [row for row in range(40) if row != 3]  # theirs divides by zero there
    packed, largest, _ = int8_vectorwise_quant(linear.weight.detach()[whole].half())
    assert (layer.weight[whole].int() - packed.int()).abs().max() <= 1  # theirs rounds in half precision
    torch.testing.assert_close(layer.scales[whole] * 127, largest)
    assert layer.weight.dtype == torch.int8
    assert torch.equal(layer.dense()[3], torch.zeros(50))
    assert ((layer.dense() - linear.weight).abs() <= 0.5001 * layer.scales[:, None]).all()


@each_quantization
@pytest.mark.parametrize("bias", [False, True])
def test_outputs_and_gradients_are_those_of_the_dense_weight(kind: Kind, bias: bool) -> None:
    layer = QuantizedLinear(make_linear(40, 48, bias), kind, CPU, torch.float32)
    x = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(0)).requires_grad_()
    twin = x.detach().clone().requires_grad_()
    kept: list[torch.Tensor] = []
    with saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):  # type: ignore[func-returns-value]
        out = layer(x)
    assert not kept, "the dense weight or the input is held until the backward pass"
    expected = nn.functional.linear(twin, layer.dense(), layer.bias)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, twin.grad, rtol=1e-5, atol=1e-6)
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    assert layer(x[0, 0]).shape == (40,)
    assert layer(x[:0]).shape == (0, 5, 40)


@each_quantization
def test_moving_to_another_dtype_leaves_the_packed_weight_alone(kind: Kind) -> None:
    layer = QuantizedLinear(make_linear(40, 48), kind, CPU, torch.bfloat16)
    before = layer.dense()
    assert before.dtype == torch.bfloat16
    layer.to(torch.bfloat16)
    assert torch.equal(layer.dense(), before)
    size = layer.weight.numel() * layer.weight.element_size()
    assert size == 40 * 48 * (1 if kind == "8bit" else 0.5)


# -- a model --


@each_quantization
@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
def test_all_linear_layers_but_the_head_are_quantized(kind: Kind, name: str) -> None:
    model, plain = load(kind, name).model, make_tiny(name, SMALL, seed=1)[0]
    quantized = {key for key, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    assert quantized == {
        key for key, module in plain.named_modules() if isinstance(module, nn.Linear) and key != "lm_head"
    }
    assert len(quantized) == 2 * 7
    for key, weight in model.named_parameters():
        if key.removesuffix(".weight") not in quantized:
            assert torch.equal(weight, plain.get_parameter(key))
    difference = (logits(model) - logits(plain)).norm() / logits(plain).norm()
    assert 1e-4 < difference < {"4bit": 0.5, "8bit": 0.03}[kind]


@each_quantization
def test_logits_and_gradients_are_those_of_the_dense_model(kind: Kind) -> None:
    model = with_adapters(load(kind).model)
    oracle = densified(model)
    torch.testing.assert_close(logits(model), logits(oracle), rtol=1e-5, atol=1e-5)
    for each in (model, oracle):
        each(IDS, labels=IDS).loss.backward()
    expected = {key: weight.grad for key, weight in trainable_parameters(oracle).items()}
    assert trainable_parameters(model).keys() == expected.keys()
    assert all("lora_" in key for key in expected)
    for key, weight in trainable_parameters(model).items():
        torch.testing.assert_close(weight.grad, expected[key], rtol=1e-4, atol=1e-6, msg=key)
        assert weight.grad is not None
        assert weight.grad.abs().max() > 0


@each_quantization
def test_adapters_have_the_dtype_that_layers_compute_in(kind: Kind) -> None:
    model = add_lora(load(kind, dtype="bfloat16").model, LORA, seed=2)
    assert {weight.dtype for weight in trainable_parameters(model).values()} == {torch.bfloat16}
    assert {weight.dtype for weight in model.parameters() if weight.is_floating_point()} == {torch.bfloat16}
    same = add_lora(load("none", dtype="bfloat16").model, LORA, seed=2)
    for key, weight in trainable_parameters(model).items():
        assert torch.equal(weight, same.get_parameter(key))


@each_quantization
def test_nobody_lays_packed_weights_side_by_side(kind: Kind) -> None:
    model = add_lora(load(kind, dtype="bfloat16").model, LORA, seed=2)
    attention = model.model.layers[0].self_attn
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    before = [part.base_layer.weight.data_ptr() for part in parts]
    lay_side_by_side(parts)
    assert [part.base_layer.weight.data_ptr() for part in parts] == before
    assert join(parts) is None
    assert join([part.base_layer for part in parts]) is None


@each_quantization
def test_each_source_can_be_quantized(kind: Kind, tmp_path: Path) -> None:
    """The same weights made in memory, from a folder and from a GGUF file."""
    model, tokenizer = make_tiny("tiny-llama", SMALL, seed=1)
    model.save_pretrained(tmp_path / "folder")
    tokenizer.save_pretrained(tmp_path / "folder")
    write_gguf(tmp_path / "tiny.gguf", model, model.lm_head.weight)
    expected = logits(load(kind, "tiny-llama").model)
    assert torch.equal(logits(load(kind, tmp_path / "folder").model), expected)
    torch.testing.assert_close(logits(load(kind, tmp_path / "tiny.gguf").model), expected, rtol=1e-5, atol=1e-5)


# -- those who use it --


def make_requests() -> list[Request]:
    dice = random.Random(0)
    return [
        Request(
            Prompt(Problem(str(n), (), ""), tuple(dice.randrange(10, 250) for _ in range(dice.randrange(1, 30)))),
            tuple(dice.getrandbits(63) for _ in range(3)),
        )
        for n in range(4)
    ]


@each_quantization
def test_engines_draw_with_it_and_agree_with_the_learner(kind: Kind) -> None:
    loaded = load(kind)
    with_adapters(loaded.model)
    policy = Policy(loaded, ema_decay=0.0)
    parts = (policy.model, policy.tokenizer, policy.stop_token_ids, 7)
    sampling, requests = SamplingParams(max_new_tokens=20), make_requests()
    native = dict(NativeEngine(*parts).generate(requests, sampling, 0))
    reference = dict(ReferenceEngine(*parts).generate(requests, sampling, 0))
    rollouts = [rollout for index in range(4) for rollout in native[index].rollouts]
    assert [rollout.token_ids for rollout in rollouts] == [
        rollout.token_ids for index in range(4) for rollout in reference[index].rollouts
    ]
    examples = [Example(native[n].prompt.token_ids, r.token_ids) for n in range(4) for r in native[n].rollouts]
    ours = policy.old_logprobs(examples, 1.0, 200)
    for mine, rollout in zip(ours, rollouts, strict=True):
        assert (mine - torch.tensor(rollout.rollout_logprobs)).abs().max() < AGREEMENT
    oracle = Policy(LoadedModel(densified(policy.model), policy.tokenizer, 512, CPU, torch.float32), ema_decay=0.0)
    for one in (policy, oracle):
        one.begin_stage(OptimizerConfig(), keep_reference=True)
        one.load_weights({name: weight * 1.5 for name, weight in one.weights.items()})
    references = [one.ref_logprobs(examples, 1.0, 200) for one in (policy, oracle)]
    for mine, theirs, before in zip(*references, ours, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine, before, rtol=1e-4, atol=1e-4)


@each_quantization
def test_what_leaves_it_is_dense_and_computes_the_same(kind: Kind) -> None:
    """For `groupwise export` and for vLLM."""
    model, plain = with_adapters(load(kind).model), make_tiny("tiny-qwen3", SMALL, seed=1)[0]
    merged = merged_state_dict(model)
    assert list(merged) == list(plain.state_dict())
    assert {tensor.dtype for tensor in merged.values()} == {torch.float32}
    plain.load_state_dict(merged, strict=True)
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-4, atol=1e-5)
    published = PublishedWeights(model).tensors()
    assert published.keys() == merged.keys()
    assert all(torch.equal(published[key], merged[key]) for key in merged)
    before = PublishedWeights(model).stamp()
    with torch.no_grad():
        next(iter(trainable_parameters(model).values())).add_(1.0)
    assert PublishedWeights(model).stamp() != before


# -- refusals --


def test_quantized_weights_are_for_adapters_alone() -> None:
    with pytest.raises(ConfigError, match=r"quantization = '4bit': .* cannot be trained.*add a lora table"):
        ModelConfig(path="tiny-qwen3", quantization="4bit")


def test_missing_bitsandbytes_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"model\.quantization = '4bit': needs bitsandbytes.*groupwise\[quantized\]"):
        load("4bit")
    assert any(isinstance(module, QuantizedLinear) for module in load("8bit").model.modules())


def test_a_model_without_linear_layers_is_refused() -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20, "n_positions": 32}
    model = AutoModelForCausalLM.from_config(GPT2Config(**sizes))  # its layers are called Conv1D
    with pytest.raises(ConfigError, match="GPT2LMHeadModel has no linear layers to quantize"):
        quantize(model, "8bit", CPU, torch.float32)


@needs_bitsandbytes
def test_weights_that_are_stored_quantized_are_refused(tmp_path: Path) -> None:
    model, tokenizer = make_tiny("tiny-llama", SMALL, seed=1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"model\.path = .*stored quantized; give the original model"):
        load("none", tmp_path)
    with pytest.raises(ConfigError, match="stored quantized and have no mean"):
        merge_folders([tmp_path, tmp_path], [0.5, 0.5], tmp_path / "out")
