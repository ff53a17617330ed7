"""From the rewards of a step to an advantage per token: which rollouts are compared, and with what.

The rules themselves are in `algo/advantages`; here they meet groups with errors in them, rewards in several parts and
a KL penalty that is taken off the reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from groupwise.algo.advantages import GROUP_RULES, batch_mean_std, returns_to_go
from groupwise.config import RlStage
from groupwise.scoring.shaping import shape_parts
from groupwise.types import ScoredGroup

Member = tuple[int, int]
"""(index of the group in the step, number of the rollout in the group)."""


def assign_advantages(
    stage: RlStage, groups: Sequence[ScoredGroup], penalties: Mapping[Member, Tensor], stage_step: int
) -> dict[Member, Tensor]:
    """[T] float64 for each rollout with a valid score. `penalties` holds β·KL per token, where it is in the reward."""
    members = [
        (group, number)
        for group, scored in enumerate(groups)
        for number, score in enumerate(scored.scores)
        if not score.is_error
    ]
    lengths = {(group, number): len(groups[group].group.rollouts[number].token_ids) for group, number in members}
    if stage.loss.advantage == "batch_mean_std":
        returns = [
            returns_to_go(groups[group].rewards[number], _penalty(penalties, (group, number), lengths))
            for group, number in members
        ]
        return dict(zip(members, batch_mean_std(returns), strict=True))
    total = dict.fromkeys(members, 0.0)
    for rewards in _reward_terms(stage, groups, members, penalties, stage_step):
        for member, advantage in _compare(stage.loss.advantage, rewards).items():
            total[member] += advantage
    return {member: torch.full((lengths[member],), total[member], dtype=torch.float64) for member in members}


def _compare(rule: str, rewards: Mapping[Member, float]) -> dict[Member, float]:
    """Apply a rule within each group; a group whose rewards are all equal gets exact zeros."""
    rows: dict[int, list[Member]] = {}
    for member in rewards:
        rows.setdefault(member[0], []).append(member)
    tensors = [torch.tensor([rewards[member] for member in row], dtype=torch.float64) for row in rows.values()]
    result: dict[Member, float] = {}
    for row, values, advantages in zip(rows.values(), tensors, GROUP_RULES[rule](tensors), strict=True):
        # The mean of equal numbers may differ from them in the last bit, so deadness is asked of the rewards.
        is_dead = bool((values == values[0]).all())
        result.update(
            (member, 0.0 if is_dead else value) for member, value in zip(row, advantages.tolist(), strict=True)
        )
    return result


def _reward_terms(
    stage: RlStage,
    groups: Sequence[ScoredGroup],
    members: Sequence[Member],
    penalties: Mapping[Member, Tensor],
    stage_step: int,
) -> list[dict[Member, float]]:
    """What is compared: the whole reward, or each of its parts by itself (normalize_parts)."""
    off = {member: float(penalties[member].double().sum()) if member in penalties else 0.0 for member in members}
    if not stage.reward.normalize_parts:
        return [{(group, number): groups[group].rewards[number] - off[group, number] for group, number in members}]
    parts = {}
    for group, number in members:
        rollout, score = groups[group].group.rollouts[number], groups[group].scores[number]
        terms = shape_parts(rollout, score, stage.reward, stage_step, stage.sampling.max_new_tokens)
        # Added, not set: a task may have a part of that name.
        parts[group, number] = terms | {"kl_penalty": terms.get("kl_penalty", 0.0) - off[group, number]}
    names = sorted({name for terms in parts.values() for name in terms})
    return [{member: terms.get(name, 0.0) for member, terms in parts.items()} for name in names]


def _penalty(penalties: Mapping[Member, Tensor], member: Member, lengths: Mapping[Member, int]) -> Tensor:
    return penalties[member] if member in penalties else torch.zeros(lengths[member])
