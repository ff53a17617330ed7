"""Sweeps made up from a seed, whose truth is known: as `Sweep` objects for many, as folders on disk for few.

And a slow Student's p, which shares nothing with the one that it is held against.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy

from groupwise.base.stats import wilson_interval
from groupwise.runs import RunLog
from groupwise.sweeps.sweep_records import Arm, Knob, RunStatus, SeedRun, Value
from groupwise.types import EvalRecord, StepRecord

NUM_STEPS = 40
EVERY_STEPS = 5
NUM_PROBLEMS = 200
RECIPE = """name = "made-up"
[[stages]]
algorithm = "grpo"
name = "grpo"
steps = 40
[stages.kl]
coefficient = 0.02
"""


@dataclass(frozen=True, slots=True)
class Truth:
    """One arm: what its runs are drawn from."""

    label: str
    value: float | str
    final: float = 0.96
    before: float = 0.1
    time_constant: float = 6.0
    """Steps in which two thirds of the way are gone."""
    seed_spread: float = 0.01
    """Standard deviation of the final score over seeds, besides the problems' noise."""
    kl: float = 0.05
    clip: float = 0.01
    grad_norm: float = 0.3
    reward_share: float = 1.0
    """What rollouts earn, of what the score would have them earn."""
    is_base: bool = False
    collapses_to: float | None = None
    """Score to which the last evaluation of the last seed drops."""
    has_reference: bool = True
    """Whether the KL from the reference is recorded."""
    stops_after: Mapping[int, int] = field(default_factory=dict)
    """Step after which the run is cut off, by seed; 0 leaves it without a folder."""
    failure: Mapping[int, str] = field(default_factory=dict)
    """What is written into failures.jsonl, by seed."""


def name_of(number: int) -> str:
    return f"arm-{number}"


def make_arm(number: int, label: str, value: Value, is_base: bool, runs: tuple[SeedRun, ...]) -> Arm:
    return Arm(name_of(number), label, value=value, is_base=is_base, runs=runs)


def make_run(truth: Truth, seed: int, draws: random.Random, is_last_seed: bool = False) -> SeedRun:
    """The records of one run, cut off where the truth says so."""
    final = min(1.0, max(0.0, truth.final + draws.gauss(0, truth.seed_spread)))
    steps, evals = [], []
    for step in range(NUM_STEPS + 1):
        way = 1 - math.exp(-step / truth.time_constant)
        skill = truth.before + (final - truth.before) * way
        if truth.collapses_to is not None and is_last_seed and step == NUM_STEPS:
            skill = truth.collapses_to
        if step:
            steps.append(StepRecord(step, "grpo", step, _metrics(truth, draws, skill, step)))
        if step % EVERY_STEPS == 0:
            correct = sum(draws.random() < skill for _ in range(NUM_PROBLEMS))
            evals.append(evaluation(step, correct, NUM_PROBLEMS))
    last = truth.stops_after.get(seed, NUM_STEPS)
    status = RunStatus.FINISHED if last >= NUM_STEPS and seed not in truth.failure else RunStatus.UNFINISHED
    kept = tuple(record for record in steps if record.step <= last)
    evaluated = tuple(record for record in evals if record.step <= last)
    return SeedRun(seed, Path(f"seed-{seed}"), status, "", NUM_STEPS, kept, evaluated)


def _metrics(truth: Truth, draws: random.Random, skill: float, step: int) -> dict[str, float]:
    metrics = {
        "reward/mean": truth.reward_share * skill + draws.gauss(0, 0.02),
        "policy/approx_kl": truth.kl / 10 * draws.uniform(0.9, 1.1),
        "policy/clip_share": truth.clip * draws.uniform(0.8, 1.2),
        "policy/grad_norm": truth.grad_norm * math.exp(draws.gauss(0, 0.2)),
        "tokens/total": 1000.0 * step,
        "time/step_s": 0.5,
    }
    if truth.has_reference:
        metrics["kl/ref_k3"] = truth.kl * step / NUM_STEPS * draws.uniform(0.9, 1.1)
    return metrics


def evaluation(step: int, correct: int, num_problems: int) -> EvalRecord:
    low, high = wilson_interval(correct, num_problems)
    return EvalRecord(
        step=step, stage="grpo", pass_at_1=correct / num_problems, low=low, high=high, num_problems=num_problems,
        rollouts_per_problem=1, temperature=0.0, mean_reward=correct / num_problems, mean_tokens=20.0,
        truncated_share=0.0, unparsed_share=0.0, error_share=0.0, timed_out_share=0.0, seconds=1.0,
    )  # fmt: skip


