"""Loss and gradient of the newer presets on the tiny batch of `presets.py`, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from tests.golden.presets import (
    COMPLETIONS,
    NOW,
    OLD,
    RATIO,
    SEQUENCE_MEAN,
    TOKEN_MEAN,
    Z0,
    Z1,
    Z2,
    ZB,
    check,
    learn,
    make_stage,
    plain,
)

ADVANTAGE = [Z0, Z0, Z1, Z2, Z2, Z2, -ZB, -ZB, ZB, ZB, ZB]


def test_luspo() -> None:
    """LUSPO eq. 6: 1/N Σ_i |o_i| min(s_i A_i, clip(s_i) A_i). The case of test_gspo, times the length.

    s: a0 √0.75 = 0.87, a1 0.5 (clipped low), a2 ∛9; b0 1.06 (A > 0, clipped high), b1 0.987 (A < 0, clipped low).
    """
    s_a0, s_a2 = math.sqrt(1.5 * 0.5), 9 ** (1 / 3)
    per_completion = [-s_a0 * Z0, -0.9997 * Z1, -s_a2 * Z2, -1.0004 * ZB, 0.9997 * ZB]
    lengths = [2, 1, 3, 2, 3]
    outcome = learn(make_stage("luspo", epochs_per_batch=2), plain(1, 0, 0.2, 1, 0))
    whole = sum(length * loss for length, loss in zip(lengths, per_completion, strict=True)) / 5
    assert outcome[0].loss == pytest.approx(whole, rel=1e-5)
    # |o_i| ∂s_i/∂log π_t = s_i: every token of a completion that is not clipped gets all of s_i A_i.
    loss = [per_completion[i] for i, tokens in enumerate(COMPLETIONS) for _ in tokens]
    gradient = [-s_a0 * Z0] * 2 + [0] + [-s_a2 * Z2] * 3 + [0] * 5
    check(outcome, loss, gradient, [1 / 5] * 11)


def test_gmpo() -> None:
    """GMPO eq. 4, in log space: a0 (A > 0) ≤ 0.4, a1, a2 and b0 (A < 0) ≥ −0.4, b1 (A > 0) ≤ 0.4; then the mean.

    log ρ of token 0 is log 1.5 = 0.405, so it is clipped to 0.4; that of token 2 is log 0.5 = −0.69, to −0.4.
    """
    means = [
        (0.4 + math.log(0.5)) / 2,
        -0.4,
        math.log(1.5 * 6) / 3,
        math.log(0.9 * 1.25) / 2,
        math.log(1.1 * 1.25 * 0.7) / 3,
    ]
    advantage = [Z0, Z1, Z2, -ZB, ZB]
    per_token = [-math.exp(means[i]) * advantage[i] for i, tokens in enumerate(COMPLETIONS) for _ in tokens]
    gradient = [0 if token in (0, 2) else value for token, value in enumerate(per_token)]
    outcome = learn(make_stage("gmpo", epochs_per_batch=2))
    check(outcome, per_token, gradient, SEQUENCE_MEAN)
    assert outcome[0].means["policy/clip_share"] == pytest.approx(2 / 11)


def test_sapo() -> None:
    """SAPO eq. 5–6: 4/τ σ(τ(ρ − 1)) A with τ = 1 for A > 0 and 1.05 for A < 0; its slope is 4 σ (1 − σ) ρ A."""
    tau = [1.0 if a > 0 else 1.05 for a in ADVANTAGE]
    sigma = [1 / (1 + math.exp(-t * (ratio - 1))) for t, ratio in zip(tau, RATIO, strict=True)]
    loss = [-4 / t * s * a for t, s, a in zip(tau, sigma, ADVANTAGE, strict=True)]
    gradient = [-4 * s * (1 - s) * ratio * a for s, ratio, a in zip(sigma, RATIO, ADVANTAGE, strict=True)]
    check(learn(make_stage("sapo", epochs_per_batch=2)), loss, gradient, SEQUENCE_MEAN)


def test_dppo() -> None:
    """DPPO eq. 11–12: ρA, without tokens whose probability moved too far in the direction of A.

    By more than 0.1 up: token 0 (0.37 to 0.55). By more than 0.05 down: 2 (0.14 to 0.07) and 6 (0.74 to 0.67).
    """
    moved = [math.exp(now) - math.exp(old) for now, old in zip(NOW, OLD, strict=True)]
    kept = [0 if (a > 0 and m > 0.1) or (a < 0 and m < -0.05) else 1 for a, m in zip(ADVANTAGE, moved, strict=True)]
    assert [token for token, keeps in enumerate(kept) if not keeps] == [0, 2, 6]
    loss = [-k * ratio * a for k, ratio, a in zip(kept, RATIO, ADVANTAGE, strict=True)]
    outcome = learn(make_stage("dppo", epochs_per_batch=2, loss={"clip_low": 0.05, "clip_high": 0.1}))
    check(outcome, loss, loss, TOKEN_MEAN)
    assert outcome[0].means["policy/clip_share"] == pytest.approx(kept.count(0) / 11)


def test_otb(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTB: at each position, r minus the mean of the rewards with weights W_t = Σ_{j ≤ t} (1 − π(o_j)).

    Group a: at the first position all three completions, at the second a0 and a2, at the third a2 alone, which gets 0.
    Group b: at the third b1 alone. The loss is on-policy, −A/(5 · 10) for each token (max_new_tokens is 10).
    """
    monkeypatch.setattr("tests.golden.presets.ROLLOUT", OLD)  # ENGINE makes probabilities above 1
    w = [1 - math.exp(logprob) for logprob in OLD]
    first_a = (1 * w[0] + 0 * w[2] + 0.2 * w[3]) / (w[0] + w[2] + w[3])
    second_a = (1 * (w[0] + w[1]) + 0.2 * (w[3] + w[4])) / (w[0] + w[1] + w[3] + w[4])
    first_b = w[8] / (w[6] + w[8])
    second_b = (w[8] + w[9]) / (w[6] + w[7] + w[8] + w[9])
    advantage = [
        *(1 - first_a, 1 - second_a),
        0 - first_a,
        *(0.2 - first_a, 0.2 - second_a, 0),
        *(0 - first_b, 0 - second_b),
        *(1 - first_b, 1 - second_b, 0),
    ]
    loss = [-a for a in advantage]
    check(learn(make_stage("otb")), loss, loss, [1 / 50] * 11)


