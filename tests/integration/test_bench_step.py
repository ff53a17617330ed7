"""`groupwise bench step` on tiny models: a real run is measured, and the numbers are those of its metrics."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from groupwise.bench.step_speed import bench_step, with_one_stage
from groupwise.cli import main
from groupwise.config import Recipe, RlStage, dump_toml, make_recipe, to_table
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.runs.reader import Run
from groupwise.training import pipeline, training
from groupwise.training.training import Training

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
SFT = {"algorithm": "sft", "steps": 3, "demonstrations_per_step": 4}
GRPO = {
    "algorithm": "grpo",
    "steps": 3,
    "problems_per_step": 4,
    "rollouts_per_problem": 3,
    "sampling": {"max_new_tokens": 6},
    "optimizer": {"learning_rate": 1e-3},
}


def make(*stages: dict[str, Any], **changes: Any) -> Recipe:
    table: dict[str, Any] = {
        "name": "test",
        "model": {"path": "tiny-qwen3", "device": "cpu", "tiny": SIZES},
        "task": {"name": "tests.integration.toy_task:EvenLetters"},
        "verifier": {"workers": 0},
        "stages": [*stages],
        "evaluation": {"every_steps": 1, "num_problems": 2},
        "checkpoints": {"every_steps": 1, "every_update": True},
    }
    return make_recipe(table | changes)


def test_the_numbers_add_up_and_count_what_was_sampled(tmp_path: Path) -> None:
    recipe = make(GRPO)
    timing = bench_step(recipe, steps=5, warmup_steps=2)
    assert (timing.recipe, timing.stage, timing.skipped_stages) == ("test", "grpo", ())
    assert (timing.steps, timing.warmup_steps, timing.steps_without_update) == (3, 2, 0)
    assert list(timing.phases_s) == ["sample", "score", "logprobs", "update", "rest"]
    assert all(seconds > 0 for seconds in timing.phases_s.values())
    assert sum(timing.phases_s.values()) == pytest.approx(timing.step_s)
    assert timing.step_s <= timing.step_max_s
    # The same run once more, whose rollouts are kept and counted one by one.
    pipeline.train(with_one_stage(recipe, 0, 5), tmp_path / "run")
    rollouts = [
        rollout
        for step in (3, 4, 5)
        for group in Run(tmp_path / "run").rollouts(step)
        for rollout in group.group.rollouts
    ]
    num_tokens = sum(len(rollout.token_ids) for rollout in rollouts)
    assert timing.rollouts == len(rollouts) / 3 == 12
    assert timing.tokens == pytest.approx(num_tokens / 3)
    assert 0 < timing.learned_tokens <= timing.tokens
    assert timing.mean_tokens == pytest.approx(num_tokens / len(rollouts))
    assert timing.tokens_per_s == pytest.approx(num_tokens / 3 / timing.step_s)
    assert timing.sample_tokens_per_s > timing.tokens_per_s
    assert timing.peak_bytes is None
    assert timing.logprob_gap_mean is not None
    assert timing.logprob_gap_max is not None
    assert 0 <= timing.logprob_gap_mean <= timing.logprob_gap_max < 1e-3


def test_nothing_is_evaluated_saved_or_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **named: Any) -> None:
        pytest.fail("evaluated or saved")

    monkeypatch.setattr(training, "evaluate", refuse)
    monkeypatch.setattr(CheckpointStore, "save", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    recipe = make(GRPO, logging={"sinks": ["no.such.module:Sink"]})
    # As many steps as the stage has, with several updates each: its end and the gaps between updates come by too.
    assert bench_step(recipe, steps=3, warmup_steps=0).steps == 3
    assert bench_step(make(GRPO | {"epochs_per_batch": 2}), steps=2, warmup_steps=1).steps == 1
    assert list(tmp_path.iterdir()) == []


def test_the_stage_stays_as_it_is() -> None:
    recipe = make(SFT, GRPO | {"steps": 40}, GRPO)
    stage, changed = recipe.stages[1], with_one_stage(recipe, 1, 12)
    assert changed.stages == (stage,)
    (longer,) = with_one_stage(recipe, 2, 12).stages
    assert isinstance(longer, RlStage)
    assert longer.steps == 12


def test_stages_before_are_left_out_and_told() -> None:
    timing = bench_step(make(SFT, GRPO, GRPO | {"name": "more"}), steps=2, warmup_steps=1)
    assert (timing.stage, timing.skipped_stages) == ("grpo", ("sft",))
    assert "skipped: sft; the stage starts from the initial weights" in str(timing)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text(dump_toml(to_table(make(GRPO))))
    assert main(["bench", "step", str(path), "--steps", "3", "--warmup", "1", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert (table["stage"], table["steps"], table["rollouts"]) == ("grpo", 2, 12.0)
    smaller = ["--set", "stages.grpo.problems_per_step=2", "--set", "stages.grpo.rollouts_per_problem=2"]
    assert main(["bench", "step", "demo", "--steps", "2", "--warmup", "1", *smaller]) == 0
    shown = capsys.readouterr().out
    for word in ("skipped: sft", "sample", "score", "logprobs", "update", "rest", "rollouts", "tokens/s"):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--steps", "4"], "--steps 4, --warmup 4: no step is left after the warm-up"),
        (["demo", "--warmup", "-1"], "--warmup = -1: must be from 0"),
        (["demmo"], "did you mean 'demo'?"),
        (["demo", "--set", "stages.grpo.stepps=3"], "unknown key"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "step", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_recipe_without_an_rl_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="test: there is no RL stage to measure"):
        bench_step(make(SFT))


def test_a_run_that_stops_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # While the first step is under way; it is finished, and then the run stops.
    monkeypatch.setattr(Training, "log_rollouts", lambda *arguments: os.kill(os.getpid(), signal.SIGTERM))
    path = tmp_path / "own.toml"
    path.write_text(dump_toml(to_table(make(GRPO))))
    assert main(["bench", "step", str(path), "--steps", "3", "--warmup", "1"]) == 1
    assert "the run stopped after 1 of 3 steps; nothing was measured" in capsys.readouterr().err
