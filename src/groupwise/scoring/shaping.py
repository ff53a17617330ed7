"""Rewards for the learner from scores: weights, format bonus, process score, length costs, clipping.

Each step is a named term, and the terms always add up to the reward:

    (1 - w) × (weighted parts, format parts annealed) + w × process + format bonus - length costs, then clipped
"""

from __future__ import annotations

from collections.abc import Sequence

from groupwise.algo.advantages import soft_length_penalty
from groupwise.algo.schedules import falling
from groupwise.config import RewardConfig
from groupwise.rewards.format import has_elements
from groupwise.types import Finish, Group, Rollout, Score, ScoredGroup, Verdict


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


def is_truncated(rollout: Rollout) -> bool:
    return rollout.finish is Finish.LENGTH
