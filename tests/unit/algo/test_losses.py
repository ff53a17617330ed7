from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.algo.completions import Completions
from groupwise.algo.importance import IMPORTANCE, IMPORTANCE_LEVELS, off_policy
from groupwise.algo.losses import SURROGATES, SurrogateInputs, SurrogateOutputs, kl_estimate, with_divergence

logprob = st.floats(-8, 0, width=32)


SETTINGS = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": math.inf, "gate_positive": 1.0, "gate_negative": 1.05}


def of_lengths(*lengths: int) -> Completions:
    return Completions(torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)), lengths)


def surrogate(
    name: str, ratios: list[float], advantages: list[float], lengths: tuple[int, ...] = (), **keys: Any
) -> tuple[SurrogateOutputs, list[float]]:
    """(outputs, derivative of the summed loss by each logprob)."""
    old = torch.full((len(ratios),), -2.0)
    now = (old + torch.tensor(ratios).log()).requires_grad_()
    completions = of_lengths(*lengths or (len(ratios),))
    outputs = SURROGATES[name](SurrogateInputs(now, old, torch.tensor(advantages), completions, **SETTINGS | keys))
    outputs.loss.sum().backward()
    assert now.grad is not None
    return outputs, now.grad.tolist()


def test_clipped_on_both_sides_and_the_four_corners() -> None:
    """Rows: inside, A>0 too high, A>0 too low, A<0 too high, A<0 too low."""
    outputs, gradient = surrogate("clipped", [1.1, 2.0, 0.5, 2.0, 0.5], [1.0, 1.0, 1.0, -1.0, -1.0])
    assert outputs.loss.tolist() == pytest.approx([-1.1, -1.3, -0.5, 2.0, 0.8])
    assert gradient == pytest.approx([-1.1, 0, -0.5, 2.0, 0])
    assert outputs.is_clipped_high.tolist() == [False, True, False, False, False]
    assert outputs.is_clipped_low.tolist() == [False, False, False, False, True]
    assert not outputs.ratio.requires_grad


def test_clip_off() -> None:
    outputs, gradient = surrogate("clipped", [9.0, 0.1], [1.0, -1.0], clip_low=math.inf, clip_high=math.inf)
    assert outputs.loss.tolist() == pytest.approx([-9.0, 0.1])
    assert gradient == pytest.approx([-9.0, 0.1])


def test_dual_clip_bounds_negative_advantages_alone() -> None:
    outputs, gradient = surrogate("clipped", [5.0, 2.0, 5.0], [-2.0, -2.0, 2.0], dual_clip=3.0)
    assert outputs.loss.tolist() == pytest.approx([6.0, 4.0, -2.6])
    assert gradient == pytest.approx([0, 4.0, 0])


@pytest.mark.parametrize("name", sorted(SURROGATES))
def test_on_policy_every_surrogate_has_the_policy_gradient(name: str) -> None:
    """The derivative at ratio 1 is −A by token; GSPO spreads the completion's −ΣA/T over its tokens, here the same."""
    _, gradient = surrogate(name, [1.0] * 5, [2.0, 2.0, -1.0, -1.0, -1.0], (2, 3))
    assert gradient == pytest.approx([-2.0, -2.0, 1.0, 1.0, 1.0])


def test_sequence_ratio_is_the_geometric_mean_of_its_own_tokens() -> None:
    outputs, _ = surrogate("sequence_clipped", [2.0, 8.0, 3.0], [1.0, 1.0, 1.0], (2, 1))
    assert outputs.ratio.tolist() == pytest.approx([4.0, 4.0, 3.0])


