"""Passes over all layers as CUDA graphs: the bits of passes that are not recorded, and memory that is shared."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from groupwise.config import LoraConfig, ModelConfig, OptimizerConfig
from groupwise.data.batch import Example, make_microbatches
from groupwise.data.pack import Pack
from groupwise.models import recorded as recorded_module
from groupwise.models.fused import PackedDecoder, fuse
from groupwise.models.load import load_model, recompute_activations
from groupwise.models.lora import add_lora, trainable_parameters
from groupwise.models.optimizer import GradientSums, MasterAdamW
from groupwise.models.placement import exchange
from groupwise.models.policy import Policy
from tests.gpu.test_native_cuda import CONFIGS, make_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

NAMES = [name for name in CONFIGS if name != "mistral, window"]


def make_pack(seed: int, tokens: int) -> Pack:
    dice = random.Random(seed)
    examples: list[Example] = []
    while sum(len(one.completion_ids) for one in examples) < tokens:
        prompt = tuple(dice.randrange(1000) for _ in range(dice.randrange(1, 90)))
        lengths = [dice.randrange(1, 150) for _ in range(4)]
        examples += [Example(prompt, tuple(dice.randrange(1000) for _ in range(length))) for length in lengths]
    batches = make_microbatches(examples, [1.0] * len(examples), 10**6, torch.device("cuda"), is_packed=True)
    inputs = batches[0].inputs
    assert isinstance(inputs, Pack)
    return inputs


def learn(decoder: PackedDecoder, optimizer: MasterAdamW, pack: Pack) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    optimizer.begin_gradients()
    hidden = decoder(pack)
    noise = torch.randn(hidden.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    (hidden.float() * noise).sum().backward()
    offered = {name: optimizer.sums.of(weight) for name, weight in optimizer._parameters.items()}
    sums = {name: total.clone() for name, total in offered.items() if total is not None}
    optimizer.clear_gradients()
    return hidden.detach().clone(), sums


@pytest.mark.parametrize("keep", [False, "mlp", True])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_recorded_is_what_is_not(name: str, keep: Any) -> None:
    model = make_model(name)
    recompute_activations(model, keep)
    sums = GradientSums()
    assert fuse(model, sums)
    optimizer = MasterAdamW(trainable_parameters(model), OptimizerConfig(), sums=sums)
    plain, recorded = PackedDecoder(model), PackedDecoder(model)
    for seed in range(4):
        pack = make_pack(seed, 2000 + 100 * seed)
        plain.forget()
        expected, learned = learn(plain, optimizer, pack)
        hidden, others = learn(recorded, optimizer, pack)
        assert torch.equal(hidden, expected)
        assert [key for key, total in learned.items() if not torch.equal(others[key], total)] == []
    assert plain.recorder.num_bytes == 0
    assert recorded.recorder.num_bytes > 0


def test_adapters_and_scoring_with_others() -> None:
    model = make_model("llama, 64")
    add_lora(model, LoraConfig(rank=4), seed=0)
    with torch.no_grad():
        for key, weight in trainable_parameters(model).items():
            if "lora_B" in key:
                weight.normal_(std=0.1)
    sums = GradientSums()
    assert fuse(model, sums)
    optimizer = MasterAdamW(trainable_parameters(model), OptimizerConfig(), sums=sums)
    plain, recorded = PackedDecoder(model), PackedDecoder(model)
    for seed in range(3):
        pack = make_pack(seed, 2000)
        plain.forget()
        expected, learned = learn(plain, optimizer, pack)
        hidden, others = learn(recorded, optimizer, pack)
        assert torch.equal(hidden, expected)
        assert [key for key, total in learned.items() if not torch.equal(others[key], total)] == []
        adapters = {key: weight.detach() for key, weight in trainable_parameters(model).items()}
        others = {key: 2 * weight for key, weight in adapters.items()}
        with torch.no_grad():
            exchange(adapters, others)
            plain.forget()
            scored = plain(pack).clone()
            assert torch.equal(recorded(pack), scored)
            exchange(adapters, others)
        assert not torch.equal(scored, expected)


def test_recordings_of_several_sizes_share_their_memory() -> None:
    model = make_model("llama, 64")
    sums = GradientSums()
    assert fuse(model, sums)
    optimizer = MasterAdamW(trainable_parameters(model), OptimizerConfig(), sums=sums)
    decoder = PackedDecoder(model)
    learn(decoder, optimizer, make_pack(0, 12_000))
    learn(decoder, optimizer, make_pack(0, 12_000))
    largest = decoder.recorder.num_bytes
    for tokens in (9_000, 6_000, 4_000):
        learn(decoder, optimizer, make_pack(1, tokens))
    assert decoder.recorder.num_bytes < 1.5 * largest


def test_packs_that_grow_take_no_more_than_the_largest() -> None:
    model = make_model("llama, 64")
    sums = GradientSums()
    assert fuse(model, sums)
    optimizer = MasterAdamW(trainable_parameters(model), OptimizerConfig(), sums=sums)

    def taken(*sizes: int) -> int:
        decoder = PackedDecoder(model)
        learn(decoder, optimizer, make_pack(0, 1_000))  # the first is not recorded
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        for tokens in sizes:
            learn(decoder, optimizer, make_pack(0, tokens))
        assert decoder.recorder.num_bytes > 0
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() - before

    alone = taken(12_000)
    assert taken(4_000, 6_000, 9_000, 12_000) < 1.1 * alone
    assert taken(4_000, 6_000, 9_000, 12_000, 9_000, 6_000) < 1.5 * alone


def test_memory_of_recordings_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted is never more than torch has taken of the GPU, and at least what the layers keep."""
    model = make_model("llama, 64")
    sums = GradientSums()
    assert fuse(model, sums)
    optimizer = MasterAdamW(trainable_parameters(model), OptimizerConfig(), sums=sums)
    decoder = PackedDecoder(model)
    taken: list[int] = []
    reset = torch.cuda.reset_peak_memory_stats

    def note_and_reset() -> None:
        taken.append(torch.cuda.max_memory_reserved())
        reset()

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", note_and_reset)
    for tokens in (12_000, 12_000, 9_000, 12_000, 9_000):
        torch.cuda.empty_cache()
        decoder.recorder.take_peak_bytes()
        taken.clear()
        before = torch.cuda.memory_allocated()
        learn(decoder, optimizer, make_pack(0, tokens))
        peak = decoder.recorder.take_peak_bytes()
        assert before + tokens * decoder._layers[0].kept_bytes * len(decoder._layers) < peak <= max(taken)
        assert torch.cuda.memory_allocated() + decoder.recorder.num_bytes <= torch.cuda.memory_reserved()


