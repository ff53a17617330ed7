"""Runs that sample with top-p, top-k or min-p: on a policy that has not moved, engine and trainer agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import Recipe
from groupwise.runs import Run
from groupwise.training import pipeline
from tests.factories import GRPO


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("keys", [{"top_p": 0.8}, {"top_k": 20}, {"min_p": 0.1, "temperature": 0.7}], ids=str)
@pytest.mark.parametrize("microbatch_tokens", [100, 16384], ids=["engine's old logprobs", "trainer's old logprobs"])
def test_ratios_and_importance_weights_are_1(
    keys: dict[str, Any], engine: str, microbatch_tokens: int, recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    stage = GRPO | {
        "steps": 1,
        "sampling": {"max_new_tokens": 24} | keys,
        "optimizer": {"learning_rate": 1e-12},
        "loss": {"importance": "truncated", "importance_cap": 1e6},
        "microbatch_tokens": microbatch_tokens,
    }
    recipe = recipe_with(stages=[stage], engine={"name": engine}, evaluation={"every_steps": 0})
    assert pipeline.train(recipe, tmp_path / "run")
    (step,) = Run(tmp_path / "run").steps()
    assert step.metrics["update/count"] > 0
    for name in ("policy/importance_weight_mean", "policy/ratio_mean", "policy/ratio_max"):
        assert step.metrics[name] == pytest.approx(1, abs=1e-5), name
    assert step.metrics["engine/logprob_gap_max"] < 1e-5
