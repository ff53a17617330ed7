"""One rank on NCCL with everything sharded into one part: what several GPUs run, on the GPU that there is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.config import Recipe, dump_toml, to_table
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from tests.factories import GRPO, TINY_MODEL
from tests.integration.conftest import newest_tensors, recipe_with
from tests.integration.test_ranks import ENVIRONMENT, command

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

__all__ = ["recipe_with"]

# Large enough for a replica of some megabytes, in heads that our kernels take.
TINY: Any = {"hidden_size": 256, "intermediate_size": 512, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2}
MODEL: Any = TINY_MODEL | {"device": "cuda", "tiny": TINY | {"context_tokens": 128}}
STAGE = GRPO | {"steps": 3, "kl": {"coefficient": 0.05}, "optimizer": {"learning_rate": 1e-4}}


@pytest.mark.parametrize("path", ["tiny-qwen3", "tiny-llama"])
@pytest.mark.parametrize("lora", [False, True])
def test_one_sharded_rank_is_an_unsharded_one(
    path: str, lora: bool, recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    model = MODEL | {"path": path} | ({"lora": {"rank": 4}} if lora else {})
    recipe = recipe_with(model=model, stages=[STAGE], engine={"name": "native"})
    assert pipeline.train(recipe, tmp_path / "whole")
    (tmp_path / "recipe.toml").write_text(dump_toml(to_table(recipe)))
    main = Path(__file__).with_name("sharded_main.py")
    arguments = (tmp_path / "recipe.toml", tmp_path / "sharded", tmp_path / "seen.json")
    done = subprocess.run(
        command(main, *arguments, ranks=1), env=ENVIRONMENT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]

    steps = list(Run(tmp_path / "sharded").steps())
    assert len(steps) == 3
    gaps = [step.metrics["engine/logprob_gap_mean"] for step in steps if "engine/logprob_gap_mean" in step.metrics]
    assert gaps
    assert max(gaps) < 1e-4

    # A weight's gradient is rounded to bf16 per microbatch here and summed in fp32 there: a few steps' worth of noise.
    whole, sharded = (newest_tensors(tmp_path / name)["weights"] for name in ("whole", "sharded"))
    updates = 3 * 4
    for name, weight in whole.items():
        gap = (sharded[name] - weight).abs()
        assert gap.mean() < 0.1 * updates * 1e-4, name
        assert gap.max() <= 2 * updates * 1e-4, name

    seen = json.loads((tmp_path / "seen.json").read_text())
    assert len(seen) >= 3
    for num_bytes, returned in seen:
        assert num_bytes > 1 << 20
        assert returned >= num_bytes
