"""The position of a run, as plain JSON values that a checkpoint stores with the policy's tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Position:
    """The counters and decisions of a run that a resumed run must continue from."""

    stage_index: int = 0
    stage_step: int = 0
    """Steps of the stage that are complete."""
    step: int = 0
    """Steps of the run that are complete."""
    policy_version: int = 0
    num_tokens: int = 0
    """Tokens sampled so far."""
    nonfinite_in_a_row: int = 0
    kl_coefficient: float | None = None
    """Coefficient of the target-seeking controller."""
    sampler: dict[str, Any] | None = None
    """State of the sampler after the newest batch was sampled."""
    last_eval_step: int = -1
    best_pass_at_1: float = -1.0
    best_checkpoint: str = ""
    evals_without_best: int = 0
    """Evaluations in this stage since the best one."""
    guards_at_start: dict[str, float] = field(default_factory=dict)
    """Readings of the guards before the first step."""
    is_guard_broken: bool = False
    """A guard that ends the stage was broken in this stage."""
