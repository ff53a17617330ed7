"""QLoRA on a GPU: packed weights take little memory, and engine and learner compute with them alike."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from groupwise.config import LoraConfig, ModelConfig, Recipe
from groupwise.models.fused import fuse
from groupwise.models.load import load_model
from groupwise.models.lora import add_lora, trainable_parameters
from groupwise.models.policy import AGREEMENT, load_policy
from groupwise.models.quantized import QuantizedLinear, quantize
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from tests.factories import GRPO, SFT, TINY_MODEL
from tests.gpu.test_native_cuda import logprob_gap, make_model, make_requests, sample, sharpen
from tests.integration.conftest import recipe_with

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

__all__ = ["recipe_with"]

Kind = Literal["4bit", "8bit"]
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes (groupwise[quantized])"
)
each_kind = pytest.mark.parametrize("kind", [pytest.param("4bit", marks=needs_bitsandbytes), "8bit"])


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


class Stack(nn.Sequential):
    """Linear layers as a model has them."""

    def get_output_embeddings(self) -> None:
        return None


def allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


@each_kind
def test_packed_weights_take_a_fraction_and_come_one_at_a_time(kind: Kind) -> None:
    size, count = 2048, 12
    layer_bytes = 2 * size * size
    stack = Stack(*(nn.Linear(size, size, bias=False) for _ in range(count)))
    quantize(Stack(nn.Linear(64, 64)), kind, device(), torch.bfloat16)  # what is loaded once and for all
    before = allocated()
    torch.cuda.reset_peak_memory_stats()
    quantize(stack, kind, device(), torch.bfloat16)
    taken = allocated() - before
    assert taken < {"4bit": 0.35, "8bit": 0.6}[kind] * count * layer_bytes
    # While one is packed it is there in bf16, and its quotients in fp32 for a moment.
    assert torch.cuda.max_memory_allocated() - before < taken + 8 * layer_bytes
    assert all(isinstance(layer, QuantizedLinear) for layer in stack)


@each_kind
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("columns", [96, 256, 4864])
def test_outputs_and_gradients_are_those_of_the_dense_weight(kind: Kind, rows: int, columns: int) -> None:
    torch.manual_seed(0)
    layer = QuantizedLinear(nn.Linear(columns, 512), kind, device(), torch.bfloat16)
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    ours, expected = layer(x), nn.functional.linear(twin, layer.dense(), layer.bias)
    assert ours.shape == expected.shape == (rows, 512)
    torch.testing.assert_close(ours, expected, rtol=1.6e-2, atol=1e-2)
    weights = torch.randn_like(ours)
    (ours * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, twin.grad, rtol=1.6e-2, atol=1e-2)


@each_kind
def test_the_gpu_packs_as_the_cpu_does(kind: Kind) -> None:
    """An export may be made on another machine than the run. A value between two codes may fall either way."""
    torch.manual_seed(0)
    linear = nn.Linear(176, 320, bias=False)
    here, there = (QuantizedLinear(linear, kind, where, torch.bfloat16).dense().cpu() for where in (device(), "cpu"))
    is_same = torch.isclose(here.float(), there.float(), rtol=1.6e-2, atol=1e-6)
    assert is_same.float().mean() > 0.99
    assert (here.float() - there.float()).norm() < 0.02 * there.float().norm()


@each_kind
@pytest.mark.parametrize("name", ["qwen2, tied", "qwen3, 128", "long sums"])
@pytest.mark.parametrize("is_moved", [False, True])
def test_the_engines_logprobs_are_the_learners(kind: Kind, name: str, is_moved: bool) -> None:
    """Through captured graphs. Adapters run as modules here, and the library may take another kernel for few rows of a
    narrow product, so that they may round otherwise; the quantized layers themselves must not."""
    model = sharpen(make_model(name))
    quantize(model, kind, model.device, model.dtype)
    add_lora(model, LoraConfig(rank=16), seed=0)
    if is_moved:
        for key, weight in trainable_parameters(model).items():
            if "lora_B" in key:
                nn.init.normal_(weight, std=0.02)
    assert fuse(model)
    for rows in (3, 40, 90):
        gap = logprob_gap(model, sample(model, make_requests(12, 8), rows))
        assert gap < (0.05 if is_moved else AGREEMENT), rows


@each_kind
def test_what_is_drawn_follows_the_adapters(kind: Kind) -> None:
    """A graph that was captured before an update must see what the update wrote."""
    model = make_model("qwen3, 128")
    quantize(model, kind, model.device, model.dtype)
    add_lora(model, LoraConfig(rank=16), seed=0)
    fuse(model)
    requests = make_requests(4, 4)
    before = [group.rollouts for group in sample(model, requests, 16)]
    assert [group.rollouts for group in sample(model, requests, 16)] == before
    for key, weight in trainable_parameters(model).items():
        if "lora_B" in key:
            nn.init.normal_(weight, std=0.2)
    assert [group.rollouts for group in sample(model, requests, 16)] != before


@each_kind
@pytest.mark.parametrize("checkpointing", [False, True, "mlp"])
def test_a_run_trains_in_bf16_and_is_resumed(
    kind: Kind, checkpointing: Any, recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    changes = {"device": "cuda", "lora": {"rank": 4}, "quantization": kind, "gradient_checkpointing": checkpointing}
    stages = [SFT, GRPO | {"steps": 2, "kl": {"coefficient": 0.1}}]
    recipe = recipe_with(model=TINY_MODEL | changes, engine={"name": "native"}, stages=stages)
    policy = load_policy(recipe)
    packed = torch.uint8 if kind == "4bit" else torch.int8
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.bfloat16, packed}
    assert {weight.dtype for weight in policy.weights.values()} == {torch.float32}
    assert all("lora_" in name for name in policy.weights)
    assert pipeline.train(recipe, tmp_path / "run")
    steps = [record.metrics for record in Run(tmp_path / "run").steps() if "engine/logprob_gap_mean" in record.metrics]
    assert len(steps) == 2
    assert all(metrics["engine/logprob_gap_mean"] < 0.01 for metrics in steps)
    assert all(metrics["policy/grad_norm"] > 0 for metrics in steps)
    assert pipeline.resume(tmp_path / "run")


@each_kind
def test_loading_leaves_nothing_dense_behind(kind: Kind) -> None:
    """A whole model, from the recipe's keys."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_layers": 4, "num_heads": 8, "num_kv_heads": 8}
    loaded = {}
    for quantization in ("none", kind):
        before = allocated()
        config = ModelConfig(
            path="tiny-qwen3", device="cuda", tiny=sizes, lora=LoraConfig(rank=4), quantization=quantization
        )
        model = load_model(config, seed=0).model
        loaded[quantization] = allocated() - before
        del model
    assert loaded[kind] < {"4bit": 0.35, "8bit": 0.6}[kind] * loaded["none"]
