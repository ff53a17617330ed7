"""The rollouts of one step and the updates done with them, and their form in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from groupwise.data.batch import Example
from groupwise.runs.records import group_from_json, group_to_json
from groupwise.types import ScoredGroup, UpdateStats


@dataclass(slots=True)
class StepBatch:
    groups: tuple[ScoredGroup, ...]
    examples: list[Example]
    metrics: dict[str, float]
    """Metrics of sampling and scoring."""
    num_tokens: int
    """Number of tokens that were sampled for it."""
    updates: list[UpdateStats] = field(default_factory=list)
    """Updates done so far."""


def batch_to_json(batch: StepBatch) -> dict[str, Any]:
    """Convert to JSON values. Floats survive: JSON writes a float32 as a double that reads back unchanged."""
    return {
        "groups": [group_to_json(scored) for scored in batch.groups],
        "examples": [_example_to_json(example) for example in batch.examples],
        "metrics": batch.metrics,
        "num_tokens": batch.num_tokens,
        "updates": [asdict(stats) for stats in batch.updates],
    }


def batch_from_json(table: Mapping[str, Any]) -> StepBatch:
    return StepBatch(
        groups=tuple(group_from_json(entry) for entry in table["groups"]),
        examples=[_example_from_json(entry) for entry in table["examples"]],
        metrics=dict(table["metrics"]),
        num_tokens=table["num_tokens"],
        updates=[UpdateStats(**entry) for entry in table["updates"]],
    )


def _example_to_json(example: Example) -> dict[str, Any]:
    values = {spec.name: getattr(example, spec.name) for spec in fields(example)}
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}


def _example_from_json(entry: Mapping[str, Any]) -> Example:
    values = dict(entry)
    for name in ("prompt_ids", "completion_ids"):
        values[name] = tuple(values[name])
    for name in ("advantages", "rollout_logprobs", "old_logprobs", "ref_logprobs"):
        if values[name] is not None:
            values[name] = torch.tensor(values[name], dtype=torch.float32)
    return Example(**values)
