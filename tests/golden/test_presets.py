"""Every preset's whole loss and gradient on one tiny batch, against numbers worked by hand from the paper's formula.

The expected values are plain Python: nothing of groupwise computes them. `presets.py` has the batch.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from groupwise.types import Score, Verdict
from tests.golden.presets import (
    CLIPPED,
    CLIPPED_GRADIENT,
    COMPLETIONS,
    ENGINE,
    EPSILON,
    GAP,
    KL_NOW,
    LENGTH,
    NOW,
    RATIO,
    REWARDS,
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


@pytest.mark.parametrize("max_tokens", [1, 12, 1000])
def test_grpo(max_tokens: int) -> None:
    """DeepSeekMath eq. 3–4: 1/G Σ 1/|o_i| Σ_t min(ρA, clip(ρ)A) − β (π_ref/π − log(π_ref/π) − 1), β = 0.04."""
    k3 = [math.exp(-d) + d - 1 for d in KL_NOW]
    loss = [c + 0.04 * k for c, k in zip(CLIPPED, k3, strict=True)]
    gradient = [c + 0.04 * (1 - math.exp(-d)) for c, d in zip(CLIPPED_GRADIENT, KL_NOW, strict=True)]
    outcome = learn(make_stage("grpo", epochs_per_batch=2), max_tokens=max_tokens)
    check(outcome, loss, gradient, SEQUENCE_MEAN)
    means = outcome[0].means
    assert outcome[0].num_tokens == 11
    assert means["policy/clip_high_share"] == pytest.approx(2 / 11)
    assert means["policy/clip_low_share"] == pytest.approx(1 / 11)
    assert means["policy/clip_share"] == pytest.approx(3 / 11)
    assert means["policy/ratio_mean"] == pytest.approx(sum(RATIO) / 11, rel=1e-5)
    assert means["policy/ratio_max"] == pytest.approx(6, rel=1e-5)
    assert means["kl/ref_k1"] == pytest.approx(sum(KL_NOW) / 11, rel=1e-5)
    assert means["kl/ref_k2"] == pytest.approx(sum(d * d / 2 for d in KL_NOW) / 11, rel=1e-5)
    assert means["kl/ref_k3"] == pytest.approx(sum(k3) / 11, rel=1e-5)
    # KL(π_old ‖ π) from tokens of π_old, by k3: ρ − log ρ − 1.
    approx_kl = sum(ratio - math.log(ratio) - 1 for ratio in RATIO) / 11
    assert means["policy/approx_kl"] == pytest.approx(approx_kl, rel=1e-5)
    assert means["engine/logprob_gap_mean"] == pytest.approx(sum(abs(math.log(w)) for w in ENGINE) / 11, rel=1e-5)
    assert means["engine/logprob_gap_max"] == pytest.approx(math.log(1 / 0.3), rel=1e-5)


def test_grpo_on_policy() -> None:
    """One update a step: the ratio is 1 whatever the old table says, so the loss is −A and so is the gradient."""
    surrogate = [-Z0, -Z0, -Z1, -Z2, -Z2, -Z2, ZB, ZB, -ZB, -ZB, -ZB]
    check(learn(make_stage("grpo", kl={"coefficient": 0.0})), surrogate, surrogate, SEQUENCE_MEAN)


@pytest.mark.parametrize(("key", "divisor"), [(0, 10), (7, 7)])
def test_dr_grpo(key: int, divisor: int) -> None:
    """Dr. GRPO: A = r − mean, and 1/G Σ_i Σ_t / constant. The constant is max_new_tokens = 10 unless given."""
    a0, a1, a2, b = 0.6, -0.4, -0.2, 0.5
    loss = [
        *(-1.2 * a0, -0.5 * a0),
        -0.8 * a1,
        *(-1.5 * a2, -6 * a2, -a2),
        *(0.9 * b, 1.25 * b),
        *(-1.1 * b, -1.2 * b, -0.7 * b),
    ]
    gradient = [0, -0.5 * a0, 0, -1.5 * a2, -6 * a2, -a2, 0.9 * b, 1.25 * b, -1.1 * b, 0, -0.7 * b]
    stage = make_stage("dr_grpo", epochs_per_batch=2, loss={"constant_length": key})
    check(learn(stage), loss, gradient, [1 / (5 * divisor)] * 11)


def test_dapo() -> None:
    """DAPO eq. 8 and 13: clip 0.2 / 0.28, mean over all tokens, soft length penalty, truncated completions masked.

    max_new_tokens 4, buffer 0.5 × 4 = 2, penalty 0.5: length 3 is 1 token into the buffer of 2, so −0.25; up to 2: 0.
    Rewards: a0 1, a1 0, a2 0.2 − 0.25 = −0.05; b0 0, b1 1 − 0.25 = 0.75. a2 was cut: it counts in the mean of its group
    and in nothing else, so 8 tokens are left.
    """
    stage = make_stage(
        "dapo",
        epochs_per_batch=2,
        sampling={"max_new_tokens": 4},
        reward={"overlong_buffer_share": 0.5, "overlong_penalty": 0.5},
    )
    mean = 0.95 / 3
    std = math.sqrt(((1 - mean) ** 2 + mean**2 + (0.05 + mean) ** 2) / 3) + EPSILON
    z0, z1, zb = (1 - mean) / std, -mean / std, 0.375 / (0.375 + EPSILON)
    loss = [
        *(-1.28 * z0, -0.5 * z0),
        -0.8 * z1,
        *(0, 0, 0),
        *(0.9 * zb, 1.25 * zb),
        *(-1.1 * zb, -1.25 * zb, -0.7 * zb),  # 1.25 is under 1.28: clip-higher keeps token 9
    ]
    gradient = [0, -0.5 * z0, 0, 0, 0, 0, 0.9 * zb, 1.25 * zb, -1.1 * zb, -1.25 * zb, -0.7 * zb]
    outcome = learn(stage, truncated=(2,))
    check(outcome, loss, gradient, [1 / 8] * 11)
    assert outcome[0].num_tokens == 8


def test_gspo() -> None:
    """GSPO eq. 5–7: s_i = (Π_t ρ_t)^(1/|o_i|), clipped to [1 − 3e-4, 1 + 4e-4]; ∂s_i/∂log π_t = s_i / |o_i|.

    Rewards of group b are swapped: b0 (A > 0, s = 1.06) is clipped high, b1 (A < 0, s = 0.987) and a1 (A < 0) low.
    """
    s_a0, s_a2 = math.sqrt(1.5 * 0.5), 9 ** (1 / 3)
    per_completion = [-s_a0 * Z0, -0.9997 * Z1, -s_a2 * Z2, -1.0004 * ZB, 0.9997 * ZB]
    loss = [per_completion[i] for i in (0, 0, 1, 2, 2, 2, 3, 3, 4, 4, 4)]
    # 1/N Σ_i: the weight of a token in the mean of its completion, times s A, is already the derivative by that token.
    gradient = [-s_a0 * Z0] * 2 + [0] + [-s_a2 * Z2] * 3 + [0] * 5
    outcome = learn(make_stage("gspo", epochs_per_batch=2), plain(1, 0, 0.2, 1, 0))
    check(outcome, loss, gradient, SEQUENCE_MEAN)
    assert outcome[0].means["policy/clip_high_share"] == pytest.approx(2 / 11)
    assert outcome[0].means["policy/clip_low_share"] == pytest.approx(4 / 11)


def test_cispo() -> None:
    """MiniMax-M1 eq. 4–5: 1/Σ|o_i| Σ sg(min(ρ, 1 + 4)) A log π. Token 4 has ρ = 6 → 5; no token loses its gradient."""
    weight = [1.5, 0.5, 0.5, 1.5, 5.0, 1.0, 0.9, 1.25, 1.1, 1.25, 0.7]
    advantage = [Z0, Z0, Z1, Z2, Z2, Z2, -ZB, -ZB, ZB, ZB, ZB]
    gradient = [-w * a for w, a in zip(weight, advantage, strict=True)]
    loss = [g * now for g, now in zip(gradient, NOW, strict=True)]
    check(learn(make_stage("cispo", epochs_per_batch=2)), loss, gradient, TOKEN_MEAN)


def test_rloo() -> None:
    """RLOO: R = r − β Σ_t (log π_old − log π_ref), A_i = R_i − mean of the others; 1/N Σ_i A_i Σ_t log π. β = 0.03.

    Σ GAP: a0 −0.1, a1 0.3, a2 0.1, b0 0.1, b1 0.1.
    """
    r0, r1, r2, rb0, rb1 = 1 + 0.003, -0.009, 0.2 - 0.003, -0.003, 1 - 0.003
    a0, a1, a2 = r0 - (r1 + r2) / 2, r1 - (r0 + r2) / 2, r2 - (r0 + r1) / 2
    advantage = [a0, a0, a1, a2, a2, a2, *[rb0 - rb1] * 2, *[rb1 - rb0] * 3]
    loss = [-a * now for a, now in zip(advantage, NOW, strict=True)]
    check(learn(make_stage("rloo")), loss, [-a for a in advantage], [1 / 5] * 11)


def test_reinforce_plus_plus() -> None:
    """REINFORCE++: G_t = r − β Σ_{s ≥ t} (log π_old − log π_ref), normalized over all tokens; clip 0.2, β = 0.01."""
    returns = [
        *(1 - 0.01 * (0.1 - 0.2), 1 - 0.01 * -0.2),
        0 - 0.01 * 0.3,
        *(0.2 - 0.01 * (0.0 + 0.2 - 0.1), 0.2 - 0.01 * (0.2 - 0.1), 0.2 - 0.01 * -0.1),
        *(0 - 0.01 * (0.4 - 0.3), 0 - 0.01 * -0.3),
        *(1 - 0.01 * (0.15 + 0.2 - 0.25), 1 - 0.01 * (0.2 - 0.25), 1 - 0.01 * -0.25),
    ]
    mean = sum(returns) / 11
    std = math.sqrt(sum((g - mean) ** 2 for g in returns) / 11) + EPSILON
    a = [(g - mean) / std for g in returns]
    assert [value > 0 for value in a] == [True, True, False, False, False, False, False, False, True, True, True]
    factor = [1.2, 0.5, 0.8, 1.5, 6, 1, 0.9, 1.25, 1.1, 1.2, 0.7]
    is_kept = [0, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1]
    loss = [-f * value for f, value in zip(factor, a, strict=True)]
    gradient = [kept * value for kept, value in zip(is_kept, loss, strict=True)]
    check(learn(make_stage("reinforce++", epochs_per_batch=2)), loss, gradient, TOKEN_MEAN)


def test_maxrl() -> None:
    """MaxRL: A = (r − mean) / mean, clip 0.2, mean over all tokens.

    Group a: rewards 1 0 0.2, mean 0.4, so A = 1.5 −1 −0.5. Group b: rewards 0 1, mean 0.5, so A = −1 1.
    """
    loss = [-1.2 * 1.5, -0.5 * 1.5, 0.8, 0.75, 3, 0.5, 0.9, 1.25, -1.1, -1.2, -0.7]
    gradient = [0, -0.5 * 1.5, 0, 0.75, 3, 0.5, 0.9, 1.25, -1.1, 0, -0.7]
    check(learn(make_stage("maxrl", epochs_per_batch=2)), loss, gradient, TOKEN_MEAN)


def test_gr_reinforce() -> None:
    """1/N Σ_i A_i (1/|o_i| Σ_t log π): no ratio, no clip."""
    advantage = [Z0, Z0, Z1, Z2, Z2, Z2, -ZB, -ZB, ZB, ZB, ZB]
    loss = [-a * now for a, now in zip(advantage, NOW, strict=True)]
    check(learn(make_stage("gr_reinforce")), loss, [-a for a in advantage], SEQUENCE_MEAN)


def test_dual_clip() -> None:
    """Ye et al. 2020: for A < 0 the objective is at least cA. c = 3 bounds token 4 (ρ = 6) and takes its gradient."""
    loss, gradient = list(CLIPPED), list(CLIPPED_GRADIENT)
    loss[4], gradient[4] = -3 * Z2, 0
    stage = make_stage("grpo", epochs_per_batch=2, kl={"coefficient": 0.0}, loss={"dual_clip": 3.0})
    check(learn(stage), loss, gradient, SEQUENCE_MEAN)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", lambda d: d, lambda d: 1.0),
        ("k2", lambda d: d * d / 2, lambda d: d),
        ("k3", lambda d: math.exp(-d) - 1 + d, lambda d: 1 - math.exp(-d)),
    ],
)
def test_kl_in_the_loss(estimator: str, value: Any, slope: Any) -> None:
    """Schulman's estimators with d = log π − log π_ref; β = 0.5, by sequence mean like the surrogate."""
    loss = [c + 0.5 * value(d) for c, d in zip(CLIPPED, KL_NOW, strict=True)]
    gradient = [c + 0.5 * slope(d) for c, d in zip(CLIPPED_GRADIENT, KL_NOW, strict=True)]
    stage = make_stage("grpo", epochs_per_batch=2, kl={"coefficient": 0.5, "estimator": estimator})
    check(learn(stage), loss, gradient, SEQUENCE_MEAN)


