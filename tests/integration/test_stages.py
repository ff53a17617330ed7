"""Sequences of stages in one run directory, and what passes from one to the next."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.config import ConfigError, Recipe
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.planner.gpus import GPUS
from groupwise.planner.make_plan import make_plan
from groupwise.planner.shapes import find_shape
from groupwise.runs.reader import Run
from groupwise.training import pipeline, training
from groupwise.training.sft import from_rollouts
from groupwise.types import Finish, Verdict
from tests.factories import GRPO, SFT, TINY_MODEL

from .conftest import metrics_lines

COUNTDOWN = {
    "name": "countdown",
    "options": {"style": "terse", "think": False, "max_numbers": 3, "num_train": 30, "num_held_out": 6},
}


def weights_of(run_dir: Path, name: str) -> dict[str, torch.Tensor]:
    store = CheckpointStore(run_dir / "checkpoints", keep_last=2)
    return store.load(store.root / name)[0]["weights"]


def test_sft_then_grpo_on_countdown_is_one_run(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = recipe_with(task=COUNTDOWN, stages=[SFT, GRPO | {"sampling": {"max_new_tokens": 16}}])
    assert pipeline.train(recipe, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert [(r.step, r.stage, r.stage_step) for r in run.steps()] == [
        (1, "sft", 1),
        (2, "sft", 2),
        (3, "sft", 3),
        (4, "grpo", 1),
        (5, "grpo", 2),
        (6, "grpo", 3),
    ]
    assert [record.step for record in run.evals()] == [0, 2, 3, 4, 6]
    assert run.rollout_steps() == [4, 5, 6]


def test_grpo_sft_grpo_on_countdown_ends_in_one_run_directory(
    recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    """A staged Countdown run with the task's own solutions in the middle: a tiny model finds none in three steps."""
    sampling = {"sampling": {"max_new_tokens": 16}}
    recipe = recipe_with(task=COUNTDOWN, stages=[GRPO | sampling, SFT, GRPO | sampling])
    assert pipeline.train(recipe, tmp_path / "run")
    stages = [record.stage for record in Run(tmp_path / "run").steps()]
    assert stages == ["grpo-1"] * 3 + ["sft"] * 3 + ["grpo-2"] * 3


