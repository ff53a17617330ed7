"""Runs made by hand, so that what a report must say of them is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from groupwise.runs import RunLog
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

Answers = Sequence[tuple[str, Verdict]]


class Make:
    """The makers by name: importlib mode has no package to import them from."""

    @staticmethod
    def group(problem_id: str, answers: Answers, num_tokens: int = 3) -> ScoredGroup:
        problem = Problem(problem_id, (Message("user", f"question {problem_id}"),), "7")
        rewards = tuple(float(verdict is Verdict.CORRECT) for _, verdict in answers)
        rollouts = tuple(
            Rollout((1,) * (num_tokens + number), (-0.5,) * (num_tokens + number), text, Finish.STOP, 0)
            for number, (text, _) in enumerate(answers)
        )
        scores = tuple(
            Score(reward, verdict, {}, "test/1", "seven") for reward, (_, verdict) in zip(rewards, answers, strict=True)
        )
        return ScoredGroup(Group(Prompt(problem, (1,)), rollouts), scores, rewards, (0.0,) * len(answers), True)

    @staticmethod
    def evaluation(step: int, pass_at_1: float, low: float, high: float, stage: str = "grpo") -> EvalRecord:
        values = {field.name: 0.0 for field in dataclasses.fields(EvalRecord)}
        known = {"step": step, "stage": stage, "pass_at_1": pass_at_1, "low": low, "high": high, "num_problems": 4}
        return EvalRecord(**{**values, **known, "rollouts_per_problem": 1})  # type: ignore[arg-type]

    @staticmethod
    def run(
        path: Path,
        steps: Sequence[StepRecord] = (),
        evals: Sequence[tuple[EvalRecord, Sequence[ScoredGroup]]] = (),
        rollouts: dict[int, Sequence[ScoredGroup]] | None = None,
        recipe: str = 'name = "x"\n[[stages]]\nname = "grpo"\nsteps = 2\n',
        is_finished: bool = True,
    ) -> Path:
        log = RunLog(path)
        log.write_recipe(recipe)
        log.write_info({"fingerprint": "ab", "machine": {"device": "cpu"}})
        for record in steps:
            log.write_step(record)
        for evaluation, groups in evals:
            log.write_eval(evaluation, groups)
        for step, groups in (rollouts or {}).items():
            log.write_rollouts(step, "grpo", groups)
        log.write_event("finished" if is_finished else "stopped", step=2)
        log.close()
        return path


@pytest.fixture
def make() -> type[Make]:
    return Make
