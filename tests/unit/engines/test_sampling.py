from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groupwise.base.seeds import seed_of
from groupwise.engines import sampling
from groupwise.engines.sampling import draw_tokens, gumbel_noise, truncate
from groupwise.types import SamplingParams

NUM_DRAWS = 20_000
LOGITS = [1.0, 0.0, -1.0, 2.0, 0.5, -3.0, 1.5, 0.25, -0.5, 0.75]


def params(**keys: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=1, **keys)


def odds(kept: list[int], temperature: float = 1.0) -> list[float]:
    """Softmax over the kept tokens, by hand."""
    weights = [math.exp(logit / temperature) if token in kept else 0.0 for token, logit in enumerate(LOGITS)]
    return [weight / sum(weights) for weight in weights]


def draw_many(settings: SamplingParams, *, vary: str = "seed") -> tuple[Tensor, Tensor]:
    """Draws that differ in their seeds (hashes, as the trainer makes them) or in their positions alone."""
    logits = torch.tensor(LOGITS).expand(NUM_DRAWS, -1)
    if vary == "seed":
        seeds = torch.tensor([seed_of("draw", index) for index in range(NUM_DRAWS)])
        return draw_tokens(logits, settings, seeds, torch.zeros_like(seeds))
    positions = torch.arange(NUM_DRAWS)
    return draw_tokens(logits, settings, torch.full_like(positions, seed_of("one")), positions)


ALL = list(range(10))
BY_SIZE = sorted(ALL, key=lambda token: -LOGITS[token])
# (keys, tokens that may come up, temperature)
CASES = [
    ({}, ALL, 1.0),
    ({"temperature": 0.5}, ALL, 0.5),
    ({"temperature": 2.0}, ALL, 2.0),
    ({"top_k": 3}, BY_SIZE[:3], 1.0),
    ({"top_k": 1}, BY_SIZE[:1], 1.0),
    ({"top_k": 50}, ALL, 1.0),
    ({"min_p": 0.3}, [token for token in ALL if math.exp(LOGITS[token] - 2.0) >= 0.3], 1.0),
    ({"temperature": 2.0, "min_p": 0.3}, [token for token in ALL if math.exp(LOGITS[token] / 2 - 1.0) >= 0.3], 2.0),
]


@pytest.mark.parametrize("vary", ["seed", "position"])
@pytest.mark.parametrize(("keys", "kept", "temperature"), CASES, ids=[str(case[0]) for case in CASES])
def test_frequencies_are_those_of_the_distribution(
    keys: dict[str, Any], kept: list[int], temperature: float, vary: str
) -> None:
    """χ² over 20,000 draws; the limit is far in the tail (p < 1e-6 for 9 degrees of freedom), and seeds are fixed."""
    tokens, logprobs = draw_many(params(**keys), vary=vary)
    expected = odds(kept, temperature)
    counts = torch.bincount(tokens, minlength=10).tolist()
    assert all(counts[token] == 0 for token in ALL if token not in kept)
    chi_square = sum((counts[t] - NUM_DRAWS * expected[t]) ** 2 / (NUM_DRAWS * expected[t]) for t in kept)
    assert chi_square < 46
    by_hand = torch.tensor(odds(ALL, temperature)).log()[tokens]
    assert torch.allclose(logprobs, by_hand, atol=1e-5)


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.6, 0.9, 0.999])
def test_top_p_keeps_the_smallest_set_with_that_probability(top_p: float) -> None:
    p = odds(ALL)
    kept: list[int] = []
    while sum(p[token] for token in kept) < top_p:
        kept.append(BY_SIZE[len(kept)])
    tokens, logprobs = draw_many(params(top_p=top_p))
    expected = odds(kept)
    counts = torch.bincount(tokens, minlength=10).tolist()
    assert all(counts[token] == 0 for token in ALL if token not in kept)
    chi_square = sum((counts[t] - NUM_DRAWS * expected[t]) ** 2 / (NUM_DRAWS * expected[t]) for t in kept)
    assert chi_square < 46
    assert torch.allclose(logprobs, torch.tensor(p).log()[tokens], atol=1e-5)


def test_truncations_apply_one_after_the_other() -> None:
    """top-p is of what top-k left: 0.75 of the four likeliest, not of all ten."""
    kept = truncate(torch.tensor([LOGITS]), 4, 0.75, 0.0)[0].isfinite().nonzero()[:, 0].tolist()
    p = odds(BY_SIZE[:4])
    by_hand: list[int] = []
    while sum(p[token] for token in by_hand) < 0.75:
        by_hand.append(BY_SIZE[len(by_hand)])
    assert sorted(kept) == sorted(by_hand)


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12),
    top_k=st.integers(0, 14),
    top_p=st.floats(1e-6, 1.0),
    min_p=st.floats(0.0, 0.999),
)
def test_the_likeliest_token_stays_and_kept_logits_are_untouched(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    row = torch.tensor([logits])
    kept = truncate(row, top_k, top_p, min_p)
    assert kept[0, row[0].argmax()] == row.max()
    assert ((kept == row) | (kept == -torch.inf)).all()
    # What goes is never likelier than what stays.
    gone = row[kept == -torch.inf]
    assert gone.numel() == 0 or gone.max() <= row[kept != -torch.inf].min()


@pytest.mark.parametrize("keys", [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.5}])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_of_the_whole_vocabulary(keys: dict[str, float], temperature: float) -> None:
    """Of 0.5, 0.3 and 0.2 the first two can be drawn, and keep their probabilities."""
    logits = temperature * torch.tensor([0.5, 0.3, 0.2]).log().expand(20, -1)
    settings = params(temperature=temperature, **keys)
    tokens, logprobs = draw_tokens(logits, settings, torch.arange(20), torch.zeros(20, dtype=torch.int64))
    assert set(tokens.tolist()) == {0, 1}
    assert torch.allclose(logprobs.exp(), torch.tensor([0.5, 0.3])[tokens])


