"""The coefficients of a step: of the KL and of the entropy bonus, by schedule or steered to a target."""

from __future__ import annotations

import math

from groupwise.config import RlStage
from groupwise.scoring.credit import falling
from groupwise.training.training import Position


def current_beta(stage: RlStage, position: Position) -> float:
    """Return the KL coefficient of this step, from the schedule or the target-seeking controller."""
    if position.kl_coefficient is not None:
        return position.kl_coefficient
    kl, step = stage.kl, position.stage_step
    if kl.schedule == "warmup":
        return kl.coefficient * min((step + 1) / kl.schedule_steps, 1.0)
    if kl.schedule == "anneal":
        return kl.coefficient * falling(step, kl.schedule_steps)
    return kl.coefficient


def next_beta(stage: RlStage, beta: float, kl: float | None) -> float | None:
    """Return the target-seeking controller's next coefficient; None for schedules that depend on the step alone.

    This is the proportional controller of Ziegler et al. (2019), with its relative error clipped to ±0.2. The gain
    makes a KL far above the target multiply the coefficient by about e in schedule_steps.
    """
    if stage.kl.schedule != "target":
        return None
    if kl is None:  # no update in this step, so there is no KL
        return beta
    return beta * _growth(kl / stage.kl.target - 1, stage.kl.schedule_steps)


def current_bonus(stage: RlStage, position: Position) -> float:
    """Return the entropy bonus of this step: fixed, or where steering has brought it."""
    return stage.entropy.bonus if position.entropy_bonus is None else position.entropy_bonus


def next_bonus(stage: RlStage, bonus: float, entropy: float | None) -> float | None:
    """Return the next bonus of one that is steered, else None: it grows while the entropy is below the target."""
    if stage.entropy.target == 0:
        return None
    if entropy is None:  # no update in this step
        return bonus
    return bonus * _growth(1 - entropy / stage.entropy.target, stage.entropy.target_steps)


def _growth(error: float, steps: int) -> float:
    return math.exp(min(max(error, -0.2), 0.2) / 0.2 / steps)
