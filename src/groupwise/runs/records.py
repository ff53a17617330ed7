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
from typing import Any

from groupwise.base.json_values import finite_or_name, finite_or_none, plain
from groupwise.types import (
    EvalRecord,
    Finish,
    Group,
    GroupTrace,
    Message,
    Problem,
    Prompt,
    Rollout,
    Score,
    ScoredGroup,
    StepRecord,
    TokenTrace,
    Verdict,
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


def group_from_json(table: Mapping[str, Any]) -> ScoredGroup:
    problem = Problem(
        id=table["problem"]["id"],
        messages=tuple(Message(entry["role"], entry["content"]) for entry in table["problem"]["messages"]),
        answer=table["problem"]["answer"],
        meta=table["problem"]["meta"],
    )
    rollouts = tuple(
        Rollout(
            token_ids=tuple(entry["token_ids"]),
            rollout_logprobs=tuple(map(float, entry["rollout_logprobs"])),
            text=entry["text"],
            finish=Finish(entry["finish"]),
            policy_version=entry["policy_version"],
        )
        for entry in table["rollouts"]
    )
    scores = tuple(score_from_json(entry) for entry in table["scores"])
    return ScoredGroup(
        group=Group(prompt=Prompt(problem=problem, token_ids=tuple(table["prompt_token_ids"])), rollouts=rollouts),
        scores=scores,
        rewards=tuple(map(float, table["rewards"])),
        advantages=tuple(map(float, table["advantages"])),
        has_signal=table["has_signal"],
    )


_VERDICTS = {verdict.value: verdict for verdict in Verdict}


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
    return Score(
        reward=float(entry["reward"]),
        verdict=_VERDICTS[entry["verdict"]],
        parts={name: float(value) for name, value in entry["parts"].items()},
        verifier=entry["verifier"],
        detail=entry["detail"],
        process=None if entry.get("process") is None else float(entry["process"]),
    )


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


def trace_from_json(table: Mapping[str, Any]) -> GroupTrace:
    rollouts = [None if entry is None else _tokens_from_json(entry) for entry in table["rollouts"]]
    return GroupTrace(problem_id=table["problem_id"], rollouts=tuple(rollouts))


def _tokens_from_json(entry: Mapping[str, Any]) -> TokenTrace:
    def numbers(name: str) -> tuple[float, ...]:
        return tuple(math.nan if value is None else float(value) for value in entry[name])

    divergences = None if entry["kl"] is None else numbers("kl")
    return TokenTrace(tuple(entry["pieces"]), numbers("logprob"), numbers("ratio"), divergences, numbers("entropy"))


def step_to_json(record: StepRecord) -> dict[str, Any]:
    metrics = {name: finite_or_none(value) for name, value in record.metrics.items()}
    return {"step": record.step, "stage": record.stage, "stage_step": record.stage_step, "metrics": metrics}


def step_from_json(table: Mapping[str, Any]) -> StepRecord:
    metrics = {name: math.nan if value is None else float(value) for name, value in table["metrics"].items()}
    return StepRecord(step=table["step"], stage=table["stage"], stage_step=table["stage_step"], metrics=metrics)


DEAD_STEPS = 3
"""A stage without a gradient in all of its first steps is reported after this many."""


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
    values: dict[str, Any] = {name: math.nan if table.get(name) is None else table[name] for name in names}
    return EvalRecord(**values)


OLD_SEVERITIES = {"sick": "problem", "watch": "warning"}
"""Severities of the doctor's findings in the events of older runs, and what they are called now."""


def event_from_json(table: Mapping[str, Any]) -> dict[str, Any]:
    if table.get("kind") != "finding":
        return dict(table)
    severity, check = table.get("severity"), table.get("check", table.get("disease"))
    return {**table, "check": check, "severity": OLD_SEVERITIES.get(str(severity), severity)}


def eval_metrics(record: EvalRecord) -> dict[str, float]:
    """Return an eval under the names of the catalogue, to plot it beside metrics."""
    names = ("pass_at_1", "mean_reward", "mean_tokens", "truncated_share", "unparsed_share")
    metrics = {f"eval/{name}": getattr(record, name) for name in (*names, "error_share", "timed_out_share")}
    return metrics | {"eval/pass_at_1_low": record.low, "eval/pass_at_1_high": record.high}


def _floats_to_json(values: Iterable[float]) -> list[float] | list[float | str]:
    floats = list(map(float, values))
    # A step has a hundred thousand logprobs, and hardly ever one that is not finite.
    return floats if all(map(math.isfinite, floats)) else list(map(finite_or_name, floats))
