"""Records to JSON objects and back. The shape on disk mirrors the record, field by field.

Contract: `*_from_json(*_to_json(record)) == record`, floats bit for bit. A float that JSON lacks is written by its name
("NaN", "Infinity", "-Infinity") in a scored group, because checkpoints need it back. In a line of metrics or of an eval
it is written as null, which charts skip, and read back as NaN. `Problem.meta` must hold JSON values, as its contract
says: a tuple in it comes back as a list. Unknown keys are ignored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from groupwise.base.json_values import finite_or_name, finite_or_none, plain
from groupwise.runs.tables import EVENT_KEYS
from groupwise.runs.typed import typed
from groupwise.types import (
    EvalRecord,
    Group,
    GroupTrace,
    Problem,
    Prompt,
    Rollout,
    Score,
    ScoredGroup,
    StepRecord,
    TokenTrace,
)


def group_to_json(scored: ScoredGroup) -> dict[str, Any]:
    prompt = scored.group.prompt
    problem = prompt.problem
    return {
        "problem": {
            "id": problem.id,
            "messages": [{"role": message.role, "content": message.content} for message in problem.messages],
            "answer": problem.answer,
            "meta": dict(problem.meta),
        },
        "prompt_token_ids": list(map(int, prompt.token_ids)),
        "rollouts": [
            {
                "text": rollout.text,
                "finish": rollout.finish.value,
                "policy_version": rollout.policy_version,
                "token_ids": list(map(int, rollout.token_ids)),
                "rollout_logprobs": _floats_to_json(rollout.rollout_logprobs),
            }
            for rollout in scored.group.rollouts
        ],
        "scores": [score_to_json(score) for score in scored.scores],
        "rewards": _floats_to_json(scored.rewards),
        "advantages": _floats_to_json(scored.advantages),
        "has_signal": bool(scored.has_signal),
    }


@dataclass(frozen=True, slots=True)
class _GroupLine:
    problem: Problem
    prompt_token_ids: tuple[int, ...]
    rollouts: tuple[Rollout, ...]
    scores: tuple[Score, ...]
    rewards: tuple[float, ...]
    advantages: tuple[float, ...]
    has_signal: bool


def group_from_json(table: Mapping[str, Any]) -> ScoredGroup:
    line: _GroupLine = typed(_GroupLine, table)
    counts = {len(each) for each in (line.rollouts, line.scores, line.rewards, line.advantages)}
    if len(counts) > 1:
        raise ValueError("it has not as many scores, rewards and advantages as rollouts")
    group = Group(Prompt(line.problem, line.prompt_token_ids), line.rollouts)
    return ScoredGroup(group, line.scores, line.rewards, line.advantages, line.has_signal)


def score_to_json(score: Score) -> dict[str, Any]:
    return {
        "reward": finite_or_name(score.reward),
        "verdict": score.verdict.value,
        "parts": {name: finite_or_name(value) for name, value in score.parts.items()},
        "verifier": score.verifier,
        "detail": score.detail,
        "process": None if score.process is None else finite_or_name(score.process),
    }


def score_from_json(entry: Mapping[str, Any]) -> Score:
    return cast(Score, typed(Score, entry))


def trace_to_json(trace: GroupTrace) -> dict[str, Any]:
    return {
        "problem_id": trace.problem_id,
        "rollouts": [None if tokens is None else _tokens_to_json(tokens) for tokens in trace.rollouts],
    }


def _tokens_to_json(tokens: TokenTrace) -> dict[str, Any]:
    return {
        "pieces": list(tokens.pieces),
        "logprob": list(map(finite_or_none, tokens.logprobs)),
        "ratio": list(map(finite_or_none, tokens.ratios)),
        "kl": None if tokens.divergences is None else list(map(finite_or_none, tokens.divergences)),
        "entropy": list(map(finite_or_none, tokens.entropies)),
    }


@dataclass(frozen=True, slots=True)
class _TokensLine:
    pieces: tuple[str, ...]
    logprob: tuple[float, ...]
    ratio: tuple[float, ...]
    kl: tuple[float, ...] | None
    entropy: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _TraceLine:
    problem_id: str
    rollouts: tuple[_TokensLine | None, ...]


def trace_from_json(table: Mapping[str, Any]) -> GroupTrace:
    line: _TraceLine = typed(_TraceLine, table)
    rollouts = [None if tokens is None else TokenTrace(*dataclasses.astuple(tokens)) for tokens in line.rollouts]
    if any(len(set(map(len, filter(None, dataclasses.astuple(tokens))))) > 1 for tokens in rollouts if tokens):
        raise ValueError("a rollout has not as many values as tokens")
    return GroupTrace(line.problem_id, tuple(rollouts))


def step_to_json(record: StepRecord) -> dict[str, Any]:
    metrics = {name: finite_or_none(value) for name, value in record.metrics.items()}
    return {"step": record.step, "stage": record.stage, "stage_step": record.stage_step, "metrics": metrics}


def step_from_json(table: Mapping[str, Any]) -> StepRecord:
    record: StepRecord = typed(StepRecord, table)
    return dataclasses.replace(record, metrics={name: _measured(value) for name, value in record.metrics.items()})


DEAD_STEPS = 3
"""A stage without a gradient in all of its first steps is reported after this many."""
MAX_MEASURED = 1e100
"""Float32, in which models compute, ends at 3.4e38."""


def by_stage(steps: Iterable[StepRecord]) -> dict[str, list[StepRecord]]:
    """Return the steps of each stage, the stages in training order."""
    stages: dict[str, list[StepRecord]] = {}
    for record in steps:
        stages.setdefault(record.stage, []).append(record)
    return stages


def has_no_gradient(record: StepRecord) -> bool:
    """Return whether an RL step could not move the policy: no group had signal, and no update had a gradient."""
    metrics = record.metrics
    return metrics.get("groups/signal_share") == 0 and metrics.get("policy/grad_norm", 0.0) == 0


def eval_to_json(record: EvalRecord) -> dict[str, Any]:
    return dict(plain(record))


def eval_from_json(table: Mapping[str, Any]) -> EvalRecord:
    names = [field.name for field in dataclasses.fields(EvalRecord)]
    # A share that an older run did not record is unknown and not 0.
    record: Any = typed(EvalRecord, {**dict.fromkeys(names), **table})
    numbers = {name: value for name in names if isinstance(value := getattr(record, name), float)}
    return cast(EvalRecord, dataclasses.replace(record, **{name: _measured(value) for name, value in numbers.items()}))


OLD_SEVERITIES = {"sick": "problem", "watch": "warning"}
"""Severities of the doctor's findings in the events of older runs, and what they are called now."""


