"""The entropy bonus and the choices of tokens on the tiny batch of `presets.py`, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from tests.golden.presets import (
    CLIPPED,
    CLIPPED_GRADIENT,
    ENTROPY,
    KL_NOW,
    OLD,
    RATIO,
    SEQUENCE_MEAN,
    TOKEN_MEAN,
    Z0,
    Z1,
    Z2,
    ZB,
    TablePolicy,
    check,
    learn,
    make_stage,
    plain,
)

ADVANTAGE = [Z0, Z0, Z1, Z2, Z2, Z2, -ZB, -ZB, ZB, ZB, ZB]
K3 = [math.exp(-d) + d - 1 for d in KL_NOW]
COVARIANCE = [(old - sum(OLD) / 11) * (a - sum(ADVANTAGE) / 11) for old, a in zip(OLD, ADVANTAGE, strict=True)]


@pytest.mark.parametrize("max_tokens", [1, 12, 1000])
def test_entropy_bonus(max_tokens: int) -> None:
    """Surrogate − 0.01 H: the gradient of each logprob is as without, that of each entropy is −0.01 of its weight."""
    policy = TablePolicy()
    stage = make_stage("grpo", epochs_per_batch=2, kl={"coefficient": 0.0}, entropy={"bonus": 0.01})
    outcome = learn(stage, max_tokens=max_tokens, policy=policy)
    check(outcome, [c - 0.01 * h for c, h in zip(CLIPPED, ENTROPY, strict=True)], CLIPPED_GRADIENT, SEQUENCE_MEAN)
    assert policy.entropy_gradient == pytest.approx([-0.01 * weight for weight in SEQUENCE_MEAN])
    assert outcome[0].means["policy/entropy_nats"] == pytest.approx(sum(ENTROPY) / 11)
    assert outcome[0].means["policy/entropy_bonus"] == pytest.approx(0.01)


def test_without_a_bonus_entropies_get_no_gradient() -> None:
    policy = TablePolicy()
    outcome = learn(make_stage("grpo"), policy=policy)
    assert policy.entropy_gradient is None
    assert "policy/entropy_bonus" not in outcome[0].means


def test_groups_without_signal_still_feel_the_bonus() -> None:
    policy = TablePolicy()
    stage = make_stage("gr_reinforce", entropy={"bonus": 0.5})
    check(learn(stage, plain(1, 1, 1, 0, 0), policy=policy), [-0.5 * h for h in ENTROPY], [0] * 11, SEQUENCE_MEAN)
    assert policy.entropy_gradient == pytest.approx([-0.5 * weight for weight in SEQUENCE_MEAN])


@pytest.mark.parametrize("max_tokens", [1, 12, 1000])
def test_top_share(max_tokens: int) -> None:
    """A share of 0.4 is 4 of 11 tokens: 4 (1.5 nats), 8 (1.2), 0 (1.0) and 2 (0.9). KL and denominator stay."""
    kept = [1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0]
    loss = [k * c + 0.04 * k3 for k, c, k3 in zip(kept, CLIPPED, K3, strict=True)]
    gradient = [k * c + 0.04 * (1 - math.exp(-d)) for k, c, d in zip(kept, CLIPPED_GRADIENT, KL_NOW, strict=True)]
    stage = make_stage("grpo", epochs_per_batch=2, entropy={"top_share": 0.4})
    outcome = learn(stage, max_tokens=max_tokens)
    check(outcome, loss, gradient, SEQUENCE_MEAN)
    assert outcome[0].means["policy/learned_share"] == pytest.approx(4 / 11)


def test_clip_cov() -> None:
    """All tokens with a covariance from 0.2 to 1 are left out, since the share would allow ten."""
    dropped = [0.2 <= value <= 1 for value in COVARIANCE]
    assert 1 < sum(dropped) < 6
    kept = [0 if out else 1 for out in dropped]
    stage = make_stage(
        "clip_cov",
        epochs_per_batch=2,
        entropy={"covariance_share": 0.9, "covariance_low": 0.2, "covariance_high": 1.0},
    )
    loss = [k * c for k, c in zip(kept, CLIPPED, strict=True)]
    gradient = [k * c for k, c in zip(kept, CLIPPED_GRADIENT, strict=True)]
    outcome = learn(stage)
    check(outcome, loss, gradient, TOKEN_MEAN)
    assert outcome[0].means["policy/learned_share"] == pytest.approx(sum(kept) / 11)


def test_clip_cov_drops_its_share_and_no_more() -> None:
    """A share of 2e-4 of 11 tokens is one token, if any is inside the bounds."""
    inside = make_stage("clip_cov", entropy={"covariance_low": -100.0, "covariance_high": math.inf})
    outside = make_stage("clip_cov", entropy={"covariance_low": 100.0, "covariance_high": math.inf})
    assert learn(inside)[0].means["policy/learned_share"] == pytest.approx(10 / 11)
    assert learn(outside)[0].means["policy/learned_share"] == 1


def test_kl_cov() -> None:
    """No clip. 0.5 (log ρ)² is added to the 3 of 11 tokens with the highest covariance."""
    pulled = [value >= sorted(COVARIANCE)[-3] for value in COVARIANCE]
    assert sum(pulled) == 3
    unclipped = [-ratio * a for ratio, a in zip(RATIO, ADVANTAGE, strict=True)]
    loss = [u + 0.5 * p * math.log(ratio) ** 2 for u, p, ratio in zip(unclipped, pulled, RATIO, strict=True)]
    gradient = [u + p * math.log(ratio) for u, p, ratio in zip(unclipped, pulled, RATIO, strict=True)]
    check(learn(make_stage("kl_cov", epochs_per_batch=2, entropy={"pull_share": 0.3})), loss, gradient, TOKEN_MEAN)
