"""The terms of a reward, rebuilt from a run's files: parts of the score × weights, bonus, length penalty, clipping.

Contract: pure functions of the score, the stage's tables in recipe.toml (always complete in a run directory) and the
scale of format parts in that step. The amounts of the terms add up to the recorded reward; the unexplained remainder is
the term "other terms". The arithmetic is that of `groupwise.scoring.credit`, and a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise.types import Score, Verdict

TOLERANCE = 1e-9
"""Differences below this come from rounding."""


@dataclass(frozen=True, slots=True)
class RewardTerm:
    name: str
    value: float | None
    """The part of the score before weighting; None if the amount is not a weighted part."""
    factor: float
    amount: float
    """What the term adds to the reward: value × factor."""


def reward_terms(
    reward: float, score: Score, num_tokens: int, stage: Mapping[str, Any], format_scale: float | None
) -> list[RewardTerm]:
    """Return the terms of a training reward; [] if the completion was not scored.

    `stage` is the stage's table in the recipe; `format_scale` is the step's `reward/format_bonus_scale`, if recorded.
    """
    if score.is_error or not math.isfinite(reward):
        return []
    config = stage.get("reward", {})
    blend = 0.0 if score.process is None else config.get("process_weight", 0.0)
    scale = 1.0 if format_scale is None else format_scale
    terms = []
    for name, value in (score.parts or {"score": score.reward}).items():
        part_scale = scale if name in config.get("format_parts", ()) else 1.0
        factor = config.get("part_weights", {}).get(name, 1.0) * part_scale * (1 - blend)
        terms.append(RewardTerm(name, value, factor, value * factor))
    if score.process is not None and blend:
        terms.append(RewardTerm("reasoning", score.process, blend, blend * score.process))
    limit = stage.get("sampling", {}).get("max_new_tokens", 0)
    if length := _length_penalty(num_tokens, limit, score.verdict is Verdict.CORRECT, config):
        terms.append(RewardTerm("length", None, 1.0, length))
    return terms + _rest(reward, math.fsum(term.amount for term in terms), config, scale)


def _length_penalty(num_tokens: int, limit: int, is_correct: bool, config: Mapping[str, Any]) -> float:
    """Return the soft length penalty (DAPO eq. 13) plus the length cost of a correct completion; 0 or below."""
    penalty = 0.0
    if buffer := round(config.get("overlong_buffer_share", 0.0) * limit):
        over = (num_tokens - limit + buffer) / buffer
        penalty -= config.get("overlong_penalty", 1.0) * min(max(over, 0.0), 1.0)
    if is_correct and limit:
        penalty -= config.get("length_cost", 0.0) * num_tokens / limit
    return penalty


def _rest(reward: float, known: float, config: Mapping[str, Any], scale: float) -> list[RewardTerm]:
    """Return the terms that need the text (format bonus) or the sum (clipping), or else one unexplained term."""
    terms = []
    if config.get("format_tags"):
        bonus = config.get("format_bonus", 0.0)
        # Whether the bonus was given depends on the text; the reward tells.
        if abs(_clipped(known + bonus * scale, config) - reward) < abs(_clipped(known, config) - reward):
            terms.append(RewardTerm("format bonus", bonus, scale, bonus * scale))
            known += bonus * scale
    rest = reward - known
    if abs(rest) > TOLERANCE:
        is_clipped = abs(_clipped(known, config) - reward) <= TOLERANCE
        terms.append(RewardTerm("clipping" if is_clipped else "other terms", None, 1.0, rest))
    return terms


def _clipped(value: float, config: Mapping[str, Any]) -> float:
    return min(max(value, config.get("min_reward", -math.inf)), config.get("max_reward", math.inf))