def test_off_is_off() -> None:
    row = torch.tensor([LOGITS])
    assert torch.equal(truncate(row, 0, 1.0, 0.0), row)


def test_greedy_takes_the_likeliest_and_reports_temperature_one() -> None:
    tokens, logprobs = draw_many(params(temperature=0))
    assert set(tokens.tolist()) == {3}
    assert logprobs[0].item() == pytest.approx(math.log(odds(ALL)[3]), rel=1e-5)


def test_gumbel_noise_is_finite_with_the_right_moments() -> None:
    """Mean γ = 0.5772, variance π²/6; P(noise ≤ 0) = 1/e."""
    seeds = torch.tensor([seed_of("gumbel", index) for index in range(200)])
    noise = gumbel_noise(seeds, torch.arange(200), 2000).double()
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.57722, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    assert (noise <= 0).double().mean().item() == pytest.approx(1 / math.e, abs=0.005)


@pytest.mark.parametrize("bits", [0, 0xFFFFFFFF])
def test_the_extremes_of_the_hash_are_finite(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token in 2²³ meets each: a vocabulary of 150,000 does so every 56 tokens."""
    monkeypatch.setattr(sampling, "_mix", lambda x: torch.full_like(x, bits))
    noise = gumbel_noise(torch.tensor([1]), torch.tensor([0]), 3)
    assert noise.isfinite().all()


def test_noise_is_not_correlated_between_neighbours() -> None:
    seeds = torch.tensor([seed_of("gumbel", index) for index in range(300)])
    by_seed = gumbel_noise(seeds, torch.zeros_like(seeds), 500).double()
    by_position = gumbel_noise(torch.full_like(seeds, 7), torch.arange(300), 500).double()
    small_seeds = gumbel_noise(torch.arange(300), torch.zeros_like(seeds), 500).double()
    for noise in (by_seed, by_position, small_seeds):
        z = (noise - noise.mean()) / noise.std()
        assert abs((z[1:] * z[:-1]).mean().item()) < 0.015
        assert abs((z[:, 1:] * z[:, :-1]).mean().item()) < 0.015


def test_noise_is_a_function_of_its_own_row() -> None:
    seeds = torch.tensor([seed_of(index) for index in range(5)])
    positions = torch.tensor([0, 3, 9, 3, 0])
    together = gumbel_noise(seeds, positions, 40)
    for row in range(5):
        assert torch.equal(gumbel_noise(seeds[row : row + 1], positions[row : row + 1], 40)[0], together[row])
        # A larger vocabulary only adds tokens.
        assert torch.equal(gumbel_noise(seeds[row : row + 1], positions[row : row + 1], 90)[0, :40], together[row])


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 33, 62])
def test_every_bit_of_the_seed_matters(bit: int) -> None:
    seed = torch.tensor([seed_of("x")])
    zero = torch.zeros_like(seed)
    assert not torch.equal(gumbel_noise(seed, zero, 20), gumbel_noise(seed ^ (1 << bit), zero, 20))
    assert not torch.equal(gumbel_noise(seed, zero, 20), gumbel_noise(seed, zero + 1, 20))


def slow_noise(seed: int, position: int, token: int) -> float:
    """The definition, in Python's own integers."""

    def mix(x: int) -> int:
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    key = mix(mix(seed % 2**32 ^ mix(position + 1)) ^ (seed >> 32) % 2**32)
    bits = mix(key ^ mix(token * 0x9E3779B9 % 2**32))
    return -math.log(-math.log(((bits >> 9) + 0.5) / 2**23))


def test_the_noise_is_its_definition() -> None:
    dice = random.Random(0)
    seeds = [0, 1, 2**63 - 1, 2**32, 2**31, *(dice.getrandbits(63) for _ in range(20))]
    positions = [dice.randrange(5000) for _ in seeds]
    noise = gumbel_noise(torch.tensor(seeds), torch.tensor(positions), 3000)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        for token in (0, 1, 2999, dice.randrange(3000)):
            assert noise[row, token].item() == pytest.approx(slow_noise(seed, position, token), abs=1e-4, rel=1e-5)


@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0, 30.0, 300.0])
def test_leaving_out_what_cannot_win_changes_nothing(spread: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(64, 2000, generator=generator) * spread
    seeds = torch.randint(0, 2**62, (64,), generator=generator)
    positions = torch.arange(64)
    tokens, _ = draw_tokens(logits, SamplingParams(max_new_tokens=1), seeds, positions)
    scores = logits.log_softmax(dim=-1) + gumbel_noise(seeds, positions, 2000)
    assert torch.equal(tokens, scores.argmax(dim=-1))
