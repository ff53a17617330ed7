"""Summaries of `groupwise bench step` from hand-written metrics."""

from __future__ import annotations

import pytest

from groupwise.bench.step_speed import summarize
from groupwise.types import StepRecord


def record(step: int, tokens_total: float, **metrics: float) -> StepRecord:
    times = {
        "time/step_s": 4.0,
        "time/sample_s": 1.0,
        "time/score_s": 0.5,
        "time/logprobs_s": 0.25,
        "time/update_s": 2.0,
    }
    updates = {"update/count": 1.0, "update/tokens": 10.0}
    gaps = {"engine/logprob_gap_mean": 0.1, "engine/logprob_gap_max": 0.3}
    plain = {"tokens/total": tokens_total, "rollouts/count": 2.0, "memory/peak_bytes": 100.0}
    changed = {name.replace("__", "/"): value for name, value in metrics.items()}
    return StepRecord(step, "grpo", step, times | updates | gaps | plain | changed)


def test_hand_worked_numbers() -> None:
    records = [
        record(1, 1000, time__step_s=90.0, memory__peak_bytes=900.0, engine__logprob_gap_max=9.0),
        record(2, 1020),
        record(3, 1080, time__step_s=6.0, memory__peak_bytes=300.0, update__tokens=30.0, engine__logprob_gap_mean=0.5),
    ]
    timing = summarize(records, 1, recipe="r", skipped_stages=(), device="cpu")
    assert (timing.step_s, timing.step_max_s) == (5.0, 6.0)
    assert timing.phases_s == {"sample": 1.0, "score": 0.5, "logprobs": 0.25, "update": 2.0, "rest": 1.25}
    assert (timing.rollouts, timing.tokens, timing.learned_tokens, timing.mean_tokens) == (2.0, 40.0, 20.0, 20.0)
    assert (timing.tokens_per_s, timing.sample_tokens_per_s, timing.peak_bytes) == (8.0, 40.0, 900.0)
    # 10 tokens at 0.1 and 30 at 0.5.
    assert timing.logprob_gap_mean == pytest.approx(0.4)
    assert timing.logprob_gap_max == 0.3
    assert summarize(records, 0, recipe="r", skipped_stages=(), device="cpu").tokens == 360.0


def test_steps_without_an_update_are_told() -> None:
    dead = record(1, 20, update__count=0.0, update__tokens=0.0, time__update_s=0.0)
    metrics = {name: value for name, value in dead.metrics.items() if not name.startswith("engine/")}
    timing = summarize([StepRecord(1, "grpo", 1, metrics)], 0, recipe="r", skipped_stages=(), device="cpu")
    assert (timing.steps_without_update, timing.logprob_gap_mean, timing.logprob_gap_max) == (1, None, None)
    assert "1 of 1 steps had nothing to learn from" in str(timing)
    assert "logprob gap" not in str(timing)