def test_the_gradient_of_a_sequence_ratio_is_that_of_its_mean() -> None:
    """Against a loop over completions of many lengths, one of them without tokens here."""
    dice = torch.Generator().manual_seed(0)
    lengths = [5, 1, 0, 9, 3]
    completions = of_lengths(*lengths)
    sequence = completions.sequence
    now, old, advantages = (torch.randn(len(sequence), generator=dice) / 10 for _ in range(3))
    gradients = []
    for is_fast in (True, False):
        logprobs = now.clone().requires_grad_()
        if is_fast:
            settings = SETTINGS | {"clip_low": 0.05, "clip_high": 0.05}
            inputs = SurrogateInputs(logprobs, old, advantages, completions, **settings)
            loss = SURROGATES["sequence_clipped"](inputs).loss.sum()
        else:
            parts = []
            for number in sequence.unique():
                own = sequence == number
                ratio = (logprobs - old)[own].mean().exp()
                parts += [-torch.minimum(ratio * one, ratio.clamp(0.95, 1.05) * one) for one in advantages[own]]
            loss = torch.stack(parts).sum()
        loss.backward()
        assert logprobs.grad is not None
        gradients.append(logprobs.grad)
    torch.testing.assert_close(*gradients)


def test_cispo_weight_is_constant_and_bounded() -> None:
    outputs, gradient = surrogate("cispo", [9.0, 0.1, 1.0], [1.0, 1.0, -2.0])
    assert gradient == pytest.approx([-1.3, -0.8, 2.0])
    assert not outputs.is_clipped_high.any()


@given(pairs=st.lists(st.tuples(logprob, logprob), min_size=1, max_size=20))
def test_k2_and_k3_are_never_negative_and_k1_is_the_difference(pairs: list[tuple[float, float]]) -> None:
    now, ref = torch.tensor(pairs).T
    assert torch.equal(kl_estimate("k1", now, ref), now - ref)
    for estimator in ("k2", "k3"):
        assert (kl_estimate(estimator, now, ref) >= 0).all()
        assert (kl_estimate(estimator, now, now) == 0).all()


def test_k3_is_never_negative_near_zero() -> None:
    base = torch.full((2001,), -1.0)
    shifts = torch.linspace(-1e-3, 1e-3, 2001)
    assert (kl_estimate("k3", base + shifts, base) >= 0).all()


def test_k1_and_k3_are_unbiased_by_exact_expectation() -> None:
    """Σ_a π(a) k(a) = KL(π ‖ π_ref), summed over a whole vocabulary."""
    generator = torch.Generator().manual_seed(3)
    now, ref = torch.randn(2, 12, generator=generator).double().log_softmax(-1)
    exact = sum(p * math.log(p / q) for p, q in zip(now.exp().tolist(), ref.exp().tolist(), strict=True))
    for estimator in ("k1", "k3"):
        assert (now.exp() * kl_estimate(estimator, now, ref)).sum().item() == pytest.approx(exact)


def test_an_infinite_coefficient_leaves_the_divergence_alone() -> None:
    loss, divergence = torch.tensor([3.0, -1.0]), torch.tensor([0.5, 0.25])
    assert with_divergence(loss, divergence, 2.0).tolist() == [4.0, -0.5]
    assert with_divergence(loss, divergence, float("inf")).tolist() == [0.5, 0.25]


