"""A real model from its GGUF file: two SFT steps and two GRPO steps on format-copy and on GSM8K, on a CPU.

Set GROUPWISE_MODELS to a folder with SmolLM2-135M-Instruct somewhere below it; skipped without.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from groupwise.config import make_recipe
from groupwise.runs.reader import Run
from groupwise.training import pipeline

MODELS = os.environ.get("GROUPWISE_MODELS", "")
FILES = sorted(Path(MODELS).rglob("SmolLM2-135M-Instruct*.gguf")) if MODELS else []

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FILES, reason="GROUPWISE_MODELS names no folder with SmolLM2-135M-Instruct*.gguf"),
]


@pytest.mark.parametrize("task", ["format-copy", "gsm8k"])
def test_two_steps_of_sft_and_of_grpo(task: str, tmp_path: Path) -> None:
    options: dict[str, object] = {"num_train": 20, "num_held_out": 4}
    if task == "gsm8k":
        rows = [{"question": f"Add {n} and 2.", "answer": f"{n} + 2 = {n + 2}\n#### {n + 2}"} for n in range(12)]
        for name, part in (("train", rows[:8]), ("held_out", rows[8:])):
            (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
        options = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "held_out")}
    table = {
        "name": "real",
        "model": {"path": str(FILES[0]), "device": "cpu"},
        "task": {"name": task, "options": options},
        "stages": [
            {"algorithm": "sft", "steps": 2, "demonstrations_per_step": 4},
            {
                "algorithm": "grpo",
                "steps": 2,
                "problems_per_step": 2,
                "rollouts_per_problem": 4,
                "sampling": {"max_new_tokens": 24},
            },
        ],
        "evaluation": {"every_steps": 0, "num_problems": 4},
    }
    assert pipeline.train(make_recipe(table), tmp_path / "run")
    steps = Run(tmp_path / "run").steps()
    assert [record.stage for record in steps] == ["sft", "sft", "grpo", "grpo"]
    assert steps[1].metrics["sft/loss"] < steps[0].metrics["sft/loss"]
    assert steps[2].metrics["engine/logprob_gap_mean"] < 1e-4


def test_ratios_and_weights_are_1_with_top_p_and_two_epochs(tmp_path: Path) -> None:
    """On a policy that does not move, so in the second epoch as well."""
    stage = {
        "algorithm": "grpo",
        "steps": 1,
        "problems_per_step": 4,
        "rollouts_per_problem": 4,
        "epochs_per_batch": 2,
        "sampling": {"max_new_tokens": 24, "top_p": 0.9},
        "optimizer": {"learning_rate": 1e-12},
        "loss": {"importance": "truncated", "importance_cap": 1e6},
    }
    table = {
        "name": "real",
        "model": {"path": str(FILES[0]), "device": "cpu"},
        "task": {"name": "format-copy", "options": {"num_train": 20, "num_held_out": 4}},
        "stages": [stage],
        "evaluation": {"every_steps": 0, "num_problems": 4},
    }
    assert pipeline.train(make_recipe(table), tmp_path / "run")
    (step,) = Run(tmp_path / "run").steps()
    assert step.metrics["update/count"] == 2
    for name in ("policy/ratio_mean", "policy/importance_weight_mean"):
        assert step.metrics[name] == pytest.approx(1, abs=1e-5), name
    assert step.metrics["policy/ratio_max"] == pytest.approx(1, abs=5e-5)  # The rounding of one token.
