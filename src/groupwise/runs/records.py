"""Records ↔ JSON objects. The shape on disk mirrors the record, field by field.

Contract: `*_from_json(*_to_json(record)) == record`, floats bit for bit. In a scored group a float that JSON lacks is
written as its name ("NaN", "Infinity", "-Infinity"), because checkpoints need it back; in a line of metrics or of an
eval it is written as null, which every chart can skip, and read back as NaN. `Problem.meta` must hold JSON values, as
its contract says: a tuple in it comes back as a list. Keys that this version does not know are ignored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from groupwise.runs.files import finite_or_none
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
        "reward": _float_to_json(score.reward),
        "verdict": score.verdict.value,
        "parts": {name: _float_to_json(value) for name, value in score.parts.items()},
        "verifier": score.verifier,
        "detail": score.detail,
        "process": None if score.process is None else _float_to_json(score.process),
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
    kl = None if tokens.divergences is None else [finite_or_none(value) for value in tokens.divergences]
    return {
        "pieces": list(tokens.pieces),
        "logprob": [finite_or_none(value) for value in tokens.logprobs],
        "ratio": [finite_or_none(value) for value in tokens.ratios],
        "kl": kl,
        "entropy": [finite_or_none(value) for value in tokens.entropies],
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


def has_no_gradient(record: StepRecord) -> bool:
    """Return whether an RL step could not move the policy: no group had signal, and no update had a gradient."""
    metrics = record.metrics
    return metrics.get("groups/signal_share") == 0 and metrics.get("policy/grad_norm", 0.0) == 0


def eval_to_json(record: EvalRecord) -> dict[str, Any]:
    values = dataclasses.asdict(record)
    return {name: value if isinstance(value, (int, str)) else finite_or_none(value) for name, value in values.items()}


def eval_from_json(table: Mapping[str, Any]) -> EvalRecord:
    names = [field.name for field in dataclasses.fields(EvalRecord)]
    # A share that an older run did not record is unknown, not 0.
    values: dict[str, Any] = {name: math.nan if table.get(name) is None else table[name] for name in names}
    return EvalRecord(**values)


def eval_metrics(record: EvalRecord) -> dict[str, float]:
    """An eval under the names of the catalogue, for what plots evals beside metrics."""
    return {
        "eval/pass_at_1": record.pass_at_1,
        "eval/pass_at_1_low": record.low,
        "eval/pass_at_1_high": record.high,
        "eval/mean_reward": record.mean_reward,
        "eval/mean_tokens": record.mean_tokens,
        "eval/truncated_share": record.truncated_share,
        "eval/unparsed_share": record.unparsed_share,
        "eval/error_share": record.error_share,
        "eval/timed_out_share": record.timed_out_share,
    }


def _float_to_json(value: float) -> float | str:
    value = float(value)
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _floats_to_json(values: Iterable[float]) -> list[float] | list[float | str]:
    plain = list(map(float, values))
    # Of the logprobs of a step there are a hundred thousand, and hardly ever one that is not finite.
    return plain if all(map(math.isfinite, plain)) else [_float_to_json(value) for value in plain]
