"""Sample records, with every kind of text and number that a run has to survive."""

from __future__ import annotations

import pytest

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

HOSTILE = '\x00\x1b[31m<script>\ud800 \u2028\r\n"quoted" 🎲 \udfff'


def make_group(problem_id: str = "countdown/7", text: str = HOSTILE) -> ScoredGroup:
    problem = Problem(
        id=problem_id,
        messages=(Message("system", "Think."), Message("user", text)),
        answer="24",
        meta={"level": 3, "numbers": [1, 2, 3], "ratio": 0.1, "nothing": None},
    )
    rollouts = (
        Rollout((5, 6, 2), (-0.1, -1e-300, -2.5000000000000004), text, Finish.STOP, 12),
        Rollout((), (), "", Finish.ABORTED, 12),
        Rollout((9,), (float("-inf"),), "x" * 1000, Finish.LENGTH, 13),
    )
    scores = (
        Score(1.1, Verdict.CORRECT, {"answer": 1.0, "format": 0.1}, "countdown/1", "1+2"),
        Score(0.0, Verdict.UNPARSED, {"answer": 0.0}, "countdown/1", ""),
        Score(float("nan"), Verdict.ERROR, {}, "countdown/1", text),
    )
    return ScoredGroup(
        group=Group(Prompt(problem, (1, 2, 3)), rollouts),
        scores=scores,
        rewards=(1.1, 0.0, 0.0),
        advantages=(1 / 3, -1 / 3, 0.0),
        has_signal=True,
    )


def make_step(step: int, **metrics: float) -> StepRecord:
    named = {"reward/mean": 0.1 * step} | {name.replace("__", "/"): value for name, value in metrics.items()}
    return StepRecord(step=step, stage="rl", stage_step=step, metrics=named)


def make_eval(step: int, **changes: float) -> EvalRecord:
    values: dict[str, float] = {
        "pass_at_1": 0.1 + 0.2,
        "low": 0.25,
        "high": 0.35,
        "mean_reward": 0.3,
        "mean_tokens": 100.5,
        "truncated_share": 0.0,
        "unparsed_share": 0.5,
        "error_share": 0.0,
        "timed_out_share": 0.0,
        "seconds": 1.5,
    }
    return EvalRecord(
        step=step, stage="rl", num_problems=100, rollouts_per_problem=4, temperature=1.0, **(values | changes)
    )


@pytest.fixture
def sample() -> type:
    """The makers above, by name: importlib mode has no package to import them from."""

    class Sample:
        hostile = HOSTILE
        group = staticmethod(make_group)
        step = staticmethod(make_step)
        eval = staticmethod(make_eval)

    return Sample
