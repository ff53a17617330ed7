"""The native engine and the fused model on a GPU: the engine's logprobs are the learner's, and gradients are right."""

from __future__ import annotations

import copy
import gc
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from groupwise.algo.logprobs import head_logprobs, token_logprobs
from groupwise.config import LoraConfig, ModelConfig, Recipe
from groupwise.data.batch import Example, Microbatch, Rectangle, make_microbatches
from groupwise.data.pack import Pack
from groupwise.engines.engine import Request
from groupwise.engines.native.decode import Runner
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.kernels.seam import attending
from groupwise.models.fused import fuse, packed_hidden
from groupwise.models.head import own_logits
from groupwise.models.load import load_model, recompute_activations
from groupwise.models.lora import add_lora
from groupwise.models.tiny import make_tokenizer
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from groupwise.types import Group, Problem, Prompt, SamplingParams
from tests.factories import GRPO, SFT, TINY_MODEL
from tests.integration.conftest import recipe_with

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

__all__ = ["recipe_with"]

SIZES: dict[str, Any] = {"vocab_size": 1000, "intermediate_size": 512, "num_hidden_layers": 4, "hidden_size": 256}
CONFIGS = {
    "llama, 64": LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2),
    "qwen2, tied": Qwen2Config(**SIZES, num_attention_heads=4, num_key_value_heads=1, tie_word_embeddings=True),
    "qwen3, 128": Qwen3Config(**SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=128),
    "qwen3, 256": Qwen3Config(**SIZES, num_attention_heads=2, num_key_value_heads=1, head_dim=256),
    "mistral, window": MistralConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2, sliding_window=70),
    "long sums": LlamaConfig(**(SIZES | {"intermediate_size": 4864}), num_attention_heads=4, num_key_value_heads=2),
}


GEMMA = Gemma2Config(**SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=64, sliding_window=70)


def make_model(name: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    torch.manual_seed(0)
    config = GEMMA if name.startswith("gemma2") else CONFIGS[name]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager" if config is GEMMA else "sdpa")
    return model.to(device="cuda", dtype=dtype).eval()


def make_requests(num_prompts: int, group_size: int, longest: int = 300) -> list[Request]:
    dice = random.Random(0)
    return [
        Request(
            Prompt(Problem(str(n), (), ""), tuple(dice.randrange(1000) for _ in range(dice.randrange(1, longest)))),
            tuple(dice.getrandbits(63) for _ in range(group_size)),
        )
        for n in range(num_prompts)
    ]


PLAIN = SamplingParams(max_new_tokens=60)


def sample(
    model: Any, requests: list[Request], rows: int, sampling: SamplingParams = PLAIN, **options: Any
) -> list[Group]:
    engine = NativeEngine(model, make_tokenizer(), (7, 8, 9), rows, **options)
    groups = dict(engine.generate(requests, sampling, 0))
    return [groups[index] for index in range(len(requests))]


def learner_logprobs(model: Any, microbatch: Microbatch) -> torch.Tensor:
    from groupwise.kernels.output_head import TritonRows

    assert isinstance(microbatch.inputs, Pack)
    hidden = packed_hidden(model, microbatch.inputs)
    # In chunks of an odd size: they must not matter.
    weight = model.get_output_embeddings().weight
    return head_logprobs(hidden, weight, microbatch.completion_ids, 1.0, 333, TritonRows())[0]


def logprob_gap(model: Any, groups: list[Group]) -> float:
    """Largest difference between the engine's logprobs and a packed pass over the whole sequences."""
    examples = [Example(group.prompt.token_ids, rollout.token_ids) for group in groups for rollout in group.rollouts]
    rollouts = [rollout.rollout_logprobs for group in groups for rollout in group.rollouts]
    largest = 0.0
    with torch.no_grad(), attending(model):
        weights = [1.0] * len(examples)
        for microbatch in make_microbatches(examples, weights, 4096, torch.device("cuda"), is_packed=True):
            ours = learner_logprobs(model, microbatch)
            theirs = torch.cat([torch.tensor(rollouts[index]) for index in microbatch.example_indices]).cuda()
            largest = max(largest, float((ours - theirs).abs().max()))
    return largest


def sharpen(model: Any) -> Any:
    """Attention of random weights is nearly flat, and its sums exact in any order; not so that of a trained model."""
    with torch.no_grad():
        for layer in model.get_decoder().layers:
            layer.self_attn.q_proj.weight.mul_(20)
            layer.self_attn.k_proj.weight.mul_(20)
    return model


# What is left is the last rounding of the sum over the vocabulary.
MAX_GAP = 1e-5


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [3, 40, 90])
def test_the_engines_logprobs_are_the_learners(name: str, rows: int) -> None:
    model = sharpen(make_model(name))
    assert fuse(model)
    groups = sample(model, make_requests(12, 8), rows, prefill_tokens=500)
    assert logprob_gap(model, groups) < MAX_GAP


