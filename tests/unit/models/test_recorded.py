"""Recorded passes give what passes as they are give; recorded here means: run again into the same tensors."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groupwise.data.batch import Example, make_microbatches
from groupwise.data.pack import Pack
from groupwise.models.lora import trainable_parameters
from groupwise.models.memory_limits import capacity
from groupwise.models.recorded import MEMORY_SHARE, RecordedLayers, filled
from groupwise.models.straight import run_layer, straight_layers, straighten
from tests.unit.models.test_straight import CPU, PlainOps, PlainStep, make


class Again:
    """Counts recordings."""

    def __init__(self) -> None:
        self.count = 0
        self.beginnings = 0

    def begin_anew(self) -> None:
        self.beginnings += 1

    def __call__(self, work: Callable[[], Any], trial: Callable[[], object]) -> tuple[Callable[[], None], Any]:
        self.count += 1
        with torch.no_grad():
            trial()
            result = work()

        def again() -> None:
            with torch.no_grad():
                for target, source in zip(flat(result), flat(work()), strict=True):
                    target.copy_(source)

        return again, result


def flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [tensor for part in value for tensor in flat(part)]


class PlainRoom:
    def __init__(self, tokens: int) -> None:
        self.step = PlainStep(Pack(torch.zeros(0), torch.zeros(0), torch.zeros(0), ()))
        self.most = tokens

    def fill(self, pack: Pack) -> bool:
        self.step.seen = PlainStep(pack).seen
        return len(pack.segments) <= self.most


def make_pack(seed: int, tokens: int) -> Pack:
    dice = random.Random(seed)
    examples = []
    while sum(len(one.prompt_ids) + len(one.completion_ids) for one in examples) < tokens:
        prompt = tuple(dice.randrange(20) for _ in range(5))
        examples += [Example(prompt, tuple(dice.randrange(20) for _ in range(dice.randrange(2, 9)))) for _ in range(3)]
    inputs = make_microbatches(examples, [1.0] * len(examples), 10**6, CPU, is_packed=True)[0].inputs
    assert isinstance(inputs, Pack)
    return inputs


class Decoder:
    """Over packs, with or without recordings."""

    def __init__(self, model: Any, memory: int = 2**40) -> None:
        self.decoder = model.get_decoder()
        self.layers = straight_layers(model)
        self.recorder = Again()
        self.recorded = RecordedLayers(self.layers, PlainRoom, self.recorder, memory)

    def __call__(self, pack: Pack, *, is_recorded: bool) -> Tensor:
        size = self.recorded.size_for(pack) if is_recorded else None
        pack = pack if size is None else filled(pack, size)
        x = self.decoder.embed_tokens(pack.token_ids)
        cos, sin = self.decoder.rotary_emb(x[None], pack.positions[None])
        hidden = None if size is None else self.recorded(x, (cos[0], sin[0]), pack)
        if hidden is None:
            hidden = x
            for layer in self.layers:
                hidden = run_layer(hidden, layer, (cos[0], sin[0]), PlainStep(pack))
        return hidden[pack.predicts]


def offer_sums(model: Any, *, stay: bool = True) -> dict[str, Tensor]:
    inside = {id(weight) for layer in straight_layers(model) for weight in layer.parameters()}
    trained = {name: weight for name, weight in trainable_parameters(model).items() if id(weight) in inside}
    sums = {name: torch.zeros_like(weight) for name, weight in trained.items()}
    for layer in straight_layers(model):
        layer.sums.offer(list(trained.values()), list(sums.values()), stay=stay)
    return sums


@pytest.mark.parametrize("keep", [False, "mlp", True])
@pytest.mark.parametrize("lora", [False, True])
def test_recorded_passes_learn_what_others_learn(lora: bool, keep: Any) -> None:
    model = make("tiny-qwen3", keep, lora=lora)
    straighten(model, PlainOps())
    sums = offer_sums(model)
    decoder = Decoder(model)
    for seed in range(4):
        pack = make_pack(seed, 230)
        found = []
        for is_recorded in (False, True):
            for total in sums.values():
                total.zero_()
            model.zero_grad()
            hidden = decoder(pack, is_recorded=is_recorded)
            hidden.square().sum().backward()
            found.append((hidden.detach().clone(), {name: total.clone() for name, total in sums.items()}))
        (plain, gradients), (recorded, others) = found
        assert torch.allclose(recorded, plain, rtol=1e-4, atol=1e-4)
        for name, gradient in gradients.items():
            assert torch.allclose(others[name], gradient, rtol=1e-3, atol=1e-2 * float(gradient.abs().max())), name
        with torch.no_grad():  # an update: the weights change where they are
            for weight in trainable_parameters(model).values():
                weight.mul_(1.01)
    # The first was not recorded; then both passes were, once.
    assert decoder.recorder.count == 2


def test_the_first_pass_has_the_bits_of_those_that_are_recorded() -> None:
    """A resumed run has another first pass. It is filled up too, since a sum over more tokens rounds differently."""
    model = make("tiny-qwen3")
    straighten(model, PlainOps())
    sums = offer_sums(model)
    decoder = Decoder(model)
    pack = make_pack(0, 230)
    assert len(pack.token_ids) < capacity(len(pack.token_ids))
    found, counts = [], []
    for _ in range(2):
        assert decoder.recorded.size_for(pack) == capacity(len(pack.token_ids))
        for total in sums.values():
            total.zero_()
        hidden = decoder(pack, is_recorded=True)
        hidden.square().sum().backward()
        found.append([hidden.detach().clone(), *(total.clone() for total in sums.values())])
        counts.append(decoder.recorder.count)
    assert counts == [0, 2]
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))


def test_scoring_is_recorded_by_itself() -> None:
    model = make("tiny-llama", lora=True)
    straighten(model, PlainOps())
    decoder = Decoder(model)
    for seed in range(3):
        pack = make_pack(seed, 230)
        with torch.no_grad():
            adapted = decoder(pack, is_recorded=True).clone()
            assert torch.allclose(adapted, decoder(pack, is_recorded=False), atol=1e-4)
    assert decoder.recorder.count == 1


def test_weights_that_were_moved_are_recorded_anew() -> None:
    model = make("tiny-llama")
    straighten(model, PlainOps())
    decoder = Decoder(model)
    pack = make_pack(0, 230)
    with torch.no_grad():
        for _ in range(2):
            decoder(pack, is_recorded=True)
        weight = model.get_decoder().layers[1].mlp.down_proj.weight
        weight.data = weight.data.clone() * 2
        moved = decoder(pack, is_recorded=True).clone()
        assert torch.allclose(moved, decoder(pack, is_recorded=False), atol=1e-4)
    assert decoder.recorder.count == 2


def test_a_pack_that_is_larger_than_those_before_begins_anew() -> None:
    model = make("tiny-llama")
    straighten(model, PlainOps())
    sums = offer_sums(model)
    decoder = Decoder(model)
    seen = []
    # In tokens that packs are filled up to: 256, twice, 512, 256 again, both again, 768, 512.
    for tokens in (230, 230, 700, 230, 700, 230, 1100, 700):
        found = []
        for is_recorded in (False, True):
            for total in sums.values():
                total.zero_()
            decoder(make_pack(tokens, tokens), is_recorded=is_recorded).square().sum().backward()
            found.append({name: total.clone() for name, total in sums.items()})
        for name, gradient in found[0].items():
            assert torch.allclose(found[1][name], gradient, rtol=1e-3, atol=1e-2 * float(gradient.abs().max())), name
        seen.append((decoder.recorder.beginnings, decoder.recorder.count))
    assert seen == [(0, 0), (0, 2), (1, 4), (1, 6), (1, 6), (1, 6), (2, 8), (2, 10)]


def test_what_a_pass_gave_does_not_hold_its_recording() -> None:
    """The logprobs of a microbatch are there until those of the next one are."""
    model = make("tiny-llama")
    straighten(model, PlainOps())
    offer_sums(model)
    decoder = Decoder(model)
    for _ in range(2):
        hidden = decoder(make_pack(0, 230), is_recorded=True)
        hidden.square().sum().backward()
    (recording,) = map(weakref.ref, decoder.recorded._recordings.values())
    assert recording() is not None
    larger = decoder(make_pack(0, 700), is_recorded=True)
    gc.collect()  # here a recording holds its work, which holds the recording; a CUDA graph does not
    assert recording() is None
    larger.square().sum().backward()
    assert hidden.grad_fn is not None


def test_scoring_takes_no_recording_away() -> None:
    model = make("tiny-llama")
    straighten(model, PlainOps())
    offer_sums(model)
    decoder = Decoder(model)
    for _ in range(2):
        decoder(make_pack(0, 230), is_recorded=True).square().sum().backward()
    with torch.no_grad():
        for tokens in (230, 700, 1100):
            decoder(make_pack(0, tokens), is_recorded=True)
    decoder(make_pack(0, 230), is_recorded=True).square().sum().backward()
    assert (decoder.recorder.beginnings, decoder.recorder.count) == (0, 4)


def test_without_sums_that_stay_or_memory_nothing_is_recorded() -> None:
    model = make("tiny-llama")
    straighten(model, PlainOps())
    offer_sums(model, stay=False)
    for memory in (2**40, 2**16):
        decoder = Decoder(model, memory)
        for _ in range(3):
            decoder(make_pack(0, 230), is_recorded=True).sum().backward()
        assert decoder.recorder.count == 0
        offer_sums(model)


@pytest.mark.parametrize("memory", [2**22, 2**24, 2**26 + 12_345, 2**30, 3 * 2**30])
def test_the_largest_pack_that_can_be_recorded(memory: int) -> None:
    model = make("tiny-llama")
    straighten(model, PlainOps())
    recorded = RecordedLayers(straight_layers(model), PlainRoom, Again(), memory)
    of_token = sum(layer.kept_bytes for layer in straight_layers(model))
    most = recorded.most_tokens
    assert most == capacity(most)
    assert most * of_token <= MEMORY_SHARE * memory < capacity(most + 1) * of_token


def test_after_a_pass_that_may_not_have_fitted_the_next_is_made_as_it_is() -> None:
    model = make("tiny-llama")
    straighten(model, PlainOps())
    decoder = Decoder(model)
    with torch.no_grad():
        for _ in range(3):
            decoder(make_pack(0, 230), is_recorded=True)
            decoder.recorded.forget()
        assert decoder.recorder.count == 0
        for _ in range(2):
            decoder(make_pack(0, 230), is_recorded=True)
    assert decoder.recorder.count == 1


def test_gradients_of_a_pass_that_was_overtaken_are_refused() -> None:
    model = make("tiny-llama")
    straighten(model, PlainOps())
    offer_sums(model)
    decoder = Decoder(model)
    packs = [make_pack(seed, 230) for seed in range(3)]
    decoder(packs[0], is_recorded=True).sum().backward()
    first = decoder(packs[1], is_recorded=True)
    decoder(packs[2], is_recorded=True)
    with pytest.raises(RuntimeError, match="before the backward pass of the one before"):
        first.sum().backward()


@given(tokens=st.integers(1, 100_000))
def test_a_pack_is_filled_up_by_a_quarter_at_most(tokens: int) -> None:
    assert tokens <= capacity(tokens) < max(tokens * 5 / 4 + 1, tokens + 256)
    assert capacity(capacity(tokens)) == capacity(tokens)


def test_what_fills_a_pack_is_seen_by_none_of_its_tokens() -> None:
    pack = make_pack(0, 50)
    more = filled(pack, 256)
    assert len(more.token_ids) == len(more.positions) == 256
    assert more.segments[: len(pack.segments)] == pack.segments
    seen = PlainStep(more).seen
    count = len(pack.token_ids)
    assert torch.equal(seen[:count, :count], PlainStep(pack).seen)
    assert not seen[:count, count:].any()
    assert not seen[count:, :count].any()
    assert seen.diagonal().all()