def make_knob(truths: Sequence[Truth], seeds: Sequence[int] = (0, 1, 2), draw: int = 0, name: str = "knob") -> Knob:
    """Make a knob in memory, for simulations."""
    arms = []
    for number, truth in enumerate(truths):
        runs = tuple(
            make_run(truth, seed, random.Random(f"{draw} {number} {seed}"), seed == seeds[-1]) for seed in seeds
        )
        value: Value = float(truth.value) if isinstance(truth.value, (int, float)) else truth.value
        arms.append(make_arm(number, truth.label, value, truth.is_base, runs))
    return Knob(name, ("key",), tuple(arms))


def knob_of_finals(finals: Sequence[Sequence[float]], before: float = 0.1, num_problems: int = NUM_PROBLEMS) -> Knob:
    """Arms by the final scores of their seeds, which are rounded to whole problems: for thousands of simulations."""
    arms = []
    for number, values in enumerate(finals):
        runs = []
        for seed, value in enumerate(values):
            correct = round(min(1.0, max(0.0, value)) * num_problems)
            evals = (
                evaluation(0, round(before * num_problems), num_problems),
                evaluation(NUM_STEPS, correct, num_problems),
            )
            runs.append(SeedRun(seed, Path(f"seed-{seed}"), RunStatus.FINISHED, "", NUM_STEPS, (), evals))
        arms.append(make_arm(number, str(number), float(number), number == 0, tuple(runs)))
    return Knob("knob", ("key",), tuple(arms))


def knob_of_answers(answers: Sequence[Sequence[Sequence[bool]]]) -> Knob:
    """Arms by the answers of their seeds to the same problems, right or wrong, which were kept."""
    finals = [[sum(rights) / len(rights) for rights in arm] for arm in answers]
    knob = knob_of_finals(finals, num_problems=len(answers[0][0]))
    arms = []
    for arm, seeds in zip(knob.arms, answers, strict=True):
        tables = [{f"p{place}": float(right) for place, right in enumerate(rights)} for rights in seeds]
        runs = tuple(replace(run, pass_rates=table) for run, table in zip(arm.runs, tables, strict=True))
        arms.append(replace(arm, runs=runs))
    return replace(knob, arms=tuple(arms))


def write_sweep(
    folder: Path,
    knobs: Mapping[str, Sequence[Truth]],
    seeds: Sequence[int] = (0, 1, 2),
    draw: int = 0,
    name: str = "made-up",
) -> Path:
    """A sweep's folder as the runner leaves it. A truth that is the base of several knobs is run once."""
    arms: dict[str, dict[str, Any]] = {}
    tables = []
    failures = []
    for knob, truths in knobs.items():
        members = []
        for number, truth in enumerate(truths):
            arm = "base" if truth.is_base else f"{_slug(knob)}-{number}"
            members.append(arm)
            if arm in arms:
                continue
            value: Any = "inf" if truth.value == math.inf else truth.value
            arms[arm] = {"name": arm, "label": truth.label, "knob": knob, "value": value, "is_base": truth.is_base}
            arms[arm]["set"] = {} if truth.is_base else {f"{_slug(knob)}.key": value}
            for seed in seeds:
                run = make_run(truth, seed, random.Random(f"{draw} {arm} {seed}"), seed == seeds[-1])
                if truth.stops_after.get(seed) != 0:
                    _write_run(folder / "runs" / arm / f"seed-{seed}", run)
                if seed in truth.failure:
                    failures.append({"arm": arm, "seed": seed, "exit_code": 1, "last_lines": truth.failure[seed]})
        values = ["inf" if truth.value == math.inf else truth.value for truth in truths]
        labels = [truth.label for truth in truths]
        keys = [f"{_slug(knob)}.key"]
        tables.append({"name": knob, "keys": keys, "arms": members, "values": values, "labels": labels})
    table = {"format": 1, "name": name, "recipe": {"path": "made-up.toml", "text": RECIPE}, "seeds": list(seeds)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(table | {"knobs": tables, "arms": list(arms.values())}))
    if failures:
        (folder / "failures.jsonl").write_text("".join(json.dumps(failure) + "\n" for failure in failures))
    return folder


def _slug(text: str) -> str:
    return "".join(character if character.isascii() and character.isalnum() else "-" for character in text)[:30]


def _write_run(path: Path, run: SeedRun) -> None:
    log = RunLog(path)
    log.write_recipe(RECIPE)
    log.write_info({"fingerprint": "0123456789abcdef", "machine": {"device": "cpu"}})
    log.write_event("started", step=0)
    for evaluated in run.evals:
        log.write_eval(evaluated, [])
    for step in run.steps:
        log.write_step(step)
    if run.is_finished:
        log.write_event("finished", step=NUM_STEPS)
    log.close()


def slow_student_p(t: float, degrees: float) -> float:
    """The density of Student's distribution, added up."""
    x = numpy.linspace(0, abs(t), 200_001)
    density = (1 + x * x / degrees) ** (-(degrees + 1) / 2)
    density *= math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    return float(1 - 2 * numpy.trapezoid(density, x))
