"""The kernel draws the tokens of `engines.sampling.draw_tokens`, with their logprobs, and advances the slots.

The interpreter has NumPy's logarithm where a GPU has a fast one, so a tie that falls the other way there is not seen.
"""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from groupwise.engines.native.decode import Slots
from groupwise.engines.native.schedule import Decoding
from groupwise.engines.sampling import draw_tokens, truncate
from groupwise.types import SamplingParams
from tests.interpreted.interpreter import INTERPRETED, runs

pytestmark = INTERPRETED

PARTS = ("drawing._draw_tiles", "drawing._finish_draw")
HASH = ("drawing._mix", "drawing._minus_log_uniform")
VOCABULARIES = [1, 100, 4096, 4097, 2 * 4096 + 7]
ROWS = 6


def slots_of(seeds: list[int], limit: int = 9) -> Slots:
    slots = Slots(len(seeds), 1, limit, torch.device("cpu"))
    slots.put([Decoding(0, slot, seed, 3, 7, [0], slot) for slot, seed in enumerate(seeds)], limit)
    slots.arrange(list(reversed(range(len(seeds)))))
    return slots


SEEDS = [0, 1, 2**31, 2**32 + 5, 2**63 - 1, 12345678901234567]


def draw(logits: Tensor, slots: Any, sampling: SamplingParams, stops: Tensor) -> None:
    """Draw as the native engine does on a GPU."""
    from groupwise.kernels.drawing import draw_and_advance

    temperature = sampling.temperature
    is_truncated = bool(temperature and (sampling.top_k or sampling.top_p < 1 or sampling.min_p))
    if is_truncated:
        log_p = (logits / temperature).log_softmax(dim=-1)
        logits, temperature = truncate(log_p, sampling.top_k, sampling.top_p, sampling.min_p), 1.0
    draw_and_advance(logits, slots, stops, temperature, reports_logits=is_truncated)


FORMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 20},
    {"top_p": 0.8},
    {"min_p": 0.1},
]
FORMS += [{"temperature": 0.7, "top_k": 300, "top_p": 0.9, "min_p": 0.05}]


@runs(*PARTS, *HASH)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_tokens_are_those_of_the_plain_form(vocab: int, form: dict[str, Any]) -> None:
    sampling, slots = SamplingParams(max_new_tokens=9, **form), slots_of(SEEDS)
    no_stops = torch.empty(0, dtype=torch.int64)
    for count in range(3):
        logits = torch.randn(ROWS, vocab) * 3
        positions = torch.full((ROWS,), count)
        tokens, logprobs = draw_tokens(logits, sampling, torch.tensor(SEEDS).flip(0), positions)
        draw(logits, slots, sampling, no_stops)
        assert torch.equal(slots.out_tokens[:ROWS, count].flip(0), tokens)
        torch.testing.assert_close(slots.out_logprobs[:ROWS, count].flip(0), logprobs, rtol=1e-5, atol=2e-6)


@runs(*PARTS)
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_greedy_is_the_likeliest_token_and_the_first_of_equals(vocab: int) -> None:
    sampling, slots = SamplingParams(max_new_tokens=9, temperature=0), slots_of(SEEDS)
    logits = torch.randn(ROWS, vocab)
    logits[0] = 1.0
    logits[1, [vocab // 2, vocab - 1]] = 9.0
    tokens, logprobs = draw_tokens(logits, sampling, torch.tensor(SEEDS), torch.zeros(ROWS))
    draw(logits, slots, sampling, torch.empty(0, dtype=torch.int64))
    assert torch.equal(slots.out_tokens[:ROWS, 0].flip(0), tokens)
    assert tokens[:2].tolist() == [0, vocab // 2]
    torch.testing.assert_close(slots.out_logprobs[:ROWS, 0].flip(0), logprobs, rtol=1e-5, atol=2e-6)


@runs("drawing._minus_log_uniform")
def test_the_logarithm_of_a_uniform_number() -> None:
    """On both sides of where a series takes over, and at both ends. On a GPU, the fast logarithm is less precise."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    from groupwise.kernels.drawing import _minus_log_uniform

    places = numpy.concatenate([numpy.arange(2**23 - 2**18, 2**23), numpy.arange(0, 2**23, 2**5)])
    bits = tl.tensor(
        TensorHandle((places << 9).astype(numpy.uint32), tl.uint32), tl.block_type(tl.uint32, [len(places)])
    )
    found = _minus_log_uniform(bits).handle.data
    numpy.testing.assert_allclose(found, -numpy.log((places + 0.5) / 2**23), rtol=3e-6)


@runs(*PARTS, *HASH)
def test_a_tile_that_cannot_be_drawn_from_and_one_token_that_can() -> None:
    logits = torch.full((ROWS, 4096 + 8), -float("inf"))
    logits[:, 4100] = 2.0
    slots = slots_of(SEEDS)
    draw(logits, slots, SamplingParams(max_new_tokens=9), torch.empty(0, dtype=torch.int64))
    assert slots.out_tokens[:ROWS, 0].tolist() == [4100] * ROWS
    assert slots.out_logprobs[:ROWS, 0].abs().max() == 0


@runs(*PARTS)
@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_is_out_of_the_vocabulary_though_all_logits_are_nan(temperature: float) -> None:
    slots = slots_of(SEEDS)
    sampling = SamplingParams(max_new_tokens=9, temperature=temperature)
    # Three tiles are joined as four, and the fourth, which holds nothing, has the best score of all.
    draw(torch.full((ROWS, 8200), float("nan")), slots, sampling, torch.empty(0, dtype=torch.int64))
    assert slots.out_tokens[:ROWS, 0].tolist() == [8199] * ROWS


@runs(*PARTS)
def test_slots_advance_until_a_stop_token_or_their_limit() -> None:
    """Row 0 is idle, 1 stops, 2 ends at its limit, 3 at both, 4 goes on, and 5 was done before."""
    slots = slots_of(SEEDS, limit=2)
    slots.arrange([6, 1, 2, 3, 4])
    slots.order[5] = 5
    slots.counts[:6] = torch.tensor([0, 0, 1, 1, 0, 1])
    slots.is_done[5] = 2
    before = {name: value.clone() for name, value in vars(slots).items() if isinstance(value, Tensor)}
    tokens = torch.tensor([8, 5, 1, 7, 2, 5])
    logits = torch.zeros(ROWS, 10).scatter(1, tokens[:, None], 50.0)
    draw(logits, slots, SamplingParams(max_new_tokens=2, temperature=0), torch.tensor([5, 9, 7]))
    assert slots.is_done.tolist() == [0, 1, 2, 1, 0, 2, 1]
    assert (slots.counts - before["counts"]).tolist() == [0, 1, 1, 1, 1, 0, 0]
    assert (slots.positions - before["positions"]).tolist() == [0, 1, 1, 1, 1, 0, 0]
    assert slots.tokens[1:5].tolist() == [5, 1, 7, 2]
    assert torch.equal(slots.tokens[[0, 5, 6]], before["tokens"][[0, 5, 6]])
    assert slots.out_tokens.tolist() == [[0, 0], [5, 0], [0, 1], [0, 7], [2, 0], [0, 0], [0, 0]]
    assert torch.equal(slots.limits, before["limits"])
    assert torch.equal(slots.seeds, before["seeds"])
