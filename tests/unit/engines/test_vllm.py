"""The vLLM engine without vLLM: what it makes of answers, when it publishes, and what it says of what is wrong."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.algo.logprobs import token_logprobs
from groupwise.config import (
    ALGORITHMS,
    ConfigError,
    EngineConfig,
    Recipe,
    RlStage,
    dump_toml,
    fingerprint,
    make_recipe,
    parse_recipe,
    to_table,
)
from groupwise.engines.engine import Request
from groupwise.engines.factory import make_engine
from groupwise.engines.reference import ReferenceEngine
from groupwise.engines.vllm.vllm_engine import Draw, Drawn, PublishedWeights, VllmEngine, VllmError
from groupwise.models.policy import Policy, load_policy
from groupwise.models.tiny import make_tiny, make_tokenizer
from groupwise.types import Finish, Group, Problem, Prompt, Rollout, SamplingParams
from tests.factories import TINY_SIZES

TOKENIZER = make_tokenizer()
STOP = TOKENIZER.eos_token_id


def recipe(engine: Mapping[str, Any], *, model: Mapping[str, Any] | None = None, **stage: Any) -> Recipe:
    table = {"algorithm": "grpo", "steps": 1, "problems_per_step": 2, "rollouts_per_problem": 2} | stage
    return make_recipe(
        {
            "name": "test",
            "model": {"path": "tiny-qwen3", "device": "cpu", "tiny": TINY_SIZES, **(model or {})},
            "task": {"name": "countdown"},
            "engine": engine,
            "stages": [table],
        }
    )


def importance(made: Recipe) -> str:
    (stage,) = made.stages
    assert isinstance(stage, RlStage)
    return stage.loss.importance


# --- the recipe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_importance_is_corrected_for_unless_the_recipe_says_otherwise(algorithm: str) -> None:
    vllm = {"name": "vllm"}
    assert importance(recipe(vllm, algorithm=algorithm)) == "truncated"
    for said in ("none", "masked", "truncated"):
        assert importance(recipe(vllm, algorithm=algorithm, loss={"importance": said})) == said
    assert importance(recipe(vllm, algorithm=algorithm, loss={"importance_cap": 3.0})) == "truncated"
    for other in ({}, {"name": "native"}, {"name": "reference"}):
        assert importance(recipe(other, algorithm=algorithm)) == "none"


def test_the_recipe_that_is_kept_says_what_is_used() -> None:
    made = recipe({"name": "vllm"})
    text = dump_toml(to_table(made))
    assert 'importance = "truncated"' in text
    assert parse_recipe(text) == made


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"url": "http://127.0.0.1:8000"}, "engine: url = 'http://127.0.0.1:8000': needs name = \"vllm\""),
        ({"name": "native", "memory_share": 0.5}, r"memory_share = 0.5: needs name = \"vllm\" without url"),
        ({"name": "vllm", "weights_folder": "w"}, "weights_folder = 'w': needs name = \"vllm\" and url"),
        ({"name": "vllm", "timeout_s": 5}, 'timeout_s = 5.0: needs name = "vllm" and url'),
        ({"name": "vllm", "url": "http://h", "memory_share": 0.5}, "memory_share = 0.5: needs name"),
        ({"name": "vllm", "cache_tokens": 64}, 'cache_tokens = 64: needs name = "native"'),
        ({"name": "vllm", "url": "127.0.0.1:8000"}, "url = '127.0.0.1:8000': expected something like"),
        ({"name": "vllm", "url": "http://a b"}, "expected something like"),
        ({"name": "vllm", "url": "http://me:secret@host"}, "expected something like"),
        ({"name": "vllm", "memory_share": 1.0}, r"memory_share = 1.0: must be at least 0 and below 1"),
        ({"name": "vllm", "url": "http://h", "timeout_s": -1}, "timeout_s = -1.0: must be from 0 to 10,000,000"),
        ({"name": "vlm"}, "did you mean 'vllm'"),
    ],
)
def test_keys_that_nobody_would_read_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe(table)


def test_with_truncated_sampling_the_temperature_is_1() -> None:
    """Of vLLM's modes of logprobs none is over the whole vocabulary after a temperature."""
    warm: dict[str, Any] = {"sampling": {"temperature": 0.7}}
    for keys in ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
        assert recipe({"name": "vllm"}, sampling=keys).has_truncated_sampling
        both = {"sampling": keys | warm["sampling"]}
        with pytest.raises(
            ConfigError, match=r"stages.0.sampling.temperature = 0.7: must be 1 .*engine.name = .native"
        ):
            recipe({"name": "vllm"}, **both)
        assert recipe({"name": "native"}, **both).has_truncated_sampling
    assert not recipe({"name": "vllm"}, **warm).has_truncated_sampling


