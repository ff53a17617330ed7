"""Runs made by hand with the real writer: healthy but for what a test breaks in them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import dump_toml, make_recipe, to_table
from groupwise.runs import RunLog
from groupwise.runs.sinks import Sink
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

NUM_STEPS = 80
KEPT_EVERY = 5
PROMPT = "A train has 12 cars with 34 seats each. How many seats are there in all?"
COMPLETION = "Each car has 34 seats, and there are 12 cars, so 12 times 34 is 408. <answer>408</answer>"


def recipe_table(**changes: Any) -> dict[str, Any]:
    """A recipe with every key, as a run keeps it; `stage__sampling={...}` and the like change a table."""
    stage: dict[str, Any] = {
        "algorithm": "grpo",
        "steps": NUM_STEPS,
        "problems_per_step": 32,
        "rollouts_per_problem": 8,
    }
    table: dict[str, Any] = {"name": "run", "model": {"path": "tiny-qwen3"}, "task": {"name": "countdown"}}
    for key, value in changes.items():
        place, _, name = key.rpartition("__")
        (stage if place == "stage" else table)[name] = value
    return to_table(make_recipe(table | {"stages": [stage]}))


def healthy_metrics(number: int, noise: random.Random) -> dict[str, float]:
    """Metrics of step `number` of a run that gets neither better nor worse."""
    return {
        "reward/mean": noise.gauss(0.5, 0.03),
        "score/pass_at_1": noise.gauss(0.5, 0.03),
        "score/error_share": 0.0,
        "score/timed_out_share": 0.0,
        "groups/count": 32.0,
        "groups/signal_share": noise.gauss(0.7, 0.05),
        "groups/dead_all_correct": 5.0,
        "groups/dead_all_wrong": 5.0,
        "rollouts/count": 256.0,
        "rollouts/truncated_share": 0.05,
        "rollouts/length_mean_tokens": noise.gauss(200, 10),
        "rollouts/identical_share": 0.02,
        "policy/loss": 0.0,
        "policy/grad_norm": noise.lognormvariate(-1, 0.4),
        "policy/learning_rate": 1e-6,
        "policy/entropy_nats": noise.gauss(0.8, 0.05),
        "policy/ratio_max": 1.5,
        "policy/clip_share": 0.01,
        "kl/ref_k3": 1e-3 * number * noise.lognormvariate(0, 0.2),
        "engine/logprob_gap_mean": 1e-3,
        "update/count": 1.0,
        "update/skipped": 0.0,
        "time/step_s": 10.0,
        "time/score_s": 0.1,
        "time/eval_s": 0.5,
        "time/checkpoint_s": 0.2,
    }


def make_group(number: int, completion: str, prompt: str, verdict: Verdict, detail: str) -> ScoredGroup:
    problem = Problem(f"problem-{number}", (Message("user", prompt),), "408")
    rollouts = tuple(Rollout((1, 2), (-0.5, -0.5), completion, Finish.STOP, 0) for _ in range(4))
    scores = (Score(1.0, verdict, {}, "test/1", detail),) * 4
    return ScoredGroup(Group(Prompt(problem, (1,)), rollouts), scores, (1.0,) * 4, (0.0,) * 4, True)


def make_eval(step: int, pass_at_1: float) -> EvalRecord:
    known = {"step": step, "stage": "grpo", "pass_at_1": pass_at_1, "low": pass_at_1 - 0.05, "high": pass_at_1 + 0.05}
    values = {field.name: 0.0 for field in dataclasses.fields(EvalRecord)}
    return EvalRecord(**{**values, **known, "num_problems": 400, "rollouts_per_problem": 1})  # type: ignore[arg-type]


class Make:
    """The makers by name: importlib mode has no package to import them from."""

    num_steps = NUM_STEPS
    prompt = PROMPT
    completion = COMPLETION
    recipe = staticmethod(recipe_table)
    metrics = staticmethod(healthy_metrics)

    @staticmethod
    def run(
        run_dir: Path,
        change: Callable[[int], Mapping[str, float]] = lambda number: {},
        *,
        recipe: Mapping[str, Any] | None = None,
        evals: Callable[[int], float] = lambda number: 0.5,
        completion: str = COMPLETION,
        prompt: str = PROMPT,
        verdict: Verdict = Verdict.CORRECT,
        detail: str = "",
        device: str = "cpu",
        num_steps: int = NUM_STEPS,
        missing: Sequence[str] = (),
        sinks: Sequence[Sink] = (),
    ) -> Path:
        noise = random.Random(0)
        log = RunLog(run_dir, sinks)
        log.write_recipe(dump_toml(recipe_table() if recipe is None else recipe))
        log.write_info({"machine": {"device": device}})
        log.write_eval(make_eval(0, evals(0)), [])
        for number in range(1, num_steps + 1):
            if number % KEPT_EVERY == 0:
                groups = [make_group(index, completion, prompt, verdict, detail) for index in range(4)]
                log.write_rollouts(number, "grpo", groups)
            metrics = {**healthy_metrics(number, noise), **change(number)}
            metrics = {name: value for name, value in metrics.items() if name not in missing}
            log.write_step(StepRecord(number, "grpo", number, metrics))
            if number % 20 == 0:
                log.write_eval(make_eval(number, evals(number)), [])
        log.close()
        return run_dir


@pytest.fixture
def make() -> type[Make]:
    return Make
