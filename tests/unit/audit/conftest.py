"""Runs made by hand: each rollout is (text, verdict), so that what an audit must find is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
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

Texts = Sequence[tuple[str, Verdict]]
GroupOf = tuple[str, str, Texts]
"""Problem id, prompt, rollouts."""


def make_group(problem_id: str, prompt: str, texts: Texts) -> ScoredGroup:
    problem = Problem(problem_id, (Message("user", prompt),), "7", {})
    rewards = tuple(float(verdict is Verdict.CORRECT) for _, verdict in texts)
    return ScoredGroup(
        group=Group(Prompt(problem, (1,)), tuple(Rollout((2,), (-0.5,), text, Finish.STOP, 0) for text, _ in texts)),
        scores=tuple(
            Score(reward, verdict, {"correct": reward}, "test/1", "why")
            for reward, (_, verdict) in zip(rewards, texts, strict=True)
        ),
        rewards=rewards,
        advantages=(0.0,) * len(texts),
        has_signal=True,
    )


def make_eval(step: int, stage: str, pass_at_1: float, low: float, high: float) -> EvalRecord:
    values = {field.name: 0.0 for field in dataclasses.fields(EvalRecord)}
    known = {"step": step, "stage": stage, "pass_at_1": pass_at_1, "low": low, "high": high, "num_problems": 100}
    return EvalRecord(**{**values, **known, "rollouts_per_problem": 1})  # type: ignore[arg-type]


def make_step(step: int, stage: str, reward: float) -> StepRecord:
    return StepRecord(step=step, stage=stage, stage_step=step, metrics={"reward/mean": reward})


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run directory with these groups at each step."""

    def make(steps: dict[int, Sequence[GroupOf]], name: str = "run", folder: str = "rollouts") -> Path:
        run_dir = tmp_path / name
        log = RunLog(run_dir)
        for step, groups in steps.items():
            made = [make_group(*group) for group in groups]
            if folder == "rollouts":
                log.write_rollouts(step, "rl", made)
            else:
                log.write_eval(make_eval(step, "rl", 0.5, 0.4, 0.6), made)
        log.close()
        return run_dir

    return make


@pytest.fixture
def records() -> type:
    """The makers above, by name: importlib mode has no package to import them from."""

    class Records:
        group = staticmethod(make_group)
        eval = staticmethod(make_eval)
        step = staticmethod(make_step)

    return Records
