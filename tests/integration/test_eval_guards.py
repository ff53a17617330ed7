"""Guards, contamination and hollow rewards in a run: what is logged, and what a broken guard does."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.audit.held_out_gain import HeldOutWatch
from groupwise.config import ConfigError, GuardsConfig, Recipe
from groupwise.evals.guards import judge
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from groupwise.training.training import Training
from tests.factories import GRPO, TINY_MODEL

from .conftest import whole_result

WILD = GRPO | {"steps": 6, "optimizer": {"learning_rate": 0.1}}
TAME = GRPO | {"steps": 2, "optimizer": {"learning_rate": 1e-30}}
PERPLEXITY = {"max_perplexity_ratio": 1.01, "max_format_drop": 0.0}


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in Run(run_dir).events() if event["kind"] == kind]


def weights(run_dir: Path, name: str) -> Mapping[str, torch.Tensor]:
    store = CheckpointStore(run_dir / "checkpoints", keep_last=2)
    return store.load(store.root / name)[0]["weights"]


def test_judge() -> None:
    config = GuardsConfig(max_perplexity_ratio=1.5, max_format_drop=0.2)
    before = {"perplexity": 10.0, "format_share": 0.6}
    assert judge(config, before, before) == []
    assert judge(config, before, {"perplexity": 15.0, "format_share": 0.41}) == []
    both = judge(config, before, {"perplexity": 15.1, "format_share": 0.39})
    assert len(both) == 2
    assert "from 10.00 to 15.10" in both[0]
    assert "from 60.0 % to 39.0 %" in both[1]
    assert len(judge(config, before, {"perplexity": math.nan, "format_share": 0.6})) == 1
    off = GuardsConfig(max_perplexity_ratio=0, max_format_drop=0.2)
    assert judge(off, {"format_share": 0.6}, {"format_share": 0.5}) == []


def test_a_warning_changes_nothing_but_the_log_and_the_best_checkpoint(
    recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    bare, guarded = (recipe_with(stages=[WILD], **more) for more in ({}, {"guards": PERPLEXITY}))
    assert pipeline.train(bare, tmp_path / "bare")
    assert pipeline.train(guarded, tmp_path / "guarded")
    assert weights(tmp_path / "bare", "step-000006").keys() == weights(tmp_path / "guarded", "step-000006").keys()
    for name, weight in weights(tmp_path / "bare", "step-000006").items():
        assert torch.equal(weight, weights(tmp_path / "guarded", "step-000006")[name])
    readings = events(tmp_path / "guarded", "guards")
    assert [event["step"] for event in readings] == [0, 2, 4, 6]
    assert readings[0]["broken"] == []
    assert readings[-1]["broken"]
    assert readings[-1]["perplexity"] > 1.01 * readings[0]["perplexity"]
    # However it scores, what breaks a guard is not the best.
    store = CheckpointStore(tmp_path / "guarded" / "checkpoints", keep_last=2)
    best = store.tagged("best")
    assert best is not None
    assert best.name in {f"step-{event['step']:06d}" for event in readings if not event["broken"]}


@pytest.mark.parametrize("action", ["end_stage", "fall_back"])
def test_a_broken_guard_ends_its_stage(recipe_with: Callable[..., Recipe], tmp_path: Path, action: str) -> None:
    recipe = recipe_with(stages=[WILD, TAME], guards=PERPLEXITY | {"action": action})
    assert pipeline.train(recipe, tmp_path / "run")
    run = Run(tmp_path / "run")
    broken = [event["step"] for event in events(run.path, "guards") if event["broken"]]
    wild = [record.step for record in run.steps() if record.stage == "grpo-1"]
    assert wild[-1] == broken[0] < 6
    last = f"step-{run.steps()[-1].step:06d}"
    store = CheckpointStore(run.path / "checkpoints", keep_last=2)
    best = store.tagged("best")
    assert best is not None
    kept = weights(run.path, best.name)
    is_best = all(torch.allclose(weight, kept[name]) for name, weight in weights(run.path, last).items())
    # The tame stage does not move what it was given.
    assert is_best == (action == "fall_back")
    assert [event["checkpoint"] for event in events(run.path, "fell_back")] == ([best.name] if is_best else [])


def test_a_run_that_falls_back_is_resumed_exactly(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_with(stages=[WILD, TAME], guards=PERPLEXITY | {"action": "fall_back"})
    assert pipeline.train(recipe, tmp_path / "whole")
    read = Training.passes_guards
    for stop_at in range(1, 1 + len(events(tmp_path / "whole", "guards"))):
        calls = 0

        def stopping(training: Training, stop_at: int = stop_at) -> bool:
            nonlocal calls
            calls += 1
            if calls == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return read(training)

        run_dir = tmp_path / f"stopped-{stop_at}"
        monkeypatch.setattr(Training, "passes_guards", stopping)
        is_finished = pipeline.train(recipe, run_dir)
        monkeypatch.setattr(Training, "passes_guards", read)
        assert not is_finished
        assert pipeline.resume(run_dir)
        assert whole_result(run_dir) == whole_result(tmp_path / "whole")


def test_format_following_is_guarded_too(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    tiny = {**TINY_MODEL["tiny"], "context_tokens": 512}  # type: ignore[dict-item]
    guards = {"max_perplexity_ratio": 0.0, "max_format_drop": 0.1}
    recipe = recipe_with(model=TINY_MODEL | {"tiny": tiny}, stages=[TAME], guards=guards)
    assert pipeline.train(recipe, tmp_path / "run")
    readings = events(tmp_path / "run", "guards")
    assert len({event["format_share"] for event in readings}) == 1
    assert 0 <= readings[0]["format_share"] <= 1
    assert "perplexity" not in readings[0]
    with pytest.raises(ConfigError, match=r"guards: .*max_format_drop = 0"):
        pipeline.train(recipe_with(guards=guards), tmp_path / "short")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"guards": {"max_perplexity_ratio": 0.9}},
            "max_perplexity_ratio = 0.9: must be from 1 to 1,000,000, or 0 (off)",
        ),
        ({"guards": {"max_format_drop": 1.5}}, "max_format_drop = 1.5"),
        ({"guards": {"max_perplexity_ratio": 0, "max_format_drop": 0}}, "nothing is measured"),
        ({"guards": {}, "evaluation": {"at_start": False}}, "evaluation.at_start = false"),
        ({"guards": {"action": "stop"}}, "guards.action = 'stop'"),
    ],
)
def test_guards_that_make_no_sense_are_refused(
    recipe_with: Callable[..., Recipe], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        recipe_with(**changes)
    assert message in str(error.value)


def test_near_copies_of_held_out_problems_are_told_at_the_start(
    recipe_with: Callable[..., Recipe], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    question = (
        "a farmer has twelve hens and each of them lays three eggs in a week so how many eggs are there by Sunday"
    )
    rows = {"train": question + " evening", "held_out": question}
    for split, text in rows.items():
        (tmp_path / f"{split}.jsonl").write_text(f'{{"prompt": "{text}", "answer": "36"}}\n')
    options = {"train": str(tmp_path / "train.jsonl"), "held_out": str(tmp_path / "held_out.jsonl")}
    short = GRPO | {"problems_per_step": 1, "problems_per_update": 1, "steps": 1}
    tiny = {**TINY_MODEL["tiny"], "context_tokens": 512}  # type: ignore[dict-item]
    recipe = recipe_with(task={"name": "jsonl", "options": options}, stages=[short], model=TINY_MODEL | {"tiny": tiny})
    assert pipeline.train(recipe, tmp_path / "run")
    (event,) = events(tmp_path / "run", "contamination")
    assert (event["exact"], event["near"]) == (0, 1)
    assert event["overlaps"][0]["share"] >= 0.8
    assert "1 nearly so" in caplog.text


def test_reward_that_rises_alone_is_flagged(
    recipe_with: Callable[..., Recipe], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reward is the share of even bytes; with one held-out problem, sampled too, pass@1 cannot surely rise."""
    stages = [GRPO | {"steps": 16, "optimizer": {"learning_rate": 0.02}}]
    recipe = recipe_with(stages=stages, evaluation={"num_problems": 1, "temperature": 1.0})
    assert pipeline.train(recipe, tmp_path / "run", [HeldOutWatch()])
    run = Run(tmp_path / "run")
    rewards = [record.metrics["reward/mean"] for record in run.steps()]
    flagged = events(run.path, "hollow_reward")
    assert rewards[-1] > rewards[0]
    (event,) = flagged
    assert event["reward_gain_low"] > 0 >= event["held_out_gain_low"]
    assert "training reward rose" in caplog.text
