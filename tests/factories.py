"""Records, recipes and tiny models for tests. Arguments have defaults, so a test states only what matters to it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest

from groupwise.config import ModelConfig, Recipe, RlStage, make_recipe
from groupwise.types import (
    EvalRecord,
    Finish,
    Group,
    Message,
    Problem,
    Prompt,
    Rollout,
    Score,
    ScoredGroup,
    StepRecord,
    Verdict,
)

RIGHT, WRONG, UNPARSED = Verdict.CORRECT, Verdict.WRONG, Verdict.UNPARSED
ERROR, LATE = Verdict.ERROR, Verdict.TIMED_OUT

TINY_SIZES: Mapping[str, int] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
}
TINY_MODEL: dict[str, Any] = {"path": "tiny-qwen3", "device": "cpu", "tiny": {**TINY_SIZES, "context_tokens": 128}}
SFT = {"algorithm": "sft", "steps": 3, "demonstrations_per_step": 4, "optimizer": {"learning_rate": 1e-3}}
GRPO = {
    "algorithm": "grpo",
    "steps": 3,
    "problems_per_step": 4,
    "problems_per_update": 2,
    "epochs_per_batch": 2,
    "rollouts_per_problem": 3,
    "sampling": {"max_new_tokens": 6},
    "optimizer": {"learning_rate": 1e-3},
}
TOY_TASK = {"name": "tests.integration.toy_task:EvenLetters"}


def make_problem(key: str = "p", question: str = "", answer: str = "1", **meta: Any) -> Problem:
    return Problem(key, (Message("user", question or f"What is {key}?"),), answer, meta)


def make_rollout(
    text: str = "",
    *,
    token_ids: Sequence[int] | None = None,
    logprob: float = -1.0,
    finish: Finish = Finish.STOP,
    policy_version: int = 0,
) -> Rollout:
    """Make a rollout with one token per character, unless `token_ids` are given."""
    ids = tuple(range(len(text)) if token_ids is None else token_ids)
    return Rollout(ids, (logprob,) * len(ids), text, finish, policy_version)


def make_group(*rollouts: Rollout | str, problem: Problem | None = None, prompt_ids: Sequence[int] = (1, 2)) -> Group:
    made = tuple(make_rollout(each) if isinstance(each, str) else each for each in rollouts)
    return Group(Prompt(problem or make_problem(), tuple(prompt_ids)), made)


def make_score(verdict: Verdict = RIGHT, reward: float | None = None, **keys: Any) -> Score:
    """Make a score whose reward is 1 for a correct completion and else 0, unless given."""
    return Score(float(verdict is RIGHT) if reward is None else reward, verdict, **{"verifier": "by-hand/1", **keys})


def make_scored(
    key: str,
    completions: Sequence[tuple[str | Rollout, Verdict | Score]],
    *,
    question: str = "",
    meta: Mapping[str, Any] | None = None,
    finish: Finish = Finish.STOP,
) -> ScoredGroup:
    """Make the scored group of problem `key` from pairs of completion and verdict."""
    rollouts = [make_rollout(each, finish=finish) if isinstance(each, str) else each for each, _ in completions]
    scores = tuple(make_score(each) if isinstance(each, Verdict) else each for _, each in completions)
    rewards = tuple(score.reward for score in scores)
    group = make_group(*rollouts, problem=make_problem(key, question, **(meta or {})))
    return ScoredGroup(group, scores, rewards, (0.0,) * len(scores), len(set(rewards)) > 1)


def make_step(step: int = 1, metrics: Mapping[str, float] | None = None, *, stage: str = "rl") -> StepRecord:
    return StepRecord(step, stage, step, dict(metrics or {}))


def make_eval(step: int = 0, pass_at_1: float = 0.0, **changes: Any) -> EvalRecord:
    zeros: dict[str, Any] = {field.name: 0.0 for field in fields(EvalRecord)}
    known = {"step": step, "stage": "rl", "pass_at_1": pass_at_1, "num_problems": 50, "rollouts_per_problem": 1}
    return EvalRecord(**{**zeros, **known, **changes})


def tiny_model(path: str = "tiny-qwen3", **sizes: int) -> ModelConfig:
    return ModelConfig(path=path, device="cpu", dtype="float32", tiny={**TINY_SIZES, **sizes})


def tiny_recipe(**changes: Any) -> Recipe:
    """Make a recipe of seconds: SFT, then GRPO with four updates a step, with rewards that differ from the start."""
    table: dict[str, Any] = {
        "name": "test",
        "model": TINY_MODEL,
        "task": TOY_TASK,
        "stages": [SFT, GRPO],
        "evaluation": {"every_steps": 2, "num_problems": 6},
        "checkpoints": {"every_steps": 2},
        "logging": {"tokens_every_steps": 1},
    }
    return make_recipe(table | changes)


def tiny_stage(algorithm: str = "grpo", **keys: Any) -> RlStage:
    """Make the only stage of a recipe, with its defaults resolved."""
    table = {"algorithm": algorithm, "steps": 1, "problems_per_step": 4, "rollouts_per_problem": 4} | keys
    recipe = {"name": "x", "model": {"path": "tiny-qwen3"}, "task": {"name": "countdown"}, "stages": [table]}
    stage = make_recipe(recipe).stages[0]
    assert isinstance(stage, RlStage)
    return stage


def needs_bitsandbytes(test: Any) -> Any:
    """Mark a test that runs where bitsandbytes is installed, as `make test-extras` does."""
    for mark in _NEEDS_BITSANDBYTES:
        test = mark(test)
    return test


_NEEDS_BITSANDBYTES = (
    pytest.mark.extras,
    pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"),
)
each_quantization = pytest.mark.parametrize("kind", [pytest.param("4bit", marks=_NEEDS_BITSANDBYTES), "8bit"])