def test_sft_learns_from_the_best_correct_rollouts_of_earlier_stages(
    recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    # Completions that end by themselves, as those of a model that knows how to stop.
    stopping = GRPO | {"sampling": {"max_new_tokens": 6, "stop_strings": ["b", "d", "f", "h", "2", "4", "6", "8"]}}
    recipe = recipe_with(stages=[stopping, SFT | {"source": "rollouts"}, GRPO])
    assert pipeline.train(recipe, tmp_path / "run")
    run = Run(tmp_path / "run")
    demonstrations = from_rollouts(run, up_to_step=3)
    assert demonstrations
    by_problem: dict[str, list[tuple[float, int, str]]] = {}
    for step in (1, 2, 3):
        for scored in run.rollouts(step):
            for rollout, score in zip(scored.group.rollouts, scored.scores, strict=True):
                if score.verdict is Verdict.CORRECT and rollout.finish is Finish.STOP:
                    ranked = (-score.reward, len(rollout.token_ids), rollout.text)
                    by_problem.setdefault(scored.group.prompt.problem.id, []).append(ranked)
    assert {d.problem.id for d in demonstrations} == set(by_problem)
    for demonstration in demonstrations:
        best = min(rank[:2] for rank in by_problem[demonstration.problem.id])
        texts = [text for *rank, text in by_problem[demonstration.problem.id] if tuple(rank) == best]
        assert demonstration.completion in texts
    assert all(r.metrics["sft/demonstrations"] == 4 for r in run.steps() if r.stage == "sft")


def test_a_stage_can_start_from_the_best_weights(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    """With a learning rate near zero the last stage ends where it began: at the best weights, or at the final ones."""
    still = {"optimizer": {"learning_rate": 1e-30}, "steps": 1}
    ends = {}
    for start_from in ("best", "final"):
        wild = GRPO | {"optimizer": {"learning_rate": 0.3}}
        stages = [wild, GRPO | still | {"start_from": start_from}]
        run_dir = tmp_path / start_from
        evaluation = {"every_steps": 1, "num_problems": 8, "at_start": True}
        assert pipeline.train(recipe_with(stages=stages, evaluation=evaluation), run_dir)
        ends[start_from] = weights_of(run_dir, "step-000004")
    evals = Run(tmp_path / "best").evals()
    best = max(evals, key=lambda record: (record.pass_at_1, -record.step))
    assert best.step != 3, "the last step was the best: this test shows nothing"
    expected = weights_of(tmp_path / "best", f"step-{best.step:06d}")
    # Adam moves even a zero by its learning rate, so equal means equal to 1e-20.
    assert all(torch.allclose(ends["best"][name], expected[name], rtol=0, atol=1e-20) for name in expected)
    assert any(not torch.allclose(ends["best"][name], ends["final"][name]) for name in expected)


def test_best_is_chosen_by_held_out_pass_at_1(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    evaluation = {"every_steps": 1, "num_problems": 8}
    pipeline.train(recipe_with(evaluation=evaluation, stages=[GRPO | {"steps": 6}]), tmp_path / "run")
    evals = Run(tmp_path / "run").evals()
    first_best = next(record for record in evals if record.pass_at_1 == max(e.pass_at_1 for e in evals))
    tagged = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2).tagged("best")
    assert tagged is not None
    assert tagged.name == f"step-{first_best.step:06d}"


def test_without_keeping_the_best_the_run_is_the_same_and_saves_less(
    recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    evaluation = {"every_steps": 1, "num_problems": 8}
    saved = {}
    for keep_best in (True, False):
        checkpoints = {"every_steps": 6, "keep_last": 9, "keep_best": keep_best}
        recipe = recipe_with(evaluation=evaluation, checkpoints=checkpoints, stages=[GRPO | {"steps": 6}])
        pipeline.train(recipe, tmp_path / str(keep_best))
        store = CheckpointStore(tmp_path / str(keep_best) / "checkpoints", keep_last=9)
        assert (store.tagged("best") is not None) == keep_best
        saved[keep_best] = store.names()
    assert saved[False] == ["step-000006"]
    assert len(saved[True]) > 1
    ends = [weights_of(tmp_path / str(keep_best), "step-000006") for keep_best in (True, False)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_the_last_checkpoint_of_a_stage_has_what_the_next_one_begins_with(
    recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    """Weights, and neither moments nor reference; a run that goes on from there is the same run."""
    stages = [GRPO | {"kl": {"coefficient": 0.1}, "optimizer": {"learning_rate": 1e-2}}] * 2
    checkpoints = {"every_steps": 1, "keep_last": 9, "keep_best": False}
    assert pipeline.train(recipe_with(stages=stages, checkpoints=checkpoints), tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    files = {path.name: {file.stem for file in path.glob("*.safetensors")} for path in folder.glob("step-*")}
    whole = {"weights", "optimizer", "reference"}
    ends = ["step-000003", "step-000006"]
    assert files == {f"step-{step:06d}": whole for step in (1, 2, 4, 5)} | {name: {"weights"} for name in ends}
    expected = weights_of(tmp_path / "run", "step-000006")
    for name in files:
        if name > "step-000003":
            shutil.rmtree(folder / name)
    assert pipeline.resume(tmp_path / "run")
    found = weights_of(tmp_path / "run", "step-000006")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_saves_that_take_long_are_made_less_often(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long one takes is not known before the first; the last of a stage is always made."""
    checkpoints = {"every_steps": 1, "keep_last": 9, "keep_best": False, "time_share": 1e-6}
    recipe = recipe_with(stages=[GRPO | {"steps": 4}], checkpoints=checkpoints)
    for quick_s, expected in ((5.0, [1, 2, 3, 4]), (0.0, [1, 4])):
        monkeypatch.setattr(training, "QUICK_SAVE_S", quick_s)
        assert pipeline.train(recipe, tmp_path / str(quick_s))
        saved = CheckpointStore(tmp_path / str(quick_s) / "checkpoints", keep_last=9).names()
        assert saved == [f"step-{step:06d}" for step in expected]


@pytest.mark.parametrize("model", [{}, {"lora": {"rank": 4}}, {"ema_decay": 0.9}])
@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_checkpoints_are_as_large_as_planned(
    model: dict[str, Any], coefficient: float, recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    stage = GRPO | {"steps": 2, "kl": {"coefficient": coefficient}, "optimizer": {"learning_rate": 1e-2}}
    recipe = recipe_with(
        model=TINY_MODEL | {"dtype": "float32"} | model, stages=[stage], checkpoints={"every_steps": 1, "keep_last": 3}
    )
    assert pipeline.train(recipe, tmp_path / "run")
    files = (tmp_path / "run" / "checkpoints" / "step-000001").glob("*.safetensors")
    plan = make_plan(recipe, find_shape(recipe.model), GPUS["h200"], prompt_tokens=10)
    written = sum(file.stat().st_size for file in files)
    # Names and step counts besides.
    assert plan.checkpoint_bytes <= written < plan.checkpoint_bytes + 20_000
    assert plan.disk_bytes == 5 * plan.checkpoint_bytes


def test_patience_ends_a_stage_early(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    still = GRPO | {"steps": 50, "optimizer": {"learning_rate": 1e-30}}
    evaluation = {"every_steps": 1, "num_problems": 4, "patience": 2}
    stages = [still, still | {"steps": 1}]
    assert pipeline.train(recipe_with(stages=stages, evaluation=evaluation), tmp_path / "run")
    assert [record.stage for record in Run(tmp_path / "run").steps()] == ["grpo-1", "grpo-1", "grpo-2"]


@pytest.mark.parametrize("lora", [False, True])
def test_the_reference_is_the_policy_as_the_stage_found_it(
    lora: bool, recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    """The KL is zero in the first step of each stage and not afterwards."""
    model = TINY_MODEL | ({"lora": {"rank": 4}} if lora else {})
    single = GRPO | {"problems_per_update": 0, "epochs_per_batch": 1, "optimizer": {"learning_rate": 1e-2}}
    pipeline.train(recipe_with(model=model, stages=[single, single]), tmp_path / "run")
    kl = [line["metrics"]["kl/ref_k3"] for line in metrics_lines(tmp_path / "run")]
    assert kl[0] == 0
    assert kl[3] == 0
    assert min(kl[1], kl[2], kl[4], kl[5]) > 1e-5
    names = weights_of(tmp_path / "run", "step-000006")
    assert names
    assert all(("lora" in name) == lora for name in names)


def test_too_few_correct_rollouts_is_a_clear_error(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    stages = [GRPO, SFT | {"source": "rollouts", "min_demonstrations": 100}]
    with pytest.raises(ConfigError, match="min_demonstrations = 100"):
        pipeline.train(recipe_with(stages=stages), tmp_path / "run")


@pytest.mark.parametrize(
    "algorithm", ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++", "gr_reinforce"]
)
def test_every_algorithm_learns_the_toy_task(
    algorithm: str, recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    """The share of even bytes rises from half: the sign of the gradient is right for each preset."""
    stage = {
        "algorithm": algorithm,
        "steps": 25,
        "problems_per_step": 4,
        "rollouts_per_problem": 8,
        "sampling": {"max_new_tokens": 4},
        "optimizer": {"learning_rate": 1e-2},
        "reward": {"overlong_filter": False},
    }
    evaluation = {"at_start": False, "every_steps": 0, "num_problems": 2}
    pipeline.train(recipe_with(stages=[stage], evaluation=evaluation), tmp_path / "run")
    parts = [line["metrics"]["reward/part/even"] for line in metrics_lines(tmp_path / "run")]
    assert sum(parts[-5:]) / 5 > sum(parts[:5]) / 5 + 0.1


def test_a_run_that_cannot_balance_is_refused_before_its_first_stage(
    recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = recipe_with(stages=[SFT, GRPO | {"loss": {"router_balance": 0.01}}])
    with pytest.raises(ConfigError, match=r"^stages\.1\.loss\.router_balance = 0\.01: .* routers of Qwen3ForCausalLM"):
        pipeline.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
