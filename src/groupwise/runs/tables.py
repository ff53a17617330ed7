"""What readers use of tables that have more keys: a run's recipe, its run.json and its events.

`typed` checks the types of these keys where they are set. A reader that uses another key adds it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required, TypedDict


class _Named(TypedDict, total=False):
    name: str
    path: str
    dtype: str
    options: Mapping[str, Any]


class _Sampling(TypedDict, total=False):
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    stop_strings: tuple[str, ...]


class _Optimizer(TypedDict, total=False):
    learning_rate: float
    max_grad_norm: float


class _Loss(TypedDict, total=False):
    advantage: str
    surrogate: str
    weights: str
    importance: str
    clip_high: float


class _Kl(TypedDict, total=False):
    coefficient: float


class _Reward(TypedDict, total=False):
    part_weights: Mapping[str, float]
    format_parts: tuple[str, ...]
    overlong_buffer_share: float
    overlong_penalty: float
    length_cost: float
    process_weight: float
    min_reward: float
    max_reward: float


class _Curriculum(TypedDict, total=False):
    kind: str


class _Stage(TypedDict, total=False):
    name: str
    algorithm: str
    steps: int
    problems_per_step: int
    problems_per_update: int
    rollouts_per_problem: int
    epochs_per_batch: int
    sampling: _Sampling
    optimizer: _Optimizer
    loss: _Loss
    kl: _Kl
    reward: _Reward
    curriculum: _Curriculum


class _Evaluation(TypedDict, total=False):
    every_steps: int
    num_problems: int
    rollouts_per_problem: int
    max_new_tokens: int
    temperature: float


class _Verifier(TypedDict, total=False):
    seconds: float
    wall_seconds: float
    memory_mb: float


class RecipeTable(TypedDict, total=False):
    name: str
    model: _Named
    task: _Named
    stages: tuple[_Stage, ...]
    evaluation: _Evaluation
    verifier: _Verifier


class _Machine(TypedDict, total=False):
    device: str
    device_name: str
    num_cores: int
    num_parameters: float


class InfoTable(TypedDict, total=False):
    fingerprint: str
    verifier: str
    machine: _Machine
    versions: Mapping[str, Any]


class EventTable(TypedDict, total=False):
    kind: Required[str]
    step: int
    seconds: float
    reason: str
    action: str
    broken: tuple[str, ...]
    perplexity: float
    format_share: float
