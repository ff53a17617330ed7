"""Runs that save memory: what they may change of the numbers, and that they resume bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import Recipe
from groupwise.training import pipeline
from tests.factories import GRPO, SFT, TINY_MODEL
from tests.integration.conftest import metrics_lines, newest_tensors, whole_result
from tests.integration.test_ranks import stand_at

KL: dict[str, Any] = {"coefficient": 0.05}
RATE = {"learning_rate": 1e-3}
SAVING = RATE | {"moments": "8bit", "offload": True}


def stages(optimizer: dict[str, Any], kl: dict[str, Any]) -> list[dict[str, Any]]:
    return [SFT | {"optimizer": optimizer}, GRPO | {"optimizer": optimizer, "kl": kl}]


def test_a_reference_in_host_memory_changes_nothing(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    for name, kl in (("here", KL), ("there", KL | {"offload_reference": True})):
        assert pipeline.train(recipe_with(stages=stages(RATE, kl)), tmp_path / name)
    assert whole_result(tmp_path / "here") == whole_result(tmp_path / "there")


@pytest.mark.parametrize("model", [TINY_MODEL | {"ema_decay": 0.5}, TINY_MODEL | {"lora": {"rank": 160}}])
def test_a_run_with_moments_in_8_bit_resumes_bit_for_bit(
    model: dict[str, Any], recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    """Killed after the second step of the second stage, that is, with moments on their way."""
    checkpoints = {"every_steps": 1, "keep_last": 9}
    recipe = recipe_with(model=model, stages=stages(SAVING, KL | {"offload_reference": True}), checkpoints=checkpoints)
    assert pipeline.train(recipe, tmp_path / "whole")
    stand_at(tmp_path / "whole", tmp_path / "resumed", 5)
    assert pipeline.resume(tmp_path / "resumed")
    assert whole_result(tmp_path / "resumed") == whole_result(tmp_path / "whole")


def test_moments_in_8_bit_go_the_same_way(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    """Demonstrations alone: no rollouts that a last bit could turn into others."""
    for name, optimizer in (("fp32", RATE), ("8bit", SAVING)):
        recipe = recipe_with(stages=[SFT | {"optimizer": optimizer, "steps": 10}], evaluation={"max_new_tokens": 6})
        assert pipeline.train(recipe, tmp_path / name)
    losses = [[line["metrics"]["policy/loss"] for line in metrics_lines(tmp_path / name)] for name in ("fp32", "8bit")]
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert losses[1] != losses[0]
    plain, saving = (newest_tensors(tmp_path / name)["weights"] for name in ("fp32", "8bit"))
    for name, weight in plain.items():
        assert (saving[name] - weight).abs().max() < 10 * 1e-3, name
