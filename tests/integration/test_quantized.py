"""QLoRA from end to end on the CPU: train, resume bit for bit, export what was trained, merge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from groupwise.config import Recipe
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.models.export import export_run
from groupwise.models.merge import merge_folders
from groupwise.models.policy import Policy, load_policy
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from tests.factories import GRPO, SFT, TINY_MODEL, each_quantization

from .conftest import whole_result
from .test_exact_resume import run_until

PROMPT = torch.tensor([[5, 9, 77, 3]])
FAST = GRPO | {"steps": 2, "optimizer": {"learning_rate": 1e-2}, "kl": {"coefficient": 0.05}}


def model_with(kind: str) -> dict[str, object]:
    return TINY_MODEL | {"lora": {"rank": 4}, "quantization": kind, "ema_decay": 0.9}


def trained(recipe: Recipe, run_dir: Path) -> Policy:
    policy = load_policy(recipe)
    store = CheckpointStore(run_dir / "checkpoints", keep_last=2)
    newest = store.newest_valid()
    assert newest is not None
    policy.load_weights(store.load(newest)[0]["weights"])
    return policy


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=PROMPT).logits
        return result


@each_quantization
def test_a_resumed_run_is_the_uninterrupted_one(
    kind: str, recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_with(model=model_with(kind), stages=[SFT | {"steps": 1}, FAST])
    assert pipeline.train(recipe, tmp_path / "whole")
    expected = whole_result(tmp_path / "whole")
    for update in (2, 4, 7):
        run_dir = tmp_path / f"killed-{update}"
        run_until(monkeypatch, recipe, run_dir, update)
        assert pipeline.resume(run_dir)
        assert whole_result(run_dir) == expected, f"killed after update {update}"
    gap = "engine/logprob_gap_mean"
    steps = [record.metrics for record in Run(tmp_path / "whole").steps() if gap in record.metrics]
    assert len(steps) == 2
    assert all(metrics["policy/grad_norm"] > 0 for metrics in steps)
    assert all(metrics[gap] < 1e-5 for metrics in steps)


@each_quantization
def test_a_checkpoint_holds_adapters_alone_and_an_export_what_was_trained(
    kind: str, recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = recipe_with(model=model_with(kind), stages=[FAST])
    assert pipeline.train(recipe, tmp_path / "run")
    policy = trained(recipe, tmp_path / "run")
    assert all("lora_" in name for names in policy.state().values() for name in names)
    export_run(tmp_path / "run", tmp_path / "out", checkpoint="last")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert getattr(exported.config, "quantization_config", None) is None
    torch.testing.assert_close(logits(exported), logits(policy.model), rtol=1e-4, atol=1e-5)
    # The adapters on the weights that the run was started from are another model.
    plain = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, quantization="none"))
    assert (logits(trained(plain, tmp_path / "run").model) - logits(policy.model)).abs().max() > 1e-4


@each_quantization
def test_exports_are_merged_and_trained_on(kind: str, recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    for name, steps in (("a", 1), ("b", 2)):
        assert pipeline.train(recipe_with(model=model_with(kind), stages=[FAST | {"steps": steps}]), tmp_path / name)
        export_run(tmp_path / name, tmp_path / f"{name}-out", checkpoint="last")
    merge_folders([tmp_path / "a-out", tmp_path / "b-out"], [0.5, 0.5], tmp_path / "mean")
    a, b, mean = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("a-out", "b-out", "mean"))
    for first, second, third in zip(a.parameters(), b.parameters(), mean.parameters(), strict=True):
        torch.testing.assert_close(third, 0.5 * first + 0.5 * second)
    again = {"path": str(tmp_path / "mean"), "device": "cpu", "lora": {"rank": 2}, "quantization": kind}
    assert pipeline.train(recipe_with(model=again, stages=[FAST | {"steps": 1}]), tmp_path / "second")
