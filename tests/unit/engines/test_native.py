"""The native engine on the CPU, against the reference engine: the same tokens, however it schedules them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from groupwise.config import LoraConfig
from groupwise.engines.engine import Request
from groupwise.engines.native.decode import Runner
from groupwise.engines.native.native_engine import CacheTooSmall, NativeEngine
from groupwise.engines.reference import ReferenceEngine
from groupwise.kernels.seam import UnsupportedModel, _attention, attending
from groupwise.models.lora import add_lora
from groupwise.models.tiny import make_tokenizer
from groupwise.types import Finish, Group, Problem, Prompt, SamplingParams

STOPS = (7, 8, 9)
SIZES: dict[str, Any] = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3, tied, head size 16": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "mistral with a window": MistralConfig(**SIZES, sliding_window=9),
    "gemma2: window, soft caps": Gemma2Config(
        **SIZES, head_dim=8, sliding_window=9, final_logit_softcapping=3.0, attn_logit_softcapping=2.0
    ),
    "granite: scaled logits": GraniteConfig(**SIZES, logits_scaling=3.0),
    "gemma3": Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=9),
}


def make_model(name: str = "llama", seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data.mul_(6.0 if parameter.dim() > 1 else 1.0)  # else all tokens are alike, and nothing is tested
    return model.requires_grad_(False)


def make_requests(shapes: Sequence[tuple[int, int]], seed: int = 0) -> list[Request]:
    """(prompt tokens, rollouts) of each."""
    dice = random.Random(seed)
    return [
        Request(
            Prompt(Problem(f"p{number}", (), ""), tuple(dice.randrange(10, 250) for _ in range(length))),
            tuple(dice.getrandbits(63) for _ in range(size)),
        )
        for number, (length, size) in enumerate(shapes)
    ]


# Prompts shorter, as long as and longer than blocks of 16 by one, a group of one, one without rollouts.
MIXED = [(1, 3), (2, 1), (16, 4), (17, 4), (18, 3), (33, 4), (50, 2), (5, 0), (40, 5)]
SAMPLING = SamplingParams(max_new_tokens=24)


def native(model: Any, rows: int = 256, stops: Sequence[int] = STOPS, **options: Any) -> NativeEngine:
    return NativeEngine(model, make_tokenizer(), stops, rows, **options)


def reference(model: Any, stops: Sequence[int] = STOPS) -> ReferenceEngine:
    return ReferenceEngine(model, make_tokenizer(), stops, 256)


def sample(engine: Any, requests: Sequence[Request], sampling: SamplingParams = SAMPLING) -> dict[int, Group]:
    groups = list(engine.generate(requests, sampling, policy_version=5))
    assert len(dict(groups)) == len(groups) == len(requests)
    return dict(groups)


def assert_same(left: dict[int, Group], right: dict[int, Group]) -> None:
    assert left.keys() == right.keys()
    for index, group in left.items():
        assert group.prompt == right[index].prompt
        for ours, theirs in zip(group.rollouts, right[index].rollouts, strict=True):
            assert (ours.token_ids, ours.text, ours.finish) == (theirs.token_ids, theirs.text, theirs.finish)
            assert ours.policy_version == theirs.policy_version == 5
            assert ours.rollout_logprobs == pytest.approx(theirs.rollout_logprobs, abs=2e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_it_draws_what_the_reference_draws(name: str) -> None:
    model = make_model(name)
    requests = make_requests(MIXED)
    expected = sample(reference(model), requests)
    assert_same(sample(native(model), requests), expected)
    finishes = {rollout.finish for group in expected.values() for rollout in group.rollouts}
    assert finishes == {Finish.STOP, Finish.LENGTH}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"rows": 1}, id="one by one"),
        pytest.param({"rows": 5}, id="a queue"),
        pytest.param({"prefill_tokens": 7}, id="prompts in pieces of 7 tokens"),
        pytest.param({"prefill_tokens": 16}, id="prompts in pieces of a block"),
        pytest.param({"rows": 3, "prefill_tokens": 1}, id="token by token"),
        pytest.param({"cache_tokens": 16 * 24}, id="a cache that holds a few rollouts"),
    ],
)
def test_how_it_is_scheduled_moves_nothing(options: dict[str, Any]) -> None:
    model, requests = make_model("mistral with a window"), make_requests(MIXED)
    assert_same(sample(native(model, **options), requests), sample(native(model), requests))


@pytest.mark.parametrize("rows", [256, 5])
@pytest.mark.parametrize(("ahead", "steps"), [(0, 8), (1, 1), (1, 8), (2, 3)])
def test_when_the_host_looks_moves_nothing(rows: int, ahead: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several steps at a time, as on a GPU: the next ones begin before it is known which rollouts have ended."""
    model, requests = make_model(), make_requests(MIXED)
    text = sample(native(model, stops=()), requests)[0].rollouts[0].text
    for sampling in (SAMPLING, SamplingParams(max_new_tokens=24, stop_strings=(text[3:5],))):
        with monkeypatch.context() as patch:
            patch.setattr(Runner, "looks_ahead", ahead)
            patch.setattr(Runner, "steps_per_look", steps)
            patch.setattr(Runner, "entry_share", 0.4 * ahead)
            ours = sample(native(model, rows), requests, sampling)
        assert_same(ours, sample(reference(model), requests, sampling))


