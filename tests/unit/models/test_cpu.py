"""A CPU: attention in blocks, bf16 where it is right and fast, an engine that computes what the learner computes."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from groupwise.config import LoraConfig, ModelConfig, make_recipe
from groupwise.data.batch import Example
from groupwise.engines.engine import Request
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.kernels import plain_packs
from groupwise.kernels.plain_packs import PlainPackedStep
from groupwise.kernels.seam import AttentionForm
from groupwise.models import cpu
from groupwise.models.load import LoadedModel, load_model
from groupwise.models.lora import add_lora
from groupwise.models.policy import Policy
from groupwise.models.tiny import make_tokenizer
from groupwise.training.setup import _with_dtype
from groupwise.types import Problem, Prompt, SamplingParams
from tests.factories import GRPO, TINY_MODEL, TOY_TASK
from tests.plain_kernels import attend, pack_of, seen_in_pack

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3}
CONFIGS = {
    "grouped": LlamaConfig(**SIZES, num_attention_heads=8, num_key_value_heads=2, head_dim=16),
    "one key head per query": LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=4),
    "biases": Qwen2Config(**SIZES, num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=True),
    "head norms": Qwen3Config(**SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=32),
}
EXACT = cpu._is_amd() and torch.backends.cpu.get_cpu_capability() == "AVX512"
"""Whether products are known to round each row alone. Elsewhere a library may add up in another order."""


@cache
def runs_bf16() -> bool:
    """Whether this processor multiplies in bf16. On some it ends the process."""
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def make_policy(name: str, dtype: torch.dtype, *, lora: bool = False) -> Policy:
    if dtype == torch.bfloat16 and not runs_bf16():
        pytest.skip("this processor does not multiply in bf16")
    cpu.prepare()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="sdpa").to(dtype).eval()
    with torch.no_grad():
        for layer in model.get_decoder().layers:  # with random weights, attention is nearly flat
            layer.self_attn.q_proj.weight.mul_(8)
            layer.self_attn.k_proj.weight.mul_(8)
    if lora:
        add_lora(model, LoraConfig(rank=3), seed=1)
        for key, weight in model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(weight, std=0.05)
    return Policy(LoadedModel(model, make_tokenizer(), 512, CPU, dtype), ema_decay=0.0)


def rollouts(policy: Policy, rows: int) -> list[Example]:
    dice = torch.Generator().manual_seed(3)
    requests = []
    for index, length in enumerate((1, 5, 17, 40)):
        ids = torch.randint(300, (length,), generator=dice).tolist()
        seeds = tuple(range(10 * index, 10 * index + 3 + index))
        requests.append(Request(Prompt(Problem(str(index), (), ""), tuple(ids)), seeds))
    engine = NativeEngine(policy.model, policy.tokenizer, (7, 8, 9, 10, 11, 12), rows, prefill_tokens=16)
    groups = [group for _, group in engine.generate(requests, SamplingParams(max_new_tokens=70), 0)]
    return [
        Example(group.prompt.token_ids, one.token_ids, rollout_logprobs=torch.tensor(one.rollout_logprobs))
        for group in groups
        for one in group.rollouts
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [1, 5, 30])
def test_the_engines_logprobs_are_the_learners(name: str, rows: int, dtype: torch.dtype) -> None:
    check_gap(make_policy(name, dtype), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_so_they_are_with_adapters(dtype: torch.dtype) -> None:
    # In fp32, torch computes products as small as those of these adapters otherwise.
    check_gap(make_policy("grouped", dtype, lora=True), 5, exact=EXACT and dtype == torch.bfloat16)


def check_gap(policy: Policy, rows: int, *, exact: bool = EXACT) -> None:
    examples = rollouts(policy, rows)
    assert len({len(example.completion_ids) for example in examples}) > 3  # they end at different times
    for max_tokens in (10_000, 120):  # however they are packed
        gaps = [
            (measured - example.rollout_logprobs).abs()
            for example, (measured, _) in zip(examples, policy.measure(examples, 1.0, max_tokens), strict=True)
            if example.rollout_logprobs is not None
        ]
        if exact:
            assert not torch.cat(gaps).any()
        assert torch.cat(gaps).mean() < (2e-6 if policy.dtype == torch.float32 else cpu.MAX_GAP)


@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("at_once", [1 << 30, 3000, 1])
def test_attention_in_blocks_is_attention_under_a_mask(
    window: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a block has few completions, or a few queries of one."""
    monkeypatch.setattr(plain_packs, "SCORE_BYTES", at_once)
    pack = pack_of((9, [7, 1, 20, 3]), (1, [5]), (30, [2, 2, 15]), device="cpu")
    dice = torch.Generator().manual_seed(1)
    shapes = ((len(pack.token_ids), heads, 8) for heads in (6, 2, 2))
    heads = tuple(torch.randn(shape, generator=dice, dtype=torch.float32).requires_grad_() for shape in shapes)
    expected = attend(*heads, seen_in_pack(pack, window), 0.4)
    step, form = PlainPackedStep(pack.segments), AttentionForm(0.4, 0.0, window)
    out, nothing = step.forward(0, heads, form)  # type: ignore[arg-type]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    grad = torch.randn(out.shape, generator=dice)
    found = step.backward(grad, heads, out.detach(), nothing, form)  # type: ignore[arg-type]
    for ours, theirs in zip(found, torch.autograd.grad(expected, heads, grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


# ---- model.dtype = "auto" ----


def large(monkeypatch: pytest.MonkeyPatch, answer: dict[str, float] | None) -> None:
    monkeypatch.setattr(cpu, "MIN_PARAMETERS", 1)
    monkeypatch.setattr(cpu, "probe", lambda folder: answer)


@pytest.mark.parametrize(
    ("answer", "dtype"),
    [
        ({"speedup": 1.5, "gap": 1e-3}, torch.bfloat16),
        ({"speedup": 1.49, "gap": 0.0}, torch.float32),
        ({"speedup": 3.0, "gap": 1.1e-3}, torch.float32),
        ({"speedup": 3.0, "gap": float("nan")}, torch.float32),
        (None, torch.float32),
    ],
)
def test_bf16_is_chosen_where_it_is_fast_and_right(
    answer: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large(monkeypatch, answer)
    with caplog.at_level(logging.INFO):
        loaded = load_model(ModelConfig(path="tiny-qwen3", device="cpu"), 0)
    assert loaded.dtype == loaded.model.dtype == dtype
    assert f"model.dtype = auto: {str(dtype).removeprefix('torch.')}" in caplog.text


def test_a_small_model_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "probe", lambda folder: pytest.fail("tried"))
    assert load_model(ModelConfig(path="tiny-qwen3", device="cpu"), 0).dtype == torch.float32


def test_nor_one_whose_layers_round_otherwise_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.families import make_tiny_family

    large(monkeypatch, {"speedup": 9.0, "gap": 0.0})
    assert cpu.choose_dtype(make_tiny_family("gemma2")) == torch.float32
    assert cpu.choose_dtype(make_tiny_family("llama")) == torch.bfloat16


def test_the_trial_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    if not runs_bf16():
        pytest.skip("this processor does not multiply in bf16")
    CONFIGS["head norms"].save_pretrained(tmp_path)
    answer = cpu.probe(tmp_path)
    assert answer is not None
    assert answer["speedup"] > 0
    assert answer["gap"] <= (0.0 if EXACT else cpu.MAX_GAP)


def test_a_trial_that_ends_the_process_means_that_there_is_no_bf16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(command: list[str], **options: Any) -> None:
        code = f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})"
        real([sys.executable, "-c", code], **options)

    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", die)
    assert cpu.probe(tmp_path) is None


@pytest.mark.parametrize(
    ("machine", "dtype"),
    [
        ({"device": "cpu", "dtype": "bfloat16"}, "bfloat16"),
        ({"device": "cpu"}, "float32"),  # a run from before it was recorded
        ({"device": "cuda"}, "auto"),
        ({}, "auto"),
    ],
)
def test_a_run_is_resumed_with_the_dtype_that_it_began_with(
    machine: dict[str, str], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe({"name": "run", "model": TINY_MODEL, "task": TOY_TASK, "stages": [GRPO]})
    monkeypatch.setattr("groupwise.runs.reader.Run.info_if_any", {"machine": machine})
    assert _with_dtype(recipe, tmp_path).model.dtype == dtype


def test_products_in_fp32_stay_exact() -> None:
    cpu.prepare()
    assert cpu._is_exact()