def test_where_the_server_is_does_not_make_another_experiment() -> None:
    here = recipe({"name": "vllm"})
    there = recipe({"name": "vllm", "url": "https://host:1/v", "weights_folder": "/shared", "timeout_s": 9})
    assert fingerprint(here) == fingerprint(there)
    assert fingerprint(here) != fingerprint(recipe({"name": "native"}))


def test_without_vllm_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    policy = load_policy(recipe({"name": "vllm"}))
    with pytest.raises(VllmError, match=r'engine.name = "vllm".*pip install groupwise\[vllm\].*engine.url'):
        make_engine(EngineConfig(name="vllm"), policy)


# --- what is made of completions -------------------------------------------------------------------------------------


class FakeBackend:
    """Gives out what it was told to, last first."""

    context_tokens = 64

    def __init__(self, *answers: Drawn) -> None:
        self.answers = answers
        self.published: list[Mapping[str, Tensor]] = []
        self.draws: Sequence[Draw] = ()
        self.settings: Mapping[str, Any] = {}

    def publish(self, tensors: Mapping[str, Tensor]) -> None:
        self.published.append({name: tensor.clone() for name, tensor in tensors.items()})

    def draw(self, draws: Sequence[Draw], settings: Mapping[str, Any]) -> Iterator[tuple[int, Drawn]]:
        self.draws, self.settings = draws, settings
        for index in reversed(range(len(draws))):
            yield index, self.answers[index % len(self.answers)]

    def close(self) -> None: ...


class FakeWeights(PublishedWeights):
    def __init__(self) -> None:
        self.writes = 0

    def stamp(self) -> object:
        return self.writes

    def tensors(self) -> Mapping[str, Tensor]:
        return {"w": torch.tensor([float(self.writes)])}


def drawn(text: str, finish: str = "stop") -> Drawn:
    tokens = tuple(TOKENIZER(text)["input_ids"])
    return Drawn(tokens, (-0.5,) * len(tokens), finish)


def request(text: str, *seeds: int) -> Request:
    return Request(Prompt(Problem(text, (), ""), tuple(TOKENIZER(text)["input_ids"])), seeds)


def engine_of(*answers: Drawn) -> tuple[VllmEngine, FakeBackend, FakeWeights]:
    backend, weights = FakeBackend(*answers), FakeWeights()
    return VllmEngine(backend, weights, TOKENIZER, (STOP,)), backend, weights


def generate(engine: VllmEngine, requests: Sequence[Request], sampling: SamplingParams) -> dict[int, Group]:
    groups = list(engine.generate(requests, sampling, 7))
    assert len({index for index, _ in groups}) == len(groups)
    return dict(groups)


def only(engine: VllmEngine, sampling: SamplingParams) -> Rollout:
    return generate(engine, [request("x", 1)], sampling)[0].rollouts[0]


def test_groups_are_put_together_whatever_the_order() -> None:
    engine, backend, _ = engine_of(drawn("a"), drawn("b"), drawn("c"))
    groups = generate(engine, [request("x", 11, 12), request("none"), request("yz", 13)], SamplingParams(4))
    assert [[r.text for r in groups[index].rollouts] for index in range(3)] == [["a", "b"], [], ["c"]]
    assert [draw.seed for draw in backend.draws] == [11, 12, 13]
    assert {rollout.policy_version for group in groups.values() for rollout in group.rollouts} == {7}
    assert groups[2].prompt.problem.id == "yz"
    assert [draw.prompt_ids for draw in backend.draws] == [(120,), (120,), (121, 122)]


def test_settings() -> None:
    engine, backend, _ = engine_of(drawn("a"))
    only(engine, SamplingParams(4, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1))
    assert backend.settings == {
        "max_tokens": 4, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "stop": [],
        "stop_token_ids": [STOP], "ignore_eos": True, "logprobs": 0, "detokenize": False,
    }  # fmt: skip
    only(engine, SamplingParams(4, stop_strings=("a",)))
    assert (backend.settings["stop"], backend.settings["detokenize"]) == (["a"], True)