def test_dppo_masks_by_the_difference_of_probabilities() -> None:
    """π_old = 0.135 for all. Rows: +0.3, +0.27 and −0.1 with A > 0; +0.3, −0.1 and −0.13 with A < 0."""
    ratios = [1 + change * math.exp(2) for change in (0.31, 0.27, -0.1, 0.3, -0.1, -0.13)]
    advantages = [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
    outputs, gradient = surrogate("probability_masked", ratios, advantages, clip_low=0.12)
    kept = [0, 1, 1, 1, 1, 0]
    expected = [-keep * ratio * a for keep, ratio, a in zip(kept, ratios, advantages, strict=True)]
    assert outputs.loss.tolist() == pytest.approx(expected, rel=1e-5)
    assert gradient == pytest.approx(expected, rel=1e-5)
    assert outputs.is_clipped_high.tolist() == [True, False, False, False, False, False]
    assert outputs.is_clipped_low.tolist() == [False, False, False, False, False, True]
    assert outputs.ratio.tolist() == pytest.approx(ratios, rel=1e-5)


def test_the_soft_gate_fades_on_both_sides_of_1_and_sooner_for_negative_advantages() -> None:
    """The derivative of 4/τ·σ(τ(ρ − 1)) in log ρ is 4ρ·σ(1 − σ): ρ at τ = 0, and less the larger τ·|ρ − 1| is."""
    ratios = [1.0, 1.5, 0.5, 3.0]
    _, positive = surrogate("soft_gate", ratios, [1.0] * 4, gate_positive=2.0)
    _, negative = surrogate("soft_gate", ratios, [-1.0] * 4, gate_negative=4.0)
    sigma = [1 / (1 + math.exp(-2 * (ratio - 1))) for ratio in ratios]
    expected = [-4 * ratio * s * (1 - s) for ratio, s in zip(ratios, sigma, strict=True)]
    assert positive == pytest.approx(expected, rel=1e-5)
    for place in (1, 2, 3):
        assert 0 < negative[place] < -positive[place] < ratios[place]


def test_the_geometric_mean_is_of_ratios_that_are_clipped_one_by_one() -> None:
    """log ρ of the first completion: 0.5 → 0.3 (A > 0), −0.9; of the second: 0.9, −0.5 → −0.2 (A < 0)."""
    ratios = [math.exp(value) for value in (0.5, -0.9, 0.9, -0.5)]
    outputs, gradient = surrogate("geometric_mean", ratios, [1.0, 1.0, -2.0, -2.0], (2, 2))
    first, second = math.exp(-0.3), math.exp(0.35)
    assert outputs.loss.tolist() == pytest.approx([-first, -first, 2 * second, 2 * second], rel=1e-5)
    assert gradient == pytest.approx([0, -first, 2 * second, 0], rel=1e-5)
    assert outputs.is_clipped_high.tolist() == [True, False, False, False]
    assert outputs.is_clipped_low.tolist() == [False, False, False, True]


def weights(mode: str, ratios: list[float], floor: float, cap: float) -> list[float]:
    weight: list[float] = IMPORTANCE[mode](torch.tensor(ratios), floor, cap).tolist()
    return weight


def test_importance_weights() -> None:
    ratios = [0.1, 0.6, 1.0, 1.9, 5.0]
    assert weights("none", ratios, 0.5, 2.0) == [1.0] * 5
    assert weights("truncated", ratios, 0.5, 2.0) == pytest.approx([0.1, 0.6, 1.0, 1.9, 2.0])
    assert weights("masked", ratios, 0.5, 2.0) == pytest.approx([0.0, 0.6, 1.0, 1.9, 0.0])
    assert weights("masked", ratios, 0.05, 2.0) == pytest.approx([0.1, 0.6, 1.0, 1.9, 0.0])
    assert weights("rejected", ratios, 0.5, 2.0) == [0.0, 1.0, 1.0, 1.0, 0.0]


def test_the_bounds_themselves_are_inside() -> None:
    assert weights("masked", [0.5, 5.0], 0.5, 5.0) == [0.5, 5.0]
    assert weights("rejected", [0.5, 5.0], 0.5, 5.0) == [1.0, 1.0]


def test_importance_levels() -> None:
    """Ratios 2 and 8 in one completion, 3 in another: each its own, their product 16, their geometric mean 4."""
    ratios, completions = torch.tensor([2.0, 8.0, 3.0]), of_lengths(2, 1)
    expected = {"token": [2.0, 8.0, 3.0], "sequence": [16.0, 16.0, 3.0], "geometric": [4.0, 4.0, 3.0]}
    for level, values in expected.items():
        assert IMPORTANCE_LEVELS[level](ratios.log(), completions).exp().tolist() == pytest.approx(values)


def test_off_policy_completions_are_those_with_a_negative_advantage_and_a_mean_above_the_limit() -> None:
    """Means: 0.3, 0.3, 0.1 and, with advantages of both signs, 0.3: a token's own sign decides."""
    log_ratio = torch.tensor([0.6, 0.0, 0.3, 0.3, 0.2, 0.0, 0.3, 0.3])
    advantages = torch.tensor([-1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.5])
    is_off = off_policy(log_ratio, advantages, of_lengths(2, 2, 2, 2), 0.2)
    assert is_off.tolist() == [True, True, False, False, False, False, True, False]