@pytest.mark.parametrize(
    ("estimator", "value"),
    [("k1", lambda d: d), ("k2", lambda d: d * d / 2), ("k3", lambda d: math.exp(-d) - 1 + d)],
)
def test_kl_in_the_reward(estimator: str, value: Any) -> None:
    """R_i = r_i − β Σ_t k(log π_old − log π_ref), then (R − mean) / std in the group. No KL term in the loss."""
    sums = [sum(value(GAP[token]) for token in tokens) for tokens in COMPLETIONS]
    shaped = [reward - 0.1 * total for reward, total in zip(REWARDS, sums, strict=True)]
    advantage = [*standardized(shaped[:3]), *standardized(shaped[3:])]
    loss = [-advantage[i] * NOW[token] for i, tokens in enumerate(COMPLETIONS) for token in tokens]
    gradient = [-advantage[i] for i, tokens in enumerate(COMPLETIONS) for _ in tokens]
    kl = {"coefficient": 0.1, "estimator": estimator, "place": "reward"}
    check(learn(make_stage("gr_reinforce", kl=kl)), loss, gradient, SEQUENCE_MEAN)


def standardized(values: list[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)) + EPSILON
    return [(value - mean) / std for value in values]


# Products of ENGINE over a completion, and their roots: a0 2.5, a1 0.4, a2 2.88, b0 1.14, b1 0.297.
@pytest.mark.parametrize(
    ("keys", "weights"),
    [
        ({"importance": "truncated"}, [1.0, 2.0, 0.4, 1.2, 0.8, 2.0, 0.6, 1.9, 1.1, 0.9, 0.3]),
        ({"importance": "masked"}, [1.0, 0.0, 0.0, 1.2, 0.8, 0.0, 0.6, 1.9, 1.1, 0.9, 0.0]),
        (
            {"importance": "masked", "importance_floor": 0.35},
            [1.0, 0.0, 0.4, 1.2, 0.8, 0.0, 0.6, 1.9, 1.1, 0.9, 0.0],
        ),
        ({"importance": "rejected"}, [1, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0]),
        (
            {"importance": "truncated", "importance_level": "sequence"},
            [2.0, 2.0, 0.4, 2.0, 2.0, 2.0, 1.14, 1.14, 0.297, 0.297, 0.297],
        ),
        (
            {"importance": "masked", "importance_level": "sequence"},
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.14, 1.14, 0.0, 0.0, 0.0],
        ),
        (
            {"importance": "truncated", "importance_level": "geometric", "importance_cap": 1.5},
            [1.5, 1.5, 0.4, *[2.88 ** (1 / 3)] * 3, *[1.14**0.5] * 2, *[0.297 ** (1 / 3)] * 3],
        ),
        (
            {"importance": "rejected", "importance_level": "geometric", "importance_floor": 0.6, "importance_cap": 1.5},
            [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1],
        ),
    ],
)
def test_importance(keys: dict[str, Any], weights: list[float]) -> None:
    """π_old / π_engine, with a cap of 2 and a floor of 1/2 unless given. The KL is not weighed."""
    loss = [w * c + 0.04 * (math.exp(-d) - 1 + d) for w, c, d in zip(weights, CLIPPED, KL_NOW, strict=True)]
    gradient = [w * c + 0.04 * (1 - math.exp(-d)) for w, c, d in zip(weights, CLIPPED_GRADIENT, KL_NOW, strict=True)]
    outcome = learn(make_stage("grpo", epochs_per_batch=2, loss={"importance_cap": 2.0} | keys), max_tokens=20)
    check(outcome, loss, gradient, SEQUENCE_MEAN)
    assert outcome[0].means["policy/importance_weight_mean"] == pytest.approx(sum(weights) / 11, rel=1e-5)
    assert outcome[0].means["policy/importance_zero_share"] == pytest.approx(weights.count(0) / 11)