def test_otb_gives_a_group_without_signal_exactly_nothing() -> None:
    stats, gradient = learn(make_stage("otb"), plain(0.1, 0.1, 0.1, 0.7, 0.7))
    assert (stats.num_tokens, gradient) == (0, [])


def test_otb_subtracts_the_kl_from_the_token_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """G_t = r − β Σ_{s ≥ t} (log π_old − log π_ref), as in REINFORCE++. GAP: b0 0.4 −0.3, b1 0.15 0.2 −0.25."""
    monkeypatch.setattr("tests.golden.presets.ROLLOUT", OLD)  # ENGINE makes probabilities above 1
    w = [1 - math.exp(logprob) for logprob in OLD]
    b0, b1 = [-0.01 * 0.1, 0.01 * 0.3], [1 - 0.01 * 0.1, 1 + 0.01 * 0.05, 1 + 0.01 * 0.25]
    first = (b0[0] * w[6] + b1[0] * w[8]) / (w[6] + w[8])
    second = (b0[1] * (w[6] + w[7]) + b1[1] * (w[8] + w[9])) / (w[6] + w[7] + w[8] + w[9])
    stage = make_stage("otb", kl={"coefficient": 0.01, "estimator": "k1", "place": "reward"})
    _, gradient = learn(stage)
    by_hand = [b0[0] - first, b0[1] - second, b1[0] - first, b1[1] - second, 0]
    by_hand[3] = 0  # clipped: ρ is 1.25
    assert gradient[6:] == pytest.approx([-a * RATIO[6 + i] / 50 for i, a in enumerate(by_hand)], rel=1e-5, abs=1e-7)