def test_nothing_is_asked_for_what_is_empty() -> None:
    engine, backend, _ = engine_of(drawn("a"))
    assert generate(engine, [], SamplingParams(4)) == {}
    assert generate(engine, [request("x")], SamplingParams(4))[0].rollouts == ()
    (group,) = generate(engine, [request("x", 1, 2)], SamplingParams(0)).values()
    assert group.rollouts == (Rollout((), (), "", Finish.LENGTH, 7),) * 2
    assert not backend.draws
    assert not backend.published


def test_finish_and_text() -> None:
    stopped = drawn("ok<|im_end|>")
    rollout = only(engine_of(stopped)[0], SamplingParams(9))
    assert rollout == Rollout(stopped.token_ids, stopped.logprobs, "ok", Finish.STOP, 7)
    assert only(engine_of(drawn("abc", "length"))[0], SamplingParams(3)).finish is Finish.LENGTH


def test_stop_strings_cut_where_the_reference_engine_would() -> None:
    sampling = SamplingParams(12, stop_strings=("END", "é!"))
    for text, kept in [("fooENDbar", "fooEND"), ("né!x", "né!"), ("nothing", "nothing"), ("EN D END", "EN D END")]:
        answer = drawn(text)
        rollout = only(engine_of(answer)[0], sampling)
        assert (rollout.text, rollout.finish) == (kept, Finish.STOP)
        assert rollout.token_ids == answer.token_ids[: len(kept.encode())]
        assert len(rollout.rollout_logprobs) == len(rollout.token_ids)
    assert only(engine_of(drawn("fooENDbar123", "length"))[0], sampling).finish is Finish.STOP


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (drawn("a", "abort"), "ended a completion with 'abort' after 1 tokens"),
        (drawn("a", "repetition"), "'repetition'"),
        (drawn("a", "None"), "'None'"),
        (Drawn((), (), "stop"), "0 tokens and 0 logprobs instead of 1 to 4"),
        (Drawn((1, 2), (-1.0,), "stop"), "2 tokens and 1 logprobs"),
        (drawn("abcde", "length"), "5 tokens and 5 logprobs instead of 1 to 4"),
        (drawn("abc", "length"), "cut a completion at 3 tokens.*--max-model-len"),
        (Drawn((1,), (math.nan,), "stop"), "token 1 the logprob nan"),
        (Drawn((1,), (-math.inf,), "stop"), "-inf"),
        (Drawn((1,), (-9999.0,), "stop"), "-9999"),
        (Drawn((1,), (0.5,), "stop"), "0.5"),
    ],
)
def test_what_is_no_completion_is_an_error_and_not_a_wrong_answer(answer: Drawn, message: str) -> None:
    with pytest.raises(VllmError, match=message):
        only(engine_of(answer)[0], SamplingParams(4))


def test_a_logprob_that_rounding_put_above_0_is_0() -> None:
    assert only(engine_of(Drawn((1,), (1e-7,), "stop"))[0], SamplingParams(4)).rollout_logprobs == (0.0,)


def test_what_does_not_fit_is_refused_before_it_is_asked() -> None:
    engine, backend, _ = engine_of(drawn("a"))
    with pytest.raises(VllmError, match="5 tokens and 60 new ones exceed the 64"):
        generate(engine, [request("x", 1), request("12345", 1)], SamplingParams(60))
    assert not backend.published


# --- when weights are published --------------------------------------------------------------------------------------


def test_weights_are_published_when_they_changed_and_only_then() -> None:
    engine, backend, weights = engine_of(drawn("a"))
    for writes, published in [(0, [0.0]), (0, [0.0]), (3, [0.0, 3.0]), (3, [0.0, 3.0]), (4, [0.0, 3.0, 4.0])]:
        weights.writes = writes
        only(engine, SamplingParams(4))
        assert [float(tensors["w"]) for tensors in backend.published] == published


def test_weights_that_failed_to_publish_are_published_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, backend, _ = engine_of(drawn("a"))
    only(engine, SamplingParams(4))

    def fail(tensors: Mapping[str, Tensor]) -> None:
        raise VllmError("no")

    engine.weights.writes = 1  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(backend, "publish", fail)
        for _ in range(2):
            with pytest.raises(VllmError, match="no"):
                only(engine, SamplingParams(4))
    engine.weights.writes = 0  # type: ignore[attr-defined]
    only(engine, SamplingParams(4))  # the weights of the first publish, but who knows what vLLM has now
    assert len(backend.published) == 2


def make_policy(**model: Any) -> Policy:
    return load_policy(recipe({"name": "vllm"}, model=model))


def learn(policy: Policy) -> None:
    policy.optimizer.clear_gradients()
    policy.backward(sum((p.square().sum() for p in policy.model.parameters() if p.requires_grad), torch.zeros(())))
    assert policy.step(1e-3)[1]