def event_from_json(table: Mapping[str, Any]) -> dict[str, Any]:
    typed(EVENT_KEYS, table)
    event = {
        key: None if type(value) is float and math.isnan(_measured(value)) else value for key, value in table.items()
    }
    if event.get("kind") != "finding":
        return event
    severity, check = event.get("severity"), event.get("check", event.get("disease"))
    return {**event, "check": check, "severity": OLD_SEVERITIES.get(str(severity), severity)}


def eval_metrics(record: EvalRecord) -> dict[str, float]:
    """Return an eval under the names of the catalogue, to plot it beside metrics."""
    names = ("pass_at_1", "mean_reward", "mean_tokens", "truncated_share", "unparsed_share")
    metrics = {f"eval/{name}": getattr(record, name) for name in (*names, "error_share", "timed_out_share")}
    return metrics | {"eval/pass_at_1_low": record.low, "eval/pass_at_1_high": record.high}


def _measured(value: float) -> float:
    """A number beyond all that can be measured is NaN, like infinity: its square or the sum of two would overflow."""
    return value if abs(value) <= MAX_MEASURED else math.nan


def _floats_to_json(values: Iterable[float]) -> list[float] | list[float | str]:
    floats = list(map(float, values))
    # A step has a hundred thousand logprobs, and hardly ever one that is not finite.
    return floats if all(map(math.isfinite, floats)) else list(map(finite_or_name, floats))
