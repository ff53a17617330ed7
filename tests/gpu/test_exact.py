"""Exactness on a GPU, all else equal: a run made twice has the same bits, and so has one that is killed and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from groupwise.algo.completions import Completions
from groupwise.algo.losses import SURROGATES, SurrogateInputs
from groupwise.config import Recipe
from groupwise.models import optimizer
from groupwise.training import pipeline
from tests.factories import GRPO, SFT, TINY_MODEL
from tests.integration.conftest import recipe_with, whole_result
from tests.integration.test_exact_resume import run_until

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

__all__ = ["recipe_with"]

CHECKPOINTS = {"every_steps": 1, "every_update": True}


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "cispo"])
@pytest.mark.parametrize("lora", [False, True])
def test_made_twice_and_resumed(
    algorithm: str,
    lora: bool,
    is_recorded: bool,
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_recorded:  # as with models whose sums are too large to be kept
        monkeypatch.setattr(optimizer, "KEPT_SUMS_SHARE", 0.0)
    model = TINY_MODEL | {"device": "cuda"} | ({"lora": {"rank": 4, "dropout": 0.1}} if lora else {})
    recipe = recipe_with(model=model, stages=[SFT, GRPO | {"algorithm": algorithm}], checkpoints=CHECKPOINTS)
    for name in ("whole", "again"):
        assert pipeline.train(recipe, tmp_path / name)
    expected = whole_result(tmp_path / "whole")
    assert whole_result(tmp_path / "again") == expected
    for update in (2, 6, 9, 11):
        run_until(monkeypatch, recipe, tmp_path / f"killed-{update}", update)
        assert pipeline.resume(tmp_path / f"killed-{update}")
        assert whole_result(tmp_path / f"killed-{update}") == expected, f"killed after update {update}"


@pytest.mark.parametrize("name", SURROGATES)
def test_a_surrogate_of_many_tokens_has_one_gradient(name: str) -> None:
    """Sums that are added up in any order would differ here within a few tries."""
    dice = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 400, (96,), generator=dice)
    sequence = torch.arange(len(lengths)).repeat_interleave(lengths)
    now, old, advantages = (torch.randn(len(sequence), generator=dice) / 10 for _ in range(3))
    limits = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 3.0, "gate_positive": 1.0, "gate_negative": 1.05}

    def gradient(device: str) -> torch.Tensor:
        logprobs = now.to(device).requires_grad_()
        completions = Completions(sequence.to(device), tuple(lengths.tolist()))
        inputs = SurrogateInputs(logprobs, old.to(device), advantages.to(device), completions, **limits)
        SURROGATES[name](inputs).loss.sum().backward()
        assert logprobs.grad is not None
        return logprobs.grad.cpu()

    first = gradient("cuda")
    assert all(torch.equal(gradient("cuda"), first) for _ in range(20))
    torch.testing.assert_close(first, gradient("cpu"), rtol=1e-5, atol=1e-6)
