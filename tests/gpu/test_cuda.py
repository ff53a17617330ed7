"""Training on a GPU: bf16 with fp32 masters, an engine that agrees with the trainer, and a run that can be resumed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from groupwise.config import Recipe, dump_toml, to_table
from groupwise.models import checkpoint_store as checkpoint
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.models.export import export_run
from groupwise.models.lora import merged_state_dict
from groupwise.models.policy import load_policy
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from tests.factories import GRPO, SFT, TINY_MODEL
from tests.gpu.limited_main import REFUSED
from tests.integration.conftest import recipe_with
from tests.integration.test_ranks import ENVIRONMENT

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

__all__ = ["recipe_with"]

CUDA_MODEL = TINY_MODEL | {"device": "cuda"}


def test_what_a_checkpoint_has_of_a_gpu_is_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "STAGE_BYTES", 1_000_003)
    tensors = {f"{n}": torch.randn(1000, 257 * n, device="cuda") for n in range(1, 12)}
    tensors |= {"turned": torch.randn(300, 700, device="cuda").bfloat16().T, "count": torch.tensor(3)}
    store = checkpoint.CheckpointStore(tmp_path, keep_last=1)
    # Written to again at once: the copies must not see that.
    expected = {name: tensor.cpu() for name, tensor in tensors.items()}
    path = store.save("step-000001", {"weights": tensors}, {})
    for tensor in tensors.values():
        tensor.zero_()
    found = store.load(path)[0]["weights"]
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items() if name != "count")


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_trains_in_bf16_with_fp32_masters(lora: bool, recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    model = CUDA_MODEL | {"gradient_checkpointing": True} | ({"lora": {"rank": 4}} if lora else {})
    recipe = recipe_with(model=model, stages=[SFT, GRPO | {"steps": 4}])
    policy = load_policy(recipe)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in policy.weights.values()} == {torch.float32}
    assert pipeline.train(recipe, tmp_path / "run")
    run = Run(tmp_path / "run")
    gaps = [r.metrics["engine/logprob_gap_mean"] for r in run.steps() if "engine/logprob_gap_mean" in r.metrics]
    assert max(gaps) < 0.05
    assert all(r.metrics["memory/peak_bytes"] > 0 for r in run.steps())
    assert pipeline.resume(tmp_path / "run")


def test_a_learning_rate_of_1e_6_moves_the_masters(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = recipe_with(model=CUDA_MODEL, stages=[GRPO | {"optimizer": {"learning_rate": 1e-6}}])
    initial = {n: w.cpu().clone() for n, w in load_policy(recipe).weights.items()}
    pipeline.train(recipe, tmp_path / "run")
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2)
    newest = store.newest_valid()
    assert newest is not None
    weights = store.load(newest)[0]["weights"]
    moved = max(float((weights[name] - initial[name]).abs().max()) for name in initial)
    assert 1e-6 < moved < 1e-4


@pytest.mark.parametrize("lora", [False, True])
def test_what_was_trained_here_is_exported(lora: bool, recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    """The layers' weights lie side by side in memory; a file has each by itself."""
    model = CUDA_MODEL | ({"lora": {"rank": 4}} if lora else {})
    recipe = recipe_with(model=model, stages=[GRPO | {"optimizer": {"learning_rate": 1e-2}}])
    assert pipeline.train(recipe, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "out", checkpoint="last")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    policy = load_policy(recipe)
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2)
    newest = store.newest_valid()
    assert newest is not None
    policy.load_weights(store.load(newest)[0]["weights"])
    plain = merged_state_dict(policy.model)
    for name, weight in exported.state_dict().items():
        torch.testing.assert_close(weight, plain[name].float().cpu(), rtol=0, atol=0)


def test_each_step_says_what_it_did_to_its_tokens(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    fast = GRPO | {"optimizer": {"learning_rate": 1e-2}}
    assert pipeline.train(recipe_with(model=CUDA_MODEL, stages=[fast]), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.token_steps() == [1, 2, 3]
    traces = [tokens for trace in run.tokens(3) for tokens in trace.rollouts]
    for tokens in traces:
        assert tokens is not None
        assert all(0 < ratio < 100 for ratio in tokens.ratios)
        assert all(0 <= entropy < 20 for entropy in tokens.entropies)
    assert any(abs(ratio - 1) > 1e-3 for tokens in traces if tokens for ratio in tokens.ratios)


def trained_in(mib: int, recipe: Recipe, run_dir: Path) -> subprocess.CompletedProcess[str]:
    """Measure in a separate process: memory that other tests hold or release would count."""
    path = run_dir.with_suffix(".toml")
    path.write_text(dump_toml(to_table(recipe)))
    main = Path(__file__).with_name("limited_main.py")
    command = [sys.executable, main, path, run_dir, str(mib)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=280, check=False)


def test_a_stage_that_cannot_fit_is_refused_before_its_first_step(
    recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    """Microbatches of 400,000 tokens do not fit in 384 MiB, smaller ones do, and the error names one that does.

    In fp32, where they are not cut into packs that can be recorded.
    """
    model = CUDA_MODEL | {"dtype": "float32"}
    stage = GRPO | {"steps": 2, "microbatch_tokens": 400_000, "sampling": {"max_new_tokens": 64}}
    refused = trained_in(384, recipe_with(model=model, stages=[stage]), tmp_path / "refused")
    assert refused.returncode == REFUSED, refused.stderr[-3000:]
    assert not list(Run(tmp_path / "refused").steps())
    found = re.search(r"microbatch_tokens = ([\d,]+) fits", refused.stdout)
    assert found is not None, refused.stdout
    smaller = stage | {"microbatch_tokens": int(found[1].replace(",", ""))}
    done = trained_in(384, recipe_with(model=model, stages=[smaller]), tmp_path / "fits")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(Run(tmp_path / "fits").steps())) == 2