def test_off_policy_mask() -> None:
    """DeepSeek-V3.2 eq. 8–9, δ = 0.3. Means of log(π_engine / π): a1 1.61, A < 0; b1 0.42, but A > 0; others < 0."""
    drift = [-math.log(ratio * weight) for ratio, weight in zip(RATIO, ENGINE, strict=True)]
    assert drift[2] > 0.3 < sum(drift[8:]) / 3
    assert max(sum(drift[:2]), sum(drift[3:6]), sum(drift[6:8])) < 0
    kept = [1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    loss = [k * c + 0.04 * (math.exp(-d) - 1 + d) for k, c, d in zip(kept, CLIPPED, KL_NOW, strict=True)]
    gradient = [k * c + 0.04 * (1 - math.exp(-d)) for k, c, d in zip(kept, CLIPPED_GRADIENT, KL_NOW, strict=True)]
    outcome = learn(make_stage("grpo", epochs_per_batch=2, loss={"off_policy_mask": 0.3}))
    check(outcome, loss, gradient, SEQUENCE_MEAN)
    assert outcome[0].means["policy/off_policy_share"] == pytest.approx(1 / 11)


def test_unbiased_kl() -> None:
    """DeepSeek-V3.2 eq. 7: ρ · k3, and its derivative in log π: ρ (k3 + 1 − π_ref/π)."""
    k3 = [math.exp(-d) + d - 1 for d in KL_NOW]
    loss = [c + 0.04 * ratio * k for c, ratio, k in zip(CLIPPED, RATIO, k3, strict=True)]
    gradient = [
        c + 0.04 * ratio * (k + 1 - math.exp(-d))
        for c, ratio, k, d in zip(CLIPPED_GRADIENT, RATIO, k3, KL_NOW, strict=True)
    ]
    check(learn(make_stage("grpo", epochs_per_batch=2, kl={"unbiased": True})), loss, gradient, SEQUENCE_MEAN)


def test_pull() -> None:
    """Kimi K2.5: τ (log ρ)², also for tokens that are clipped and groups without signal (here group a)."""
    z, zero = 0.5 / (0.5 + EPSILON), [0.0] * 6
    clipped = [*zero, 0.9 * z, 1.25 * z, -1.1 * z, -1.2 * z, -0.7 * z]
    clipped_gradient = [*zero, 0.9 * z, 1.25 * z, -1.1 * z, 0, -0.7 * z]
    loss = [c + 0.1 * math.log(ratio) ** 2 for c, ratio in zip(clipped, RATIO, strict=True)]
    gradient = [c + 0.2 * math.log(ratio) for c, ratio in zip(clipped_gradient, RATIO, strict=True)]
    stage = make_stage("grpo", epochs_per_batch=2, kl={"coefficient": 0.0}, loss={"pull": 0.1})
    check(learn(stage, plain(1, 1, 1, 0, 1)), loss, gradient, SEQUENCE_MEAN)


def test_importance_with_one_update() -> None:
    """The old logprobs are needed for the correction alone; the ratio is then π / π_old as given."""
    stage = make_stage("grpo", kl={"coefficient": 0.0}, loss={"importance": "truncated"})
    weights = [1.0, 2.0, 0.4, 1.2, 0.8, 2.0, 0.6, 1.9, 1.1, 0.9, 0.3]
    loss = [w * c for w, c in zip(weights, CLIPPED, strict=True)]
    gradient = [w * c for w, c in zip(weights, CLIPPED_GRADIENT, strict=True)]
    check(learn(stage), loss, gradient, SEQUENCE_MEAN)


def test_errors_move_nothing() -> None:
    """a1's verifier failed: the mean of group a is that of a0 and a2 (0.6 ± 0.4), and 4 completions are left."""
    z = 0.4 / (0.4 + EPSILON)
    gradient = [-z, -z, 0, z, z, z, ZB, ZB, -ZB, -ZB, -ZB]
    loss = [g * now for g, now in zip(gradient, NOW, strict=True)]
    weights = [1 / length / 4 for length in LENGTH]
    outcome = learn(make_stage("gr_reinforce"), plain(1.0, None, 0.2, 0.0, 1.0))
    check(outcome, loss, gradient, weights)
    assert outcome[0].num_tokens == 10


def test_dead_group_counts_in_the_denominator() -> None:
    gradient = [-Z0, -Z0, -Z1, -Z2, -Z2, -Z2, 0, 0, 0, 0, 0]
    loss = [g * now for g, now in zip(gradient, NOW, strict=True)]
    outcome = learn(make_stage("gr_reinforce"), plain(1, 0, 0.2, 0.1, 0.1))
    check(outcome, loss, gradient, SEQUENCE_MEAN)
    assert outcome[0].num_tokens == 6


def test_dead_group_still_feels_the_kl() -> None:
    """All groups dead: what is left of GRPO is β k3."""
    loss = [0.04 * (math.exp(-d) - 1 + d) for d in KL_NOW]
    gradient = [0.04 * (1 - math.exp(-d)) for d in KL_NOW]
    check(learn(make_stage("grpo", epochs_per_batch=2), plain(1, 1, 1, 0, 0)), loss, gradient, SEQUENCE_MEAN)


def test_nothing_to_learn() -> None:
    stats, gradient = learn(make_stage("gr_reinforce"), plain(1, 1, 1, None, 0.5))
    assert (stats.loss, stats.grad_norm, stats.is_finite, stats.num_tokens, gradient) == (0.0, 0.0, True, 0, [])


def parted(*parts: tuple[float, float]) -> list[Score]:
    return [Score(a + f, Verdict.WRONG, {"answer": a, "format": f}) for a, f in parts]


PARTS = parted((1.0, 0.2), (0.0, 0.2), (0.0, 0.0), (0.0, 0.1), (1.0, 0.1))


def test_normalize_parts() -> None:
    """Each part is compared by itself and the advantages add up; a part that is equal in a group gives 0 there.

    Group a: answer 1 0 0 (mean 1/3), format 0.2 0.2 0 (mean 2/15). Group b: answer 0 1, format 0.1 0.1.
    """
    std_answer = math.sqrt(((2 / 3) ** 2 + 2 * (1 / 3) ** 2) / 3) + EPSILON
    std_format = math.sqrt((2 * (1 / 15) ** 2 + (2 / 15) ** 2) / 3) + EPSILON
    a0 = 2 / 3 / std_answer + 1 / 15 / std_format
    a1 = -1 / 3 / std_answer + 1 / 15 / std_format
    a2 = -1 / 3 / std_answer - 2 / 15 / std_format
    gradient = [-a0, -a0, -a1, -a2, -a2, -a2, ZB, ZB, -ZB, -ZB, -ZB]
    loss = [g * now for g, now in zip(gradient, NOW, strict=True)]
    stage = make_stage("gr_reinforce", reward={"normalize_parts": True})
    check(learn(stage, PARTS), loss, gradient, SEQUENCE_MEAN)


def test_gdpo() -> None:
    """GDPO: each part standardized in its group, their weighted sum divided by its std over the batch.

    The case of test_normalize_parts with half the weight on the format. The mean of the five sums is 0.
    """
    std_answer = math.sqrt(((2 / 3) ** 2 + 2 * (1 / 3) ** 2) / 3) + EPSILON
    std_format = math.sqrt((2 * (1 / 15) ** 2 + (2 / 15) ** 2) / 3) + EPSILON
    a0 = 2 / 3 / std_answer + 0.5 * 1 / 15 / std_format
    a1 = -1 / 3 / std_answer + 0.5 * 1 / 15 / std_format
    a2 = -1 / 3 / std_answer - 0.5 * 2 / 15 / std_format
    scale = math.sqrt((a0**2 + a1**2 + a2**2 + 2 * ZB**2) / 5) + EPSILON
    a0, a1, a2, b = a0 / scale, a1 / scale, a2 / scale, ZB / scale
    assert a0 > 0 > a1 > a2
    gradient = [0, -0.5 * a0, 0, -1.5 * a2, -6 * a2, -a2, 0.9 * b, 1.25 * b, -1.1 * b, 0, -0.7 * b]
    loss = [-1.2 * a0, *gradient[1:2], -0.8 * a1, *gradient[3:9], -1.2 * b, gradient[10]]
    stage = make_stage("gdpo", epochs_per_batch=2, reward={"part_weights": {"format": 0.5}})
    check(learn(stage, PARTS), loss, gradient, SEQUENCE_MEAN)


def test_dead_groups_stay_at_zero_under_gdpo() -> None:
    """Group b is equal in every part. The std is over all five completions, so a's advantages are those over √(3/5)."""
    scores = parted((1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (1.0, 0.1), (1.0, 0.1))
    a0, a1 = 2 / math.sqrt(2), -1 / math.sqrt(2)
    scale = math.sqrt(3 / 5)
    gradient = [-a0 / scale] * 2 + [-a1 / scale] * 4 + [0] * 5
    outcome = learn(make_stage("gdpo"), scores)
    check(outcome, gradient, gradient, SEQUENCE_MEAN)
    assert outcome[0].num_tokens == 6


def test_the_format_fades_where_parts_are_normalized() -> None:
    """Step 3 of 4: the format's advantage has a quarter of its weight, though its own spread cancels in the rule."""
    std_answer = math.sqrt(2) / 3 + EPSILON
    std_format = math.sqrt(2) / 15 + EPSILON
    stage = make_stage("gr_reinforce", reward={"normalize_parts": True, "format_anneal_steps": 4})
    a0 = 2 / 3 / std_answer + 0.25 / 15 / std_format
    a1 = -1 / 3 / std_answer + 0.25 / 15 / std_format
    a2 = -1 / 3 / std_answer - 0.25 * 2 / 15 / std_format
    gradient = [-a0, -a0, -a1, -a2, -a2, -a2, ZB, ZB, -ZB, -ZB, -ZB]
    loss = [g * now for g, now in zip(gradient, NOW, strict=True)]
    check(learn(stage, PARTS, stage_step=3), loss, gradient, SEQUENCE_MEAN)


def test_normalize_parts_with_kl_in_the_reward() -> None:
    """The penalty is one more part. Leave-one-out is linear, so parts or no parts must come to the same."""
    stages = [make_stage("rloo", reward={"normalize_parts": flag}) for flag in (False, True)]
    (plain_stats, plain_gradient), (parts_stats, parts_gradient) = (learn(stage, PARTS) for stage in stages)
    assert parts_gradient == pytest.approx(plain_gradient, rel=1e-5)
    assert parts_stats.loss == pytest.approx(plain_stats.loss, rel=1e-5)


def test_part_weights_and_format_anneal() -> None:
    """Step 3 of 4: the format bonus has 1 − 3/4 = 0.25 of its weight of 2; the answer weighs 3. From step 4 on it is 0.

    Rewards: a0 3 + 0.1, a1 0.1, a2 0; b0 0.05, b1 3.05.
    """
    stage = make_stage("dr_grpo", reward={"part_weights": {"answer": 3.0, "format": 2.0}, "format_anneal_steps": 4})
    mean = 3.2 / 3
    advantage = [*[3.1 - mean] * 2, 0.1 - mean, *[-mean] * 3, *[-1.5] * 2, *[1.5] * 3]
    surrogate = [-a for a in advantage]
    check(learn(stage, PARTS, stage_step=3), surrogate, surrogate, [1 / 50] * 11)
    advantage = [*[2.0] * 2, -1.0, *[-1.0] * 3, *[-1.5] * 2, *[1.5] * 3]
    surrogate = [-a for a in advantage]
    check(learn(stage, PARTS, stage_step=4), surrogate, surrogate, [1 / 50] * 11)


def test_group_mean_batch_std() -> None:
    """REINFORCE++ with baseline: r − group mean, over the std of those five numbers in the whole batch."""
    std = math.sqrt((0.36 + 0.16 + 0.04 + 0.25 + 0.25) / 5) + EPSILON
    advantage = [*[0.6] * 2, -0.4, *[-0.2] * 3, *[-0.5] * 2, *[0.5] * 3]
    gradient = [-a / std for a in advantage]
    loss = [g * now for g, now in zip(gradient, NOW, strict=True)]
    stage = make_stage("gr_reinforce", loss={"advantage": "group_mean_batch_std"})
    check(learn(stage), loss, gradient, SEQUENCE_MEAN)


def test_overlong_filter_with_kl_in_the_reward() -> None:
    """The case of test_rloo with a2 truncated: its reward, KL included, still counts in the baseline of a0 and a1."""
    r0, r1, r2, rb0, rb1 = 1 + 0.003, -0.009, 0.2 - 0.003, -0.003, 1 - 0.003
    a0, a1 = r0 - (r1 + r2) / 2, r1 - (r0 + r2) / 2
    advantage = [a0, a0, a1, 0, 0, 0, *[rb0 - rb1] * 2, *[rb1 - rb0] * 3]
    loss = [-a * now for a, now in zip(advantage, NOW, strict=True)]
    outcome = learn(make_stage("rloo", reward={"overlong_filter": True}), truncated=(2,))
    check(outcome, loss, [-a for a in advantage], [1 / 4] * 11)
