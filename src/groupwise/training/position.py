"""Where a run stands, as plain JSON values: what a checkpoint holds beside the policy's tensors."""

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
    """Where the target-seeking controller stands."""
    sampler: dict[str, Any] | None = None
    """The sampler's state after the newest batch was drawn."""
    last_eval_step: int = -1
    best_pass_at_1: float = -1.0
    best_checkpoint: str = ""
    evals_without_best: int = 0
    """In this stage."""
    guards_at_start: dict[str, float] = field(default_factory=dict)
    """What the guards read before the first step."""
    is_guard_broken: bool = False
    """In this stage, by a guard that ends it."""