def test_packs_of_a_policy_are_no_larger_than_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is run as it is would need as much memory again, beside what recordings hold."""
    monkeypatch.setattr(recorded_module, "MEMORY_SHARE", 2**27 / torch.cuda.get_device_properties(0).total_memory)
    config = ModelConfig(path="tiny-qwen3", device="cuda", dtype="bfloat16", tiny={"hidden_size": 256, "num_heads": 4})
    policy = Policy(load_model(config, seed=0), ema_decay=0.0)
    assert policy._straight is not None
    most = policy._straight.most_tokens
    dice = random.Random(0)
    examples = [Example((1, 2, 3), tuple(dice.randrange(20) for _ in range(200))) for _ in range(3 * most // 200)]
    batches = list(policy.microbatches(examples, [1.0] * len(examples), 100 * most))
    assert len(batches) >= 3
    for _ in range(2):
        for batch in batches:
            assert isinstance(batch.inputs, Pack)
            assert len(batch.inputs.token_ids) <= most
            policy.optimizer.begin_gradients()
            logprobs, *_ = policy.logprobs(batch, 1.0)
            policy.backward(logprobs.sum())
            assert policy._straight._recorded.size_for(batch.inputs) is not None
            policy.optimizer.clear_gradients()
    assert policy.recorded_bytes > 0
