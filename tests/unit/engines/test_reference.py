"""The oracle has an oracle: one rollout at a time, the whole text through the model for each token, no cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from groupwise.base.seeds import seed_of
from groupwise.engines.engine import Request
from groupwise.engines.reference import ReferenceEngine
from groupwise.engines.sampling import draw_tokens
from groupwise.models.tiny import make_tiny
from groupwise.types import Finish, Group, Problem, Prompt, Rollout, SamplingParams

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}


@cache
def tiny(name: str = "tiny-qwen3") -> tuple[Any, Any]:
    """Larger weights than usual: a random tiny model is otherwise nearly uniform, and deaf to what came before."""
    model, tokenizer = make_tiny(name, SIZES, seed=5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(10)
    return model, tokenizer


def make_engine(
    max_batch_rollouts: int = 100, name: str = "tiny-qwen3", stops: tuple[int, ...] = ()
) -> ReferenceEngine:
    model, tokenizer = tiny(name)
    return ReferenceEngine(model, tokenizer, stops or (tokenizer.eos_token_id,), max_batch_rollouts)


def request(text: str, num_seeds: int) -> Request:
    _, tokenizer = tiny()
    prompt = Prompt(Problem(text, (), ""), tuple(tokenizer(text)["input_ids"]))
    return Request(prompt, tuple(seed_of(text, number) for number in range(num_seeds)))


REQUESTS = [request("1 + 1 = ?", 3), request("x", 1), request("a rather longer prompt than the others", 4)]


def generate(engine: ReferenceEngine, requests: list[Request], sampling: SamplingParams) -> list[Group]:
    groups = dict(engine.generate(requests, sampling, policy_version=7))
    assert sorted(groups) == list(range(len(requests)))
    return [groups[index] for index in range(len(requests))]


@torch.no_grad()
def naive(
    model: Any, prompt: Prompt, seed: int, sampling: SamplingParams, stops: set[int]
) -> tuple[list[int], list[float]]:
    ids, tokens, logprobs = list(prompt.token_ids), [], []
    for position in range(sampling.max_new_tokens):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[:, -1]
        token, logprob = draw_tokens(logits, sampling, torch.tensor([seed]), torch.tensor([position]))
        ids.append(int(token))
        tokens.append(int(token))
        logprobs.append(float(logprob))
        if tokens[-1] in stops:
            break
    return tokens, logprobs


SAMPLING = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
}


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
@pytest.mark.parametrize("keys", SAMPLING.values(), ids=SAMPLING)
def test_as_one_row_at_a_time_without_a_cache(keys: dict[str, Any], name: str) -> None:
    sampling = SamplingParams(max_new_tokens=12, **keys)
    model, tokenizer = tiny(name)
    # A stop token that does come up, so that rows leave the batch at different times.
    stops = {tokenizer.eos_token_id, *range(0, 256, 8)}
    groups = generate(make_engine(name=name, stops=tuple(stops)), REQUESTS, sampling)
    for one, group in zip(REQUESTS, groups, strict=True):
        assert group.prompt is one.prompt
        assert len(group.rollouts) == len(one.seeds)
        for seed, rollout in zip(one.seeds, group.rollouts, strict=True):
            tokens, logprobs = naive(model, one.prompt, seed, sampling, stops)
            assert list(rollout.token_ids) == tokens
            assert list(rollout.rollout_logprobs) == pytest.approx(logprobs, abs=1e-4)
            assert rollout.finish is (Finish.STOP if tokens[-1] in stops else Finish.LENGTH)
            assert rollout.text == tokenizer.decode(tokens, skip_special_tokens=True)
            assert rollout.policy_version == 7
    if sampling.temperature > 0:
        assert len({len(tokens) for tokens in tokens_of(groups)}) > 2, "rows should leave at different times"


def tokens_of(groups: list[Group]) -> list[tuple[int, ...]]:
    return [rollout.token_ids for group in groups for rollout in group.rollouts]


@pytest.mark.parametrize("max_batch_rollouts", [1, 3, 100])
def test_a_rollout_does_not_depend_on_its_neighbours(max_batch_rollouts: int) -> None:
    sampling = SamplingParams(max_new_tokens=10)
    together = tokens_of(generate(make_engine(max_batch_rollouts), REQUESTS, sampling))
    alone = [
        tokens
        for one in REQUESTS
        for seed in one.seeds
        for tokens in tokens_of(generate(make_engine(), [Request(one.prompt, (seed,))], sampling))
    ]
    assert together == alone
    backwards = [tokens_of([group]) for group in generate(make_engine(max_batch_rollouts), REQUESTS[::-1], sampling)]
    assert [tokens for group in backwards[::-1] for tokens in group] == alone


def test_seeds_tell_rollouts_apart_and_nothing_else_does() -> None:
    prompt = REQUESTS[0].prompt
    group = generate(make_engine(), [Request(prompt, (1, 2, 3, 1))], SamplingParams(max_new_tokens=10))[0]
    first, second, third, again = (rollout.token_ids for rollout in group.rollouts)
    assert len({first, second, third}) == 3
    assert again == first


def test_groups_of_different_sizes_and_of_none() -> None:
    requests = [request("a", 0), request("b", 5), request("c", 1)]
    groups = generate(make_engine(2), requests, SamplingParams(max_new_tokens=2))
    assert [len(group.rollouts) for group in groups] == [0, 5, 1]
    assert generate(make_engine(), [], SamplingParams(max_new_tokens=2)) == []


def test_a_longer_limit_only_adds_tokens() -> None:
    short = tokens_of(generate(make_engine(), REQUESTS, SamplingParams(max_new_tokens=1)))
    long = tokens_of(generate(make_engine(), REQUESTS, SamplingParams(max_new_tokens=6)))
    assert all(len(tokens) == 1 for tokens in short)
    assert [tokens[:1] for tokens in long] == short


class Script(Cache):
    """A model and its cache that write a given text after any prompt, byte by byte, and record their inputs."""

    device = torch.device("cpu")

    def __init__(self, *texts: str) -> None:
        _, tokenizer = tiny()
        self._lines = [tokenizer(text)["input_ids"] for text in texts]
        self._rows = list(range(len(texts)))
        self._position = 0
        self.batch_sizes: list[int] = []

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> Any:
        self.batch_sizes.append(len(input_ids))
        logits = torch.full((len(self._rows), 1, 300), -100.0)
        for row, line in enumerate(self._rows):
            logits[row, 0, self._lines[line][min(self._position, len(self._lines[line]) - 1)]] = 100.0
        self._position += 1
        return CausalLMOutputWithPast(logits=logits, past_key_values=self)

    def get_decoder(self) -> Any:
        return tiny()[0].get_decoder()

    def reorder_cache(self, indices: torch.Tensor) -> None:
        self._rows = [self._rows[index] for index in indices.tolist()]


def scripted(*texts: str, max_new_tokens: int = 50, stop_strings: tuple[str, ...] = ()) -> tuple[list[Rollout], Script]:
    _, tokenizer = tiny()
    model = Script(*texts)
    engine = ReferenceEngine(model, tokenizer, (tokenizer.eos_token_id,), 100)
    requests = [Request(Prompt(Problem(str(i), (), ""), (65,)), (i,)) for i in range(len(texts))]
    groups = generate(engine, requests, SamplingParams(max_new_tokens=max_new_tokens, stop_strings=stop_strings))
    return [group.rollouts[0] for group in groups], model


def test_stop_tokens_end_a_rollout_and_stay_in_it_but_not_in_the_text() -> None:
    (rollout,), _ = scripted("ab<|im_end|>never")
    _, tokenizer = tiny()
    assert rollout.token_ids == (97, 98, tokenizer.eos_token_id)
    assert len(rollout.rollout_logprobs) == 3
    assert (rollout.text, rollout.finish) == ("ab", Finish.STOP)


def test_stop_strings_over_several_tokens() -> None:
    """The string is split over tokens, one in the middle of a character; it stays in the completion."""
    (first, second, third), _ = scripted(
        "x END y", "ends with é! z", "no such thing", max_new_tokens=13, stop_strings=("END", "é!")
    )
    assert (first.text, first.finish) == ("x END", Finish.STOP)
    assert (second.text, second.finish) == ("ends with é!", Finish.STOP)
    assert (third.text, third.finish) == ("no such thing", Finish.LENGTH)


def test_a_stop_string_that_ends_on_the_very_last_token_is_a_stop() -> None:
    (rollout,), _ = scripted("abc", max_new_tokens=3, stop_strings=("bc",))
    assert rollout.finish is Finish.STOP


def test_a_whole_markup_token_can_be_a_stop_string() -> None:
    (rollout,), _ = scripted("<answer>7</answer> and more", stop_strings=("</answer>",))
    assert (rollout.text, rollout.finish) == ("<answer>7</answer>", Finish.STOP)


def test_a_long_stop_string_is_found_whole() -> None:
    stop = "é" * 40
    (rollout,), _ = scripted("a" + stop + "b", max_new_tokens=200, stop_strings=(stop,))
    assert (rollout.text, rollout.finish) == ("a" + stop, Finish.STOP)


def test_rows_that_stopped_leave_the_batch() -> None:
    """Completions of 2, 4 and 6 tokens: prefill of 3 rows, then 3, 2, 2, 1, 1 rows a step."""
    rollouts, model = scripted("a<|im_end|>", "abc<|im_end|>", "abcde<|im_end|>")
    assert [len(rollout.token_ids) for rollout in rollouts] == [2, 4, 6]
    assert model.batch_sizes == [3, 3, 2, 2, 1, 1]


def test_a_prompt_is_prefilled_once_for_all_its_rollouts() -> None:
    model, tokenizer = tiny()
    sizes: list[tuple[int, ...]] = []
    positions: list[torch.Tensor] = []

    class Counting:
        device = torch.device("cpu")

        get_decoder = model.get_decoder

        def __call__(self, **inputs: Any) -> Any:
            sizes.append(tuple(inputs["input_ids"].shape))
            positions.append(inputs["position_ids"])
            return model(**inputs)

    engine = ReferenceEngine(Counting(), tokenizer, (-1,), 100)
    generate(engine, REQUESTS, SamplingParams(max_new_tokens=2))
    width = max(len(one.prompt.token_ids) for one in REQUESTS)
    assert sizes == [(3, width), (8, 1)]
    # Positions count from the first real token of each row, whatever the padding.
    lengths = [len(one.prompt.token_ids) for one in REQUESTS]
    assert positions[0][:, -1].tolist() == [length - 1 for length in lengths]
    assert positions[1][:, 0].tolist() == [lengths[0]] * 3 + [lengths[1]] + [lengths[2]] * 4
