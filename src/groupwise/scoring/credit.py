"""Advantages per token from the rewards of a step.

Applies the rules of `algo/advantages` to groups with errors, rewards in several parts and a KL penalty in the reward.
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
"""(index of the group in the step, index of the rollout in the group)."""


def assign_advantages(
    stage: RlStage, groups: Sequence[ScoredGroup], penalties: Mapping[Member, Tensor], stage_step: int
) -> dict[Member, Tensor]:
    """Return advantages ([T] float64) of each rollout with a valid score.

    `penalties` holds β·KL per token where the penalty is part of the reward.
    """
    lengths = {
        (group, number): len(scored.group.rollouts[number].token_ids)
        for group, scored in enumerate(groups)
        for number, score in enumerate(scored.scores)
        if not score.is_error
    }
    penalties = {member: penalties.get(member, torch.zeros(length)) for member, length in lengths.items()}
    if stage.loss.advantage == "batch_mean_std":
        returns = [returns_to_go(groups[group].rewards[number], penalties[group, number]) for group, number in lengths]
        return dict(zip(lengths, batch_mean_std(returns), strict=True))
    total = dict.fromkeys(lengths, 0.0)
    for rewards in _reward_terms(stage, groups, penalties, stage_step):
        for member, advantage in _compare(stage.loss.advantage, rewards).items():
            total[member] += advantage
    return {member: torch.full((length,), total[member], dtype=torch.float64) for member, length in lengths.items()}


def _compare(rule: str, rewards: Mapping[Member, float]) -> dict[Member, float]:
    """Apply a rule within each group; a zero-variance group gets exact zeros."""
    rows: dict[int, list[Member]] = {}
    for member in rewards:
        rows.setdefault(member[0], []).append(member)
    tensors = [torch.tensor([rewards[member] for member in row], dtype=torch.float64) for row in rows.values()]
    result: dict[Member, float] = {}
    for row, values, advantages in zip(rows.values(), tensors, GROUP_RULES[rule](tensors), strict=True):
        # The mean of equal numbers may differ from them in the last bit, so compare the rewards themselves.
        is_equal = bool((values == values[0]).all())
        result.update(zip(row, [0.0] * len(row) if is_equal else advantages.tolist(), strict=True))
    return result


def _reward_terms(
    stage: RlStage, groups: Sequence[ScoredGroup], penalties: Mapping[Member, Tensor], stage_step: int
) -> list[dict[Member, float]]:
    """Return the values to compare: the whole reward, or each of its parts separately (normalize_parts)."""
    off = {member: float(penalty.double().sum()) for member, penalty in penalties.items()}
    if not stage.reward.normalize_parts:
        return [{(group, number): groups[group].rewards[number] - off[group, number] for group, number in off}]
    parts = {}
    for group, number in off:
        rollout, score = groups[group].group.rollouts[number], groups[group].scores[number]
        terms = shape_parts(rollout, score, stage.reward, stage_step, stage.sampling.max_new_tokens)
        # Add instead of set: a task may have a part of that name.
        parts[group, number] = terms | {"kl_penalty": terms.get("kl_penalty", 0.0) - off[group, number]}
    names = sorted({name for terms in parts.values() for name in terms})
    return [{member: terms.get(name, 0.0) for member, terms in parts.items()} for name in names]
