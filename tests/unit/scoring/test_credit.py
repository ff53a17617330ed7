from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.algo.advantages import GROUP_RULES
from groupwise.config import RlStage, make_recipe
from groupwise.scoring.credit import Member, assign_advantages, shape_group
from groupwise.types import Finish, Group, Problem, Prompt, Rollout, Score, ScoredGroup, Verdict


def make_stage(advantage: str, **keys: Any) -> RlStage:
    table = {
        "algorithm": "grpo",
        "steps": 1,
        "problems_per_step": 1,
        "rollouts_per_problem": 2,
        "loss": {"advantage": advantage},
        **keys,
    }
    recipe = {"name": "x", "model": {"path": "tiny-qwen3"}, "task": {"name": "countdown"}, "stages": [table]}
    stage = make_recipe(recipe).stages[0]
    assert isinstance(stage, RlStage)
    return stage


def scored(stage: RlStage, *rows: tuple[float | None, int]) -> ScoredGroup:
    """Rows: reward (None is an error), number of tokens."""
    rollouts = tuple(Rollout((1,) * n, (-1.0,) * n, "", Finish.STOP, 0) for _, n in rows)
    scores = [Score(0.0, Verdict.ERROR) if r is None else Score(r, Verdict.WRONG) for r, _ in rows]
    return shape_group(Group(Prompt(Problem("p", (), ""), (1,)), rollouts), scores, stage.reward, 0, 100)


def assign(stage: RlStage, *groups: ScoredGroup, penalties: dict[Member, Tensor] | None = None) -> dict[Member, Tensor]:
    return assign_advantages(stage, groups, penalties or {}, 0)


RULES = [*GROUP_RULES, "batch_mean_std"]


@pytest.mark.parametrize("rule", RULES)
def test_every_valid_rollout_gets_a_float64_per_token_and_errors_none(rule: str) -> None:
    stage = make_stage(rule)
    advantages = assign(stage, scored(stage, (1.0, 3), (None, 2), (0.0, 1)), scored(stage, (None, 4), (None, 1)))
    assert {member: tuple(row.shape) for member, row in advantages.items()} == {(0, 0): (3,), (0, 2): (1,)}
    assert all(row.dtype == torch.float64 for row in advantages.values())


@pytest.mark.parametrize("rule", RULES)
def test_an_error_is_as_if_it_had_not_been_sampled(rule: str) -> None:
    stage = make_stage(rule)
    with_error = assign(stage, scored(stage, (1.0, 2), (None, 5), (0.0, 3)), scored(stage, (0.5, 1), (0.25, 2)))
    without = assign(stage, scored(stage, (1.0, 2), (0.0, 3)), scored(stage, (0.5, 1), (0.25, 2)))
    assert torch.equal(with_error[0, 0], without[0, 0])
    assert torch.equal(with_error[0, 2], without[0, 1])
    assert torch.equal(with_error[1, 1], without[1, 1])


@pytest.mark.parametrize("rule", RULES[:-1])
def test_equal_rewards_give_exact_zeros(rule: str) -> None:
    """The mean of three times 0.1 is not 0.1."""
    stage = make_stage(rule)
    advantages = assign(stage, scored(stage, (0.1, 2), (0.1, 3), (0.1, 1)), scored(stage, (0.0, 1), (1.0, 1)))
    assert not any(advantages[0, number].any() for number in range(3))
    assert advantages[1, 1].all()


def test_a_group_with_a_single_valid_score_teaches_nothing() -> None:
    stage = make_stage("leave_one_out")
    assert assign(stage, scored(stage, (1.0, 2), (None, 2)))[0, 0].tolist() == [0.0, 0.0]


def test_no_group_at_all() -> None:
    for rule in RULES:
        assert assign(make_stage(rule)) == {}


def test_reward_to_go_credits_a_penalty_to_the_tokens_before_it() -> None:
    """Penalties 0 0 1 in one completion: its first three returns are −1, and the last one's too; the other's are 0."""
    stage = make_stage("batch_mean_std")
    groups = scored(stage, (0.0, 3), (0.0, 2))
    advantages = assign(stage, groups, penalties={(0, 0): torch.tensor([0.0, 1.0, 0.0])})
    first, second = advantages[0, 0].tolist(), advantages[0, 1].tolist()
    assert first[0] == first[1] < first[2] == second[0] == second[1]
    # Returns −1 −1 0 0 0: mean −0.4, std √0.24.
    assert first[0] == pytest.approx(-0.6 / 0.24**0.5, rel=1e-5)
    assert first[2] == pytest.approx(0.4 / 0.24**0.5, rel=1e-5)


def test_a_penalty_moves_its_own_group_alone() -> None:
    stage = make_stage("group_mean")
    groups = (scored(stage, (1.0, 2), (0.0, 2)), scored(stage, (1.0, 2), (0.0, 2)))
    advantages = assign(stage, *groups, penalties={(0, 0): torch.tensor([0.25, 0.25])})
    assert advantages[0, 0].tolist() == [0.25, 0.25]
    assert advantages[1, 0].tolist() == [0.5, 0.5]


def test_a_penalty_brings_a_dead_group_to_life() -> None:
    stage = make_stage("group_mean")
    advantages = assign(stage, scored(stage, (1.0, 1), (1.0, 1)), penalties={(0, 0): torch.tensor([0.5])})
    assert (advantages[0, 0].item(), advantages[0, 1].item()) == (-0.25, 0.25)


def test_a_task_may_call_a_part_as_we_call_ours() -> None:
    stage = make_stage("group_mean", reward={"normalize_parts": True, "overlong_buffer_share": 0.5})
    for name in ("kl_penalty", "length_penalty"):
        scores = [Score(value, Verdict.WRONG, {name: value}) for value in (1.0, 0.0)]
        rollouts = tuple(Rollout((1,), (-1.0,), "", Finish.STOP, 0) for _ in scores)
        group = shape_group(Group(Prompt(Problem("p", (), ""), (1,)), rollouts), scores, stage.reward, 0, 100)
        advantages = assign(stage, group)
        assert (advantages[0, 0].item(), advantages[0, 1].item()) == (0.5, -0.5)


def test_a_group_with_advantages_has_signal() -> None:
    """Parts a, b, c = 1 0 0, 0 1 0, 0 0 1, 1 0 0: each sum is 1, but b and c are rarer than a and weigh more."""
    stage = make_stage("group_mean_std", reward={"normalize_parts": True})
    rows = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)]
    scores = [Score(1.0, Verdict.WRONG, dict(zip("abc", row, strict=True))) for row in rows]
    rollouts = tuple(Rollout((1,), (-1.0,), "", Finish.STOP, 0) for _ in rows)
    group = shape_group(Group(Prompt(Problem("p", (), ""), (1,)), rollouts), scores, stage.reward, 0, 100)
    assert max(row.item() for row in assign(stage, group).values()) > 0.1
    assert group.has_signal