def test_a_shared_prompt_is_like_prompts_of_their_own() -> None:
    model, requests = make_model(), make_requests([(40, 6), (33, 3)])
    alone = [Request(request.prompt, (seed,)) for request in requests for seed in request.seeds]
    shared = sample(native(model), requests)
    apart = sample(native(model), alone)
    joined = [rollout for index in range(2) for rollout in shared[index].rollouts]
    for rollout, index in zip(joined, range(len(alone)), strict=True):
        assert rollout.token_ids == apart[index].rollouts[0].token_ids


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_new_tokens=12, temperature=0.0),
        SamplingParams(max_new_tokens=12, temperature=0.7, top_k=20),
        SamplingParams(max_new_tokens=12, temperature=1.3, top_p=0.8),
        SamplingParams(max_new_tokens=12, min_p=0.05, top_p=0.95),
        SamplingParams(max_new_tokens=1),
        SamplingParams(max_new_tokens=0),
    ],
)
def test_every_way_of_drawing(sampling: SamplingParams) -> None:
    model, requests = make_model(), make_requests(MIXED)
    assert_same(sample(native(model, rows=6), requests, sampling), sample(reference(model), requests, sampling))


def test_a_rollout_may_end_at_once_or_never() -> None:
    model, requests = make_model(), make_requests([(9, 4)])
    at_once = sample(native(model, stops=range(261)), requests)
    assert all(len(rollout.token_ids) == 1 and rollout.finish is Finish.STOP for rollout in at_once[0].rollouts)
    never = sample(native(model, stops=()), requests)
    assert all(len(r.token_ids) == 24 and r.finish is Finish.LENGTH for r in never[0].rollouts)


def test_stop_strings_end_a_rollout_where_the_reference_ends_it() -> None:
    model, requests = make_model(), make_requests([(20, 12)])
    free = sample(native(model, stops=()), requests)
    # Two neighbouring characters of what was drawn: a string across the border of two tokens.
    text = next(r.text for r in free[0].rollouts if len(r.text) > 12 and r.text[4:6].isprintable())
    sampling = SamplingParams(max_new_tokens=24, stop_strings=(text[4:6], text[9:12]))
    expected = sample(reference(model, stops=()), requests, sampling)
    assert any(rollout.finish is Finish.STOP for rollout in expected[0].rollouts)
    for rows in (12, 3):
        assert_same(sample(native(model, rows, stops=()), requests, sampling), expected)