@pytest.mark.parametrize(
    "model",
    [{}, {"dtype": "bfloat16"}, {"lora": {"rank": 2}}, {"lora": {"rank": 2}, "dtype": "bfloat16"}],
    ids=["full", "bf16", "lora", "lora-bf16"],
)
def test_every_way_in_which_weights_change_is_noticed(model: dict[str, Any]) -> None:
    policy = make_policy(ema_decay=0.5, **model)
    weights = PublishedWeights(policy.model)
    seen = weights.stamp()

    def has_changed() -> bool:
        nonlocal seen
        before, seen = seen, weights.stamp()
        return seen != before

    assert not has_changed()
    learn(policy)
    assert has_changed(), "an optimizer step"
    with policy.averaged():
        assert has_changed(), "the moving average"
    assert has_changed(), "and back"
    policy.load_weights({name: weight + 1 for name, weight in policy.weights.items()})
    assert has_changed(), "start_from = best, and export"
    state = {group: {n: t.clone() for n, t in tensors.items()} for group, tensors in policy.state().items()}
    policy.begin_stage(recipe({}).stages[0].optimizer, keep_reference=False)
    learn(policy)
    assert has_changed(), "a step of the next stage's optimizer"
    policy.load_state(state, 0)
    assert has_changed(), "resume"
    list(ReferenceEngine(policy.model, TOKENIZER, (STOP,), 4).generate([request("x", 1)], SamplingParams(2), 0))
    weights.tensors()
    assert not has_changed(), "neither sampling nor reading the weights"


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
def test_all_of_torchs_ways_to_step_are_noticed(options: dict[str, bool]) -> None:
    policy = make_policy()
    weights = PublishedWeights(policy.model)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-3, **options)
    sum(p.square().sum() for p in policy.model.parameters()).backward()  # type: ignore[union-attr]
    before = weights.stamp()
    optimizer.step()
    assert weights.stamp() != before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_last_bit_of_one_weight_behind_torchs_back_is_noticed(dtype: str) -> None:
    policy = make_policy(dtype=dtype)
    weights = PublishedWeights(policy.model)
    before = weights.stamp()
    value = policy.model.model.embed_tokens.weight.data.view(-1)
    value[77] = torch.nextafter(value[77], value[77] + 1)
    assert weights.stamp() != before


# --- which weights are published -------------------------------------------------------------------------------------


def logits_of(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


@pytest.mark.parametrize("path", ["tiny-qwen3", "tiny-llama"])
def test_adapters_are_merged_under_the_base_models_names(path: str) -> None:
    policy = make_policy(path=path, lora={"rank": 2})
    with torch.no_grad():
        for weight in policy.weights.values():
            weight.normal_(std=0.2)
    ids = torch.arange(20)[None]
    adapted, live = logits_of(policy.model, ids), {n: p.clone() for n, p in policy.model.named_parameters()}
    published = PublishedWeights(policy.model).tensors()
    plain, _ = make_tiny(path, TINY_SIZES, seed=1)
    assert set(published) == set(plain.state_dict())
    plain.load_state_dict(published)
    torch.testing.assert_close(logits_of(plain, ids), adapted, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(p, live[n]) for n, p in policy.model.named_parameters())
    assert not torch.allclose(adapted, logits_of(make_policy(path=path).model, ids), atol=1e-2)


def test_a_tied_weight_has_both_its_names() -> None:
    """vLLM on a CPU packs the output head; without its name it would keep the old one."""
    published = PublishedWeights(make_policy().model).tensors()
    assert torch.equal(published["lm_head.weight"], published["model.embed_tokens.weight"])


def test_the_correction_is_one_where_engine_and_trainer_agree() -> None:
    """The convention that both backends are asked for: logprobs at the temperature that was drawn with."""
    policy = make_policy()
    group = next(
        ReferenceEngine(policy.model, TOKENIZER, (STOP,), 4).generate(
            [request("12", 5)], SamplingParams(6, temperature=0.7), 0
        )
    )[1]
    (rollout,) = group.rollouts
    ids = torch.tensor([[*group.prompt.token_ids, *rollout.token_ids]])
    logits = logits_of(policy.model, ids)[0, 1:-1]
    trainer = token_logprobs(logits, torch.tensor(rollout.token_ids), 0.7)
    torch.testing.assert_close(trainer, torch.tensor(rollout.rollout_logprobs), atol=1e-5, rtol=1e-5)
