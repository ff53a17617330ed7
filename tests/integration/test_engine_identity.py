"""Without a lag, and with one update per step, the choice of the engine changes no token and no metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from groupwise.models.tiny import make_tokenizer
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from tests.factories import GRPO, tiny_recipe
from tests.families import make_tiny_family

FAMILIES = (
    "deepseek_v3", "falcon_h1", "gemma3_text", "granitemoehybrid", "lfm2", "mamba2", "nemotron_h", "olmo2",
    "qwen3_5_text", "qwen3_moe", "qwen3_next", "smollm3",
)  # fmt: skip
TIMES = ("time/", "memory/", "engine/tokens_per_s", "throughput/")


def train(folder: Path, model: Path, engine: str) -> tuple[list[Any], list[dict[str, float]]]:
    stage = GRPO | {"problems_per_update": 4, "epochs_per_batch": 1}
    recipe = tiny_recipe(model={"path": str(model), "device": "cpu"}, engine={"name": engine}, stages=[stage])
    assert pipeline.train(recipe, folder)
    run = Run(folder)
    tokens = [rollout.token_ids for scored in run.rollouts() for rollout in scored.group.rollouts]
    return tokens, [step.metrics for step in run.steps()]


@pytest.mark.parametrize("name", FAMILIES)
def test_another_engine_changes_no_token_and_no_metric(name: str, tmp_path: Path) -> None:
    make_tiny_family(name).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    tokens, metrics = train(tmp_path / "native", tmp_path / "model", "native")
    others, expected = train(tmp_path / "reference", tmp_path / "model", "reference")
    assert tokens
    assert tokens == others
    for ours, theirs in zip(metrics, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            if not key.startswith(TIMES):
                assert ours[key] == pytest.approx(value, rel=1e-4, abs=2e-5), key