class RoundedLinear(torch.nn.Module):
    """A linear layer with int8 weights, as quantization puts in a model's place for one."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.scale = linear.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        self.rounded = (linear.weight.detach() / self.scale).round().to(torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.rounded * self.scale)


def test_quantized_layers_are_run_as_they_are() -> None:
    model, requests = make_model(), make_requests(MIXED)
    before = sample(native(model), requests)
    for layer in model.get_decoder().layers:
        layer.self_attn.q_proj = RoundedLinear(layer.self_attn.q_proj)
        layer.mlp.down_proj = RoundedLinear(layer.mlp.down_proj)
    after = sample(native(model), requests)
    assert_same(after, sample(reference(model), requests))
    logprobs = [[r.rollout_logprobs for group in groups.values() for r in group.rollouts] for groups in (before, after)]
    assert logprobs[0] != logprobs[1]  # the layers were used


def test_groups_come_out_as_they_complete() -> None:
    model, requests = make_model(), make_requests([(9, 2)] * 6)
    engine = native(model, rows=2, stops=())
    seen = []
    for index, _ in engine.generate(requests, SAMPLING, 5):
        seen.append(index)
        if len(seen) == 1:
            assert index == 0  # five groups have not even begun
    assert seen == list(range(6))


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_cancelled_run_leaves_the_engine_usable(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, requests = make_model(), make_requests(MIXED)
    engine = native(model, rows=4)
    monkeypatch.setattr(Runner, "looks_ahead", ahead)
    running = engine.generate(requests, SAMPLING, 5)
    next(running)
    next(running)
    running.close()
    assert_same(sample(engine, requests), sample(reference(model), requests))


def test_one_engine_serves_requests_of_any_size() -> None:
    model = make_model()
    engine = native(model)
    for shapes, length in (([(3, 2)], 4), ([(60, 9)], 30), ([(3, 2)], 4), ([(20, 3)] * 9, 12)):
        requests, sampling = make_requests(shapes, seed=length), SamplingParams(max_new_tokens=length)
        assert_same(sample(engine, requests, sampling), sample(reference(model), requests, sampling))


def test_new_weights_are_used_at_once() -> None:
    model, requests = make_model(), make_requests([(9, 4)])
    engine = native(model)
    before = sample(engine, requests)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    after = sample(engine, requests)
    assert_same(after, sample(reference(model), requests))
    assert [r.token_ids for r in before[0].rollouts] != [r.token_ids for r in after[0].rollouts]


def test_adapters_are_in_place() -> None:
    model, requests = make_model(), make_requests(MIXED)
    plain = sample(native(model), requests)
    add_lora(model, LoraConfig(rank=4), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    adapted = sample(native(model), requests)
    assert_same(adapted, sample(reference(model), requests))
    assert any(adapted[i].rollouts[0].token_ids != plain[i].rollouts[0].token_ids for i in (0, 2, 3))


def test_the_model_is_left_as_it_was() -> None:
    model, requests = make_model(), make_requests([(9, 2)])
    ids = torch.tensor([[10, 11, 12]])
    before = model(ids).logits
    sample(native(model), requests)
    assert model.config._attn_implementation == "eager"
    assert torch.equal(model(ids).logits, before)


def test_a_cache_that_cannot_hold_one_group_is_refused_with_the_arithmetic() -> None:
    model, requests = make_model(), make_requests([(40, 8)])
    with pytest.raises(
        CacheTooSmall, match=r"10 blocks × 16 tokens.*40 tokens and 8 rollouts of up to 24 need 19 blocks"
    ):
        sample(native(model, cache_tokens=160), requests)


def test_attention_sinks_are_refused() -> None:
    model = make_model()
    x = torch.zeros(1, 4, 1, 8)
    with attending(model, None), pytest.raises(RuntimeError, match="without a step"):  # type: ignore[arg-type]
        _attention(model, x, x, x, None)
    with attending(model, object()), pytest.raises(UnsupportedModel, match="attention sinks"):  # type: ignore[arg-type]
        _attention(model, x, x, x, None, s_aux=torch.zeros(4))
