from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from groupwise.algo.advantages import (
    GROUP_RULES,
    batch_mean_std,
    group_mean,
    group_mean_batch_std,
    group_mean_relative,
    group_mean_std,
    leave_one_out,
    optimal_token,
    returns_to_go,
    soft_length_penalty,
)

reward_groups = st.lists(
    st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=6).map(lambda row: torch.tensor(row).double()),
    min_size=1,
    max_size=4,
)


@given(groups=reward_groups, rule=st.sampled_from(sorted(GROUP_RULES)))
def test_group_rules_center_each_group_and_keep_the_order(groups: list[Tensor], rule: str) -> None:
    for rewards, advantages in zip(groups, GROUP_RULES[rule](groups), strict=True):
        assert advantages.shape == rewards.shape
        assert advantages.isfinite().all()
        assert abs(advantages.sum().item()) < 1e-6 * (1 + len(rewards) * advantages.abs().max().item())
        order = rewards.argsort()
        assert (advantages[order].diff() >= 0).all()


@given(
    groups=reward_groups, rule=st.sampled_from(["group_mean_std", "group_mean", "group_mean_relative", "leave_one_out"])
)
def test_a_group_does_not_feel_its_neighbours(groups: list[Tensor], rule: str) -> None:
    together = GROUP_RULES[rule](groups)
    for index, rewards in enumerate(groups):
        assert torch.equal(GROUP_RULES[rule]([rewards])[0], together[index])


def test_by_hand() -> None:
    """Rewards 1 2 6: mean 3, deviations −2 −1 3, std √(14 / 3) of the set itself (not of a sample)."""
    rewards = [torch.tensor([1.0, 2.0, 6.0]).double()]
    std = (14 / 3) ** 0.5
    assert group_mean(rewards)[0].tolist() == [-2.0, -1.0, 3.0]
    assert group_mean_std(rewards)[0].tolist() == pytest.approx([-2 / std, -1 / std, 3 / std], rel=1e-6)
    assert leave_one_out(rewards)[0].tolist() == pytest.approx([1 - 4, 2 - 3.5, 6 - 1.5])


def test_group_mean_relative_by_hand() -> None:
    """1 of 4 solved: the solution weighs (1 − 1/4) / (1/4) = 3, a failure −1. None solved: exact zeros."""
    one, none = group_mean_relative([torch.tensor([0.0, 1.0, 0.0, 0.0]).double(), torch.zeros(4).double()])
    assert one.tolist() == pytest.approx([-1, 3, -1, -1], rel=1e-5)
    assert none.tolist() == [0.0] * 4


def test_group_mean_relative_stays_bounded_where_negative_rewards_cancel() -> None:
    (advantages,) = group_mean_relative([torch.tensor([-1.0, 1.0 + 1e-7, 0.0]).double()])
    assert advantages.tolist() == pytest.approx([-1.5, 1.5, 0.0], abs=1e-5)


def test_group_mean_batch_std_divides_all_groups_by_one_number() -> None:
    """Deviations ±1 and ±3: std √((1 + 1 + 9 + 9) / 4)."""
    first, second = group_mean_batch_std([torch.tensor([0.0, 2.0]).double(), torch.tensor([0.0, 6.0]).double()])
    assert first.tolist() == pytest.approx([-1 / 5**0.5, 1 / 5**0.5], rel=1e-6)
    assert second.tolist() == pytest.approx([-3 / 5**0.5, 3 / 5**0.5], rel=1e-6)


@pytest.mark.parametrize("rule", sorted(GROUP_RULES))
def test_equal_rewards_and_groups_of_one_are_finite(rule: str) -> None:
    same, alone = GROUP_RULES[rule]([torch.full((4,), 0.5).double(), torch.tensor([3.0]).double()])
    assert same.tolist() == [0.0] * 4
    assert alone.tolist() == [0.0]
    assert GROUP_RULES[rule]([]) == []


@given(groups=reward_groups)
def test_batch_mean_std_normalizes_over_tokens(groups: list[Tensor]) -> None:
    tokens = torch.cat(batch_mean_std(groups))
    assert abs(tokens.mean().item()) < 1e-6
    if torch.cat(groups).std(correction=0) > 1e-2:
        assert tokens.std(correction=0).item() == pytest.approx(1.0, abs=1e-3)
    assert [len(row) for row in batch_mean_std(groups)] == [len(row) for row in groups]


def test_batch_mean_std_of_nothing() -> None:
    assert batch_mean_std([]) == []


def test_returns_to_go_by_hand() -> None:
    """Reward 2 at the end, penalties 1, 10 and 100: what follows from each token on."""
    returns = returns_to_go(2.0, torch.tensor([1.0, 10.0, 100.0]))
    assert returns.tolist() == [2.0 - 111, 2.0 - 110, 2.0 - 100]
    assert returns.dtype == torch.float64
    assert returns_to_go(1.0, torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0.0), (80, 0.0), (81, -0.1), (90, -1.0), (99, -1.9), (100, -2.0), (150, -2.0)]
)
def test_soft_length_penalty(length: int, expected: float) -> None:
    """DAPO eq. 13 with a limit of 100, a buffer of 20 and a penalty of 2."""
    assert soft_length_penalty(length, 100, 20, 2.0) == pytest.approx(expected)


def test_soft_length_penalty_without_a_buffer_is_off() -> None:
    assert soft_length_penalty(100, 100, 0, 2.0) == 0.0


token_rows = st.lists(
    st.tuples(st.floats(-3, 3, width=32), st.lists(st.floats(-6, 0, width=32), max_size=5)), min_size=1, max_size=5
)


@given(rows=token_rows)
def test_the_optimal_baseline_is_the_weighted_mean_of_the_rewards_at_each_position(
    rows: list[tuple[float, list[float]]],
) -> None:
    returns = [torch.full((len(logprobs),), reward, dtype=torch.float64) for reward, logprobs in rows]
    found = optimal_token(returns, [torch.tensor(logprobs) for _, logprobs in rows])
    for place in range(max(len(logprobs) for _, logprobs in rows)):
        there = [(index, reward, logprobs) for index, (reward, logprobs) in enumerate(rows) if place < len(logprobs)]
        weights = [sum(1 - math.exp(value) for value in logprobs[: place + 1]) + 1e-6 for _, _, logprobs in there]
        total = sum(weight * reward for weight, (_, reward, _) in zip(weights, there, strict=True))
        baseline = total / sum(weights)
        for index, reward, _ in there:
            assert found[index][place].item() == pytest.approx(reward - baseline, rel=1e-4, abs=1e-5)
        if len({reward for _, reward, _ in there}) == 1:
            assert all(found[index][place] == 0 for index, _, _ in there)


def test_the_weights_are_the_squared_gradient_of_the_logits_in_the_mean() -> None:
    """The gradient of log π(a) by the logits is e_a − π. The mean of its squared length is that of 1 − π(a)."""
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    squares = [(torch.eye(3, dtype=torch.float64)[a] - p).square().sum() for a in range(3)]
    mean = sum(p[a] * squares[a] for a in range(3))
    assert float(mean) == pytest.approx(float((p * (1 - p)).sum()))
