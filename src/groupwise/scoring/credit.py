"""From scores to rewards, and from rewards to advantages per token.

A reward is a sum of named terms, so the terms always add up to it:

    (1 - w) × (weighted parts, format parts annealed) + w × process + format bonus - length costs, then clipped

Advantages apply the rules of `algo/advantages` to groups with errors, rewards in several parts and a KL penalty in the
reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from groupwise.algo.advantages import (
    GROUP_RULES,
    batch_mean_std,
    optimal_token,
    over_batch_std,
    returns_to_go,
    soft_length_penalty,
)
from groupwise.config import RewardConfig, RlStage
from groupwise.config.stages import TOKEN_RULES
from groupwise.rewards.format import has_elements
from groupwise.types import Finish, Group, Rollout, Score, ScoredGroup, Verdict

Member = tuple[int, int]
"""(index of the group in the step, index of the rollout in the group)."""


def shape_group(
    group: Group, scores: Sequence[Score], config: RewardConfig, stage_step: int, limit: int
) -> ScoredGroup:
    """Combine the parts of each score into a reward. Advantages follow when all groups of the step are complete."""
    parts = [
        shape_parts(rollout, score, config, stage_step, limit)
        for rollout, score in zip(group.rollouts, scores, strict=True)
    ]
    rewards = tuple(sum(terms.values()) for terms in parts)
    # Groups compare their rewards or, where parts are normalized separately, the parts.
    compared: list[object] = list(parts) if config.normalize_parts else list(rewards)
    valid = [value for value, score in zip(compared, scores, strict=True) if not score.is_error]
    has_signal = any(value != valid[0] for value in valid)
    return ScoredGroup(group, tuple(scores), rewards, (0.0,) * len(rewards), has_signal)


def shape_parts(rollout: Rollout, score: Score, config: RewardConfig, stage_step: int, limit: int) -> dict[str, float]:
    """Return the named terms whose sum is the reward."""
    format_scale = falling(stage_step, config.format_anneal_steps)
    process_weight = 0.0 if score.process is None else config.process_weight
    terms = {}
    for name, value in (score.parts or {"reward": score.reward}).items():
        scale = format_scale if name in config.format_parts else 1.0
        terms[name] = value * config.part_weights.get(name, 1.0) * scale * (1 - process_weight)
    # Add instead of set: a task may have a part of any of these names.
    for name, value in _extra_terms(rollout, score, config, format_scale, process_weight, limit).items():
        terms[name] = terms.get(name, 0.0) + value
    total = sum(terms.values())
    clipped = min(max(total, config.min_reward), config.max_reward)
    if clipped != total:
        terms["clip"] = terms.get("clip", 0.0) + clipped - total
    return terms


def part_weight(name: str, config: RewardConfig, stage_step: int) -> float:
    """Return the weight of a part in this step, with the annealing of format parts."""
    is_format = name in config.format_parts or name == "format_bonus"
    return config.part_weights.get(name, 1.0) * (falling(stage_step, config.format_anneal_steps) if is_format else 1.0)


def _extra_terms(
    rollout: Rollout, score: Score, config: RewardConfig, format_scale: float, process_weight: float, limit: int
) -> dict[str, float]:
    extra = {}
    if process_weight and score.process is not None:
        extra["process"] = process_weight * score.process
    if config.format_tags:
        extra["format_bonus"] = config.format_bonus * format_scale * has_elements(rollout.text, config.format_tags)
    num_tokens, penalty = len(rollout.token_ids), 0.0
    buffer = round(config.overlong_buffer_share * limit)
    if buffer:
        penalty += soft_length_penalty(num_tokens, limit, buffer, config.overlong_penalty)
    if config.length_cost and score.verdict is Verdict.CORRECT:
        penalty -= config.length_cost * num_tokens / limit
    if buffer or config.length_cost:
        extra["length_penalty"] = penalty
    return extra


def falling(step: int, over_steps: int) -> float:
    """Return 1 at step 0, falling linearly to 0 at over_steps; always 1 if over_steps is 0."""
    return 1.0 if over_steps == 0 else max(1 - step / over_steps, 0.0)


def is_truncated(rollout: Rollout) -> bool:
    return rollout.finish is Finish.LENGTH


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
    if stage.loss.advantage in TOKEN_RULES:
        returns = {member: returns_to_go(_reward(groups, member), penalty) for member, penalty in penalties.items()}
        if stage.loss.advantage == "batch_mean_std":
            return dict(zip(returns, batch_mean_std(list(returns.values())), strict=True))
        return _against_optimal_tokens(groups, returns)
    total = dict.fromkeys(lengths, 0.0)
    for weight, rewards in _reward_terms(stage, groups, penalties, stage_step):
        for member, advantage in _compare(stage.loss.advantage, rewards).items():
            total[member] += weight * advantage
    if stage.loss.normalize_batch:
        (values,) = over_batch_std([torch.tensor(list(total.values()), dtype=torch.float64)])
        total = dict(zip(total, values.tolist(), strict=True))
    return {member: torch.full((length,), total[member], dtype=torch.float64) for member, length in lengths.items()}


def _against_optimal_tokens(groups: Sequence[ScoredGroup], returns: Mapping[Member, Tensor]) -> dict[Member, Tensor]:
    result: dict[Member, Tensor] = {}
    for members in _by_group(returns):
        logprobs = [torch.tensor(groups[group].group.rollouts[number].rollout_logprobs) for group, number in members]
        result.update(zip(members, optimal_token([returns[member] for member in members], logprobs), strict=True))
    return result


def _reward(groups: Sequence[ScoredGroup], member: Member) -> float:
    return groups[member[0]].rewards[member[1]]


def _by_group(members: Iterable[Member]) -> list[list[Member]]:
    rows: dict[int, list[Member]] = {}
    for member in members:
        rows.setdefault(member[0], []).append(member)
    return list(rows.values())


def _compare(rule: str, rewards: Mapping[Member, float]) -> dict[Member, float]:
    """Apply a rule within each group; a zero-variance group gets exact zeros."""
    rows = _by_group(rewards)
    tensors = [torch.tensor([rewards[member] for member in row], dtype=torch.float64) for row in rows]
    result: dict[Member, float] = {}
    for row, values, advantages in zip(rows, tensors, GROUP_RULES[rule](tensors), strict=True):
        # The mean of equal numbers may differ from them in the last bit, so compare the rewards themselves.
        is_equal = bool((values == values[0]).all())
        result.update(zip(row, [0.0] * len(row) if is_equal else advantages.tolist(), strict=True))
    return result


def _reward_terms(
    stage: RlStage, groups: Sequence[ScoredGroup], penalties: Mapping[Member, Tensor], stage_step: int
) -> list[tuple[float, dict[Member, float]]]:
    """Return (weight of the advantage, values to compare): the whole reward, or each of its parts (normalize_parts)."""
    off = {member: float(penalty.double().sum()) for member, penalty in penalties.items()}
    if not stage.reward.normalize_parts:
        return [(1.0, {member: _reward(groups, member) - off[member] for member in off})]
    # Rules that divide by a spread would cancel the weights of parts, so these weigh the advantages instead.
    config = replace(stage.reward, part_weights={}, format_anneal_steps=0)
    parts = {}
    for group, number in off:
        rollout, score = groups[group].group.rollouts[number], groups[group].scores[number]
        terms = shape_parts(rollout, score, config, stage_step, stage.sampling.max_new_tokens)
        # Add instead of set: a task may have a part of that name.
        parts[group, number] = terms | {"kl_penalty": terms.get("kl_penalty", 0.0) - off[group, number]}
    names = sorted({name for terms in parts.values() for name in terms})
    return [
        (part_weight(name, stage.reward, stage_step), {member: terms.get(name, 0.0) for member, terms in parts.items()})
        for name in names
    ]
