"""The plan against what was measured: memory within 10 %, time within 25 %.

The constants of plan/memory.py and plan/timing.py were found with these very figures, but for ALONE and COUNTDOWN, so
this holds them in place and is no proof for other models or GPUs. Left out of benchmarks/results: the first time of
24gib-full, whose two steps differ by a factor of two for reasons not known; steps of small models while passes were
being recorded; adapters at 256 sequences, measured before a change; peaks of small models from the time when a
recording was counted twice; the first two of Countdown, before growing packs gave back what smaller ones had recorded.

Prompts of 250 tokens: Countdown's through the byte tokenizer of make_shape.py; 130 through SmolLM2's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from groupwise.planner.make_plan import most_memory
from groupwise.planner.measure import MEMORY_TOLERANCE, TIME_TOLERANCE
from groupwise.planner.shapes import ModelShape
from groupwise.planner.stage_memory import GIB, plan_memory, usual_pack
from groupwise.planner.timing import Speed, sample_s, step_s, update_s
from groupwise.planner.work import Work
from tests.unit.planner.works import (
    H200,
    H200_WITH_24_GIB,
    H200_WITH_25_GIB,
    H200_WITH_50_GIB,
    QWEN,
    QWEN_SMALL,
    SMOLLM,
    benchmark,
    shipped,
    work,
)

STEP = benchmark(
    "step", SMOLLM, H200, prompt_tokens=130, mean_tokens=174.1, overrides=["stages.0.microbatch_tokens=16384"]
)
ADAPTERS = benchmark("24gib-lora", QWEN, H200_WITH_24_GIB, prompt_tokens=250, mean_tokens=1024)
FULL = benchmark("24gib-full", QWEN, H200_WITH_24_GIB, prompt_tokens=250, mean_tokens=512)
SMALL_STEP = benchmark("step", SMOLLM, H200, prompt_tokens=130, mean_tokens=177)
COPY = shipped("format-copy", SMOLLM, H200, ["engine.name=native"], prompt_tokens=40, mean_tokens=37)
CUT_OFF = benchmark("24gib-lora", QWEN, H200_WITH_24_GIB, prompt_tokens=250, mean_tokens=1020.8)
MLP = benchmark(
    "24gib-full", QWEN, H200, prompt_tokens=250, mean_tokens=508.4, overrides=[
        'model.gradient_checkpointing="mlp"', "stages.0.microbatch_tokens=16384", "engine.max_batch_rollouts=256",
        'stages.0.optimizer.moments="fp32"', "stages.0.problems_per_step=32",
    ]
)  # fmt: skip
COUNTDOWN = benchmark(
    "countdown-small", QWEN, H200, prompt_tokens=250, mean_tokens=255.4, overrides=["stages.0.kl.coefficient=0.02"]
)
MANY = ["stages.0.problems_per_step=64", "stages.0.problems_per_update=32", "stages.0.microbatch_tokens=6144"]
STAGED = shipped("countdown-staged", QWEN, H200_WITH_50_GIB, [], prompt_tokens=121, mean_tokens=230)
SINGLE = shipped("countdown-single", QWEN, H200_WITH_50_GIB, [], prompt_tokens=121, mean_tokens=365)
GSM8K = shipped(
    "gsm8k", QWEN, H200_WITH_50_GIB, [*MANY, "stages.0.kl.coefficient=0.0", "engine.max_batch_rollouts=256"],
    prompt_tokens=130, mean_tokens=300,
)  # fmt: skip
SMALL_GSM8K = shipped(
    "gsm8k", QWEN_SMALL, H200_WITH_25_GIB, [*MANY, "stages.0.kl.coefficient=0.0", "engine.max_batch_rollouts=512"],
    prompt_tokens=130, mean_tokens=285,
)  # fmt: skip
"""Whole runs (docs/results), each with 50 or 25 GiB of the GPU: the most of all their steps."""
ALONE = [
    shipped("gsm8k", QWEN_SMALL, H200, [], prompt_tokens=130, mean_tokens=mean_tokens)
    for mean_tokens in (278, 280, 292)
]
"""Three seeds with the GPU to themselves (docs/results/time-to-accuracy.md). No constant was found with these."""


@pytest.mark.parametrize(
    ("planned", "peak_gib"),
    [
        (ADAPTERS, 10.3), (FULL, 18.9), (SMALL_STEP, 9.7), (COPY, 8.9), (CUT_OFF, 10.4), (MLP, 39.7),
        (COUNTDOWN, 48.6),
    ],
)  # fmt: skip
def test_peak_memory_of_steps(planned: Work, peak_gib: float) -> None:
    found = plan_memory(planned, usual_pack(planned))
    assert found.peak / GIB == pytest.approx(peak_gib, rel=MEMORY_TOLERANCE)


@pytest.mark.parametrize(("planned", "peak_gib"), [(STAGED, 35.6), (SINGLE, 35.6), (GSM8K, 35.7), (SMALL_GSM8K, 14.0)])
def test_peak_memory_of_runs(planned: Work, peak_gib: float) -> None:
    assert most_memory(planned).peak / GIB == pytest.approx(peak_gib, rel=MEMORY_TOLERANCE)


@pytest.mark.parametrize(
    ("planned", "peak_gib", "seconds"), zip(ALONE, (23.4, 23.1, 23.1), (2.41, 2.39, 2.55), strict=True)
)
def test_runs_that_nothing_was_found_with(planned: Work, peak_gib: float, seconds: float) -> None:
    most = most_memory(planned)
    assert most.peak / GIB == pytest.approx(peak_gib, rel=MEMORY_TOLERANCE)
    assert sum(step_s(planned, most.rollouts_at_once, Speed()).values()) == pytest.approx(seconds, rel=TIME_TOLERANCE)


@pytest.mark.parametrize(
    ("planned", "phases_s", "seconds"),
    [
        (STEP, {"sample": 0.339, "logprobs": 0.130, "update": 0.222}, 0.738),
        (ADAPTERS, {"sample": 3.82, "logprobs": 0.76, "update": 2.10}, 6.76),
    ],
)
def test_time_of_steps(planned: Work, phases_s: dict[str, float], seconds: float) -> None:
    at_once = plan_memory(planned, usual_pack(planned)).rollouts_at_once
    found = step_s(planned, at_once, Speed())
    assert {phase: found[phase] for phase in phases_s} == pytest.approx(phases_s, rel=TIME_TOLERANCE)
    assert sum(found.values()) == pytest.approx(seconds, rel=TIME_TOLERANCE)


@pytest.mark.parametrize(("planned", "seconds"), [(CUT_OFF, 6.43), (MLP, 6.52), (FULL, 3.32), (COUNTDOWN, 3.16)])
def test_time_of_whole_steps(planned: Work, seconds: float) -> None:
    at_once = plan_memory(planned, usual_pack(planned)).rollouts_at_once
    assert sum(step_s(planned, at_once, Speed()).values()) == pytest.approx(seconds, rel=TIME_TOLERANCE)


def test_sampling_and_scoring_of_the_full_model() -> None:
    found = step_s(FULL, 64, Speed())
    assert (found["sample"], found["logprobs"]) == pytest.approx((1.13, 0.69), rel=TIME_TOLERANCE)


UPDATES: list[tuple[Any, float, float]] = [(False, 45.5, 0.689), (True, 31.2, 0.809), ("mlp", 34.5, 0.782)]
"""model.gradient_checkpointing, GiB, seconds: 64 sequences of 32,864 tokens, of which 128 each are its prompt."""


@pytest.mark.parametrize(("checkpointing", "peak_gib", "seconds"), UPDATES)
def test_updates(checkpointing: Any, peak_gib: float, seconds: float) -> None:
    planned = work(
        model={"gradient_checkpointing": checkpointing}, kl={"coefficient": 0.0}, problems_per_step=64,
        rollouts_per_problem=2, prompt_tokens=128, sampling={"max_new_tokens": 896},
    )  # fmt: skip
    mean_all = 32_800 / 64
    mean = 32_864 / 64 - 128
    # There is one size of packs, as in that benchmark: no recordings beside each other.
    alike = replace(planned, group=1, mean_tokens=mean, max_tokens=int(mean))
    assert usual_pack(alike) == pytest.approx(math.ceil(64 / 3) * mean_all, abs=1)
    found = plan_memory(alike, usual_pack(alike))
    assert sum(found.phases["update"].values()) / GIB == pytest.approx(peak_gib, rel=MEMORY_TOLERANCE)
    assert update_s(alike, usual_pack(alike)) == pytest.approx(seconds, rel=TIME_TOLERANCE)


FIXED = {QWEN: {64: 2.03, 256: 2.82, 512: 4.86, 1024: 8.80}, SMOLLM: {64: 1.014, 256: 1.455, 512: 2.05, 1024: 3.417}}
"""Sequences → ms per decode step, all in: 128 prompt tokens, 256 new ones."""
MIXED = [
    (QWEN, 256, 256, 69_006), (QWEN, 512, 512, 86_511), (QWEN, 1024, 1024, 103_871), (QWEN, 1024, 256, 74_338),
    (SMOLLM, 256, 256, 131_794), (SMOLLM, 512, 512, 195_290), (SMOLLM, 1024, 1024, 261_091),
    (SMOLLM, 1024, 256, 146_815),
]  # fmt: skip
"""Sequences, at once, tokens/s: completions of 174 tokens in the mean."""


@pytest.mark.parametrize(("shape", "count", "ms"), [(s, n, ms) for s, row in FIXED.items() for n, ms in row.items()])
def test_decoding(shape: ModelShape, count: int, ms: float) -> None:
    planned = replace(work(shape, prompt_tokens=128), mean_tokens=256.0, max_tokens=256, problems=count // 8)
    assert 1000 * sample_s(planned, count) / 256 == pytest.approx(ms, rel=TIME_TOLERANCE)


@pytest.mark.parametrize(("shape", "count", "at_once", "tokens_per_s"), MIXED)
def test_decoding_of_mixed_lengths(shape: ModelShape, count: int, at_once: int, tokens_per_s: int) -> None:
    planned = replace(work(shape, prompt_tokens=128), mean_tokens=174.0, max_tokens=256, problems=count // 8)
    assert count * 174 / sample_s(planned, at_once) == pytest.approx(tokens_per_s, rel=TIME_TOLERANCE)