@pytest.mark.parametrize(
    "targets", [("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), ("q_proj", "up_proj")]
)
@pytest.mark.parametrize("name", ["qwen2, tied", "long sums"])
def test_so_they_are_with_adapters(name: str, targets: tuple[str, ...]) -> None:
    model = sharpen(make_model(name))
    add_lora(model, LoraConfig(rank=12, target_modules=targets), seed=0)
    for parameter, weight in model.named_parameters():
        if "lora_B" in parameter:  # as after some training: they begin as zeros
            torch.nn.init.normal_(weight, std=0.02)
    assert fuse(model)
    for rows in (40, 90):
        assert logprob_gap(model, sample(model, make_requests(12, 8), rows)) < MAX_GAP


def test_so_they_are_where_the_model_runs_its_own_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.engines.native.cuda.is_straight", lambda model: False)
    model = sharpen(make_model("qwen3, 128"))
    assert fuse(model)
    assert logprob_gap(model, sample(model, make_requests(12, 8), 40)) < MAX_GAP


def test_so_they_are_with_real_weights() -> None:
    found = sorted(Path(os.environ.get("GROUPWISE_MODELS", "")).glob("**/SmolLM2*.gguf"))
    if not found:
        pytest.skip("needs real weights in GROUPWISE_MODELS")
    loaded = load_model(ModelConfig(path=str(found[0])), seed=0)
    assert fuse(loaded.model)
    texts = [
        "The capital of France is",
        "Question: what is 12 times 7? Answer: Let's think step by step.",
        "def fib(n):",
    ]
    requests = [
        Request(Prompt(Problem(text, (), ""), tuple(loaded.tokenizer(text)["input_ids"])), tuple(range(8)))
        for text in texts
    ]
    engine = NativeEngine(loaded.model, loaded.tokenizer, (), 24)
    groups = [group for _, group in engine.generate(requests, SamplingParams(max_new_tokens=400), 0)]
    assert logprob_gap(loaded.model, groups) < 1e-4


TRUNCATED = [{"top_p": 0.8}, {"top_k": 20}, {"min_p": 0.3}, {"top_k": 300, "top_p": 0.9, "min_p": 0.2}]


@pytest.mark.parametrize("keys", TRUNCATED, ids=str)
def test_so_they_are_with_truncated_sampling(keys: dict[str, Any]) -> None:
    model = sharpen(make_model("qwen3, 128"))
    assert fuse(model)
    groups = sample(model, make_requests(12, 8), 40, SamplingParams(max_new_tokens=60, **keys))
    assert logprob_gap(model, groups) < MAX_GAP


@pytest.mark.parametrize("lora", [False, True])
def test_memory_is_handed_back_after_each_call(lora: bool) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16,
        vocab_size=32000,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to("cuda", torch.bfloat16).eval()
    if lora:
        add_lora(model, LoraConfig(rank=8), seed=0)
    fuse(model)
    requests = make_requests(32, 8)
    warm = sample(model, requests[:1], 8)  # what is loaded once and for all: kernels, workspaces
    assert warm
    gc.collect()
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info()
    engine = NativeEngine(model, make_tokenizer(), (7, 8, 9), 256)
    running = engine.generate(requests, SamplingParams(max_new_tokens=60), 0)
    first = [next(running)]
    during, _ = torch.cuda.mem_get_info()
    first += running
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info()
    assert before - during > 3 << 30
    assert before - after < 200 << 20, f"{(before - after) >> 20} MiB are still held"
    again = dict(engine.generate(requests, SamplingParams(max_new_tokens=60), 0))
    assert again == dict(first)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        *((name, {}) for name in ("llama, 64", "qwen3, 128", "mistral, window", "gemma2, soft caps")),
        *(("llama, 64", {"temperature": 0.7} | keys) for keys in TRUNCATED),
    ],
)
def test_fp32_draws_what_the_plain_runner_draws(
    name: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, requests = make_model(name, torch.float32), make_requests(9, 4, longest=90)
    sampling = SamplingParams(max_new_tokens=60, **keys)
    fast = sample(model, requests, 20, sampling, prefill_tokens=50)
    monkeypatch.setattr(
        NativeEngine, "_make_runner", lambda self, layout, **sizes: Runner(self._model, layout, **sizes)
    )
    plain = sample(model, requests, 20, sampling)
    pairs = [
        pair
        for left, right in zip(fast, plain, strict=True)
        for pair in zip(left.rollouts, right.rollouts, strict=True)
    ]
    same = [(ours, theirs) for ours, theirs in pairs if ours.token_ids == theirs.token_ids]
    assert len(same) >= len(pairs) - 1  # sums are added up in another order: a tie may fall the other way
    for ours, theirs in same:
        torch.testing.assert_close(ours.rollout_logprobs, theirs.rollout_logprobs, rtol=0, atol=2e-5)


def test_what_is_drawn_does_not_depend_on_the_batch() -> None:
    model = make_model("qwen3, 128")
    fuse(model)
    requests = make_requests(6, 4)
    whole = sample(model, requests, 200)
    for rows in (1, 5):
        assert [g.rollouts for g in sample(model, requests, rows)] == [g.rollouts for g in whole]


@pytest.mark.parametrize("keep", [False, "mlp", True])
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_as_good_as_those_of_the_models_own_code(name: str, keep: Any) -> None:
    exact = make_model(name, torch.float32)
    eager = copy.deepcopy(exact).bfloat16()
    ours = copy.deepcopy(eager)
    recompute_activations(ours, keep)
    assert fuse(ours)
    dice = random.Random(1)
    examples = [
        Example(
            tuple(dice.randrange(1000) for _ in range(dice.randrange(1, 200))),
            tuple(dice.randrange(1000) for _ in range(dice.randrange(1, 150))),
        )
        for _ in range(12)
    ]
    # Some continue one prompt, which is there once in the pack.
    examples = [replace(one, prompt_ids=examples[row % 7].prompt_ids) for row, one in enumerate(examples)]
    padded, packed = (
        make_microbatches(examples, [1.0] * 12, 10**6, torch.device("cuda"), is_packed=is_packed)[0]
        for is_packed in (False, True)
    )
    assert isinstance(padded.inputs, Rectangle)
    for model in (exact, eager):
        token_logprobs(own_logits(model, padded.inputs), padded.completion_ids, 1.0).mean().backward()
    with attending(ours):
        learner_logprobs(ours, packed).mean().backward()
    for (weight, truth), theirs, mine in zip(
        exact.named_parameters(), eager.parameters(), ours.parameters(), strict=True
    ):
        scale = truth.grad.norm() + 1e-12
        error = (mine.grad.float() - truth.grad).norm() / scale
        their_error = (theirs.grad.float() - truth.grad).norm() / scale
        assert error < 1.3 * their_error + 2e-3, weight


@pytest.mark.parametrize("changes", [{}, {"gradient_checkpointing": True}, {"lora": {"rank": 4}}])
def test_a_run_with_the_native_engine_has_no_gap(
    changes: dict[str, Any], recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    model = TINY_MODEL | {"device": "cuda"} | changes
    recipe = recipe_with(
        model=model, engine={"name": "native"}, stages=[SFT, GRPO | {"steps": 4, "kl": {"coefficient": 0.1}}]
    )
    assert pipeline.train(recipe, tmp_path / "run")
    steps = [record.metrics for record in Run(tmp_path / "run").steps() if "engine/logprob_gap_mean" in record.metrics]
    assert len(steps) == 4
    assert all(metrics["engine/logprob_gap_mean"] < 1e-5 for metrics in steps)
    assert all(metrics["policy/grad_norm"] > 0 for metrics in steps)
    assert pipeline.resume(tmp_path / "run")


def test_the_cache_keeps_within_what_the_process_may_have() -> None:
    engine = NativeEngine(make_model("llama, 64"), make_tokenizer(), (7, 8, 9), 64)
    layout = engine.find_layout()
    everything = engine._affordable_blocks(layout, 64)
    total = torch.cuda.get_device_properties(0).total_memory
    allowed = torch.cuda.memory_reserved() + 2**30
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        found = engine._affordable_blocks(layout, 64) * layout.block_bytes(torch.bfloat16)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert 0.7 * 2**30 < found <= 2**30
    assert everything * layout.block_bytes(torch.bfloat16) > 2 * found
