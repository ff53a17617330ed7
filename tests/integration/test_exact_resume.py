"""Resumed = uninterrupted, bit for bit: every metric, every eval, every rollout and every tensor of the final state."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.cli import main
from groupwise.config import Recipe, dump_toml, parse_recipe, to_table
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from groupwise.training.training import Training
from groupwise.types import UpdateStats
from tests.factories import GRPO, SFT, TINY_MODEL

from .conftest import metrics_lines, state_digest, whole_result

NUM_UPDATES = 3 + 3 * 4


class Killed(BaseException):
    """Not an Exception, so that nothing on the way can take it for an error of its own."""


def run_until(monkeypatch: pytest.MonkeyPatch, recipe: Recipe, run_dir: Path, update: int) -> None:
    """Train and die right after the `update`-th optimizer update, before anything was saved or logged about it."""
    original, count = Training.after_update, 0

    def dying(self: Training, stats: UpdateStats) -> None:
        nonlocal count
        count += 1
        if count == update:
            raise Killed
        original(self, stats)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "after_update", dying)
        with pytest.raises(Killed):
            pipeline.train(recipe, run_dir)


def test_same_seed_gives_the_same_lines_twice_and_another_seed_others(
    recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert pipeline.train(recipe_with(seed=seed), tmp_path / name)
    assert whole_result(tmp_path / "a") == whole_result(tmp_path / "b")
    assert metrics_lines(tmp_path / "a") != metrics_lines(tmp_path / "c")


@pytest.mark.parametrize("every_update", [False, True])
def test_killed_after_each_update_and_resumed(
    every_update: bool, recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill at each offset inside a batch of two epochs; with `every_update` the resumed run starts inside the batch."""
    recipe = recipe_with(checkpoints={"every_steps": 2, "every_update": every_update})
    pipeline.train(recipe, tmp_path / "whole")
    expected = whole_result(tmp_path / "whole")
    for update in range(1, NUM_UPDATES + 1):
        run_dir = tmp_path / f"killed-{update}"
        run_until(monkeypatch, recipe, run_dir, update)
        assert pipeline.resume(run_dir)
        assert whole_result(run_dir) == expected, f"killed after update {update}"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"algorithm": "dapo", "kl": {"coefficient": 0.05, "schedule": "target"}}, id="dapo-target-kl"),
        pytest.param({"algorithm": "reinforce++"}, id="reinforce++"),
        pytest.param({"algorithm": "otb"}, id="otb"),
        pytest.param(
            {
                "algorithm": "kl_cov",
                "entropy": {"bonus": 0.1, "target": 2.0, "top_share": 0.5, "covariance_share": 0.2, "pull_share": 0.3},
            },
            id="entropy",
        ),
        pytest.param(
            {"algorithm": "grpo", "curriculum": {"kind": "pass_rate"}, "max_rollouts_per_problem": 6}, id="curriculum"
        ),
    ],
)
def test_every_kind_of_state_survives(
    changes: dict[str, object], recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controllers, choices of tokens, the sampler's pass rates, average weights and adapters are in the checkpoint."""
    model = TINY_MODEL | {"ema_decay": 0.9, "lora": {"rank": 2, "dropout": 0.1}}
    recipe = recipe_with(
        model=model,
        stages=[SFT, GRPO | changes],
        evaluation={"every_steps": 2, "num_problems": 4, "use_ema": True},
        checkpoints={"every_steps": 1, "every_update": True},
    )
    pipeline.train(recipe, tmp_path / "whole")
    expected = whole_result(tmp_path / "whole")
    for update in (2, 5, 6, 9, 12):
        run_dir = tmp_path / f"killed-{update}"
        run_until(monkeypatch, recipe, run_dir, update)
        assert pipeline.resume(run_dir)
        assert whole_result(run_dir) == expected, f"killed after update {update}"


def train_or_resume(toml: str, run_dir: Path) -> None:
    if (run_dir / "recipe.toml").exists():
        pipeline.resume(run_dir)
    else:
        pipeline.train(parse_recipe(toml), run_dir)


NUM_KILLS = int(os.environ.get("GROUPWISE_KILLS", "100"))


@pytest.mark.timeout(550)
def test_random_sigkills_leave_no_run_that_cannot_resume(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    """Real processes, really killed, at random moments; each run goes on until it ends, and ends as if left alone."""
    recipe = recipe_with(checkpoints={"every_steps": 1, "every_update": True})
    pipeline.train(recipe, tmp_path / "warm-up")
    began = time.perf_counter()
    pipeline.train(recipe, tmp_path / "whole")
    seconds = time.perf_counter() - began
    expected = whole_result(tmp_path / "whole")
    toml = dump_toml(to_table(recipe))
    context = multiprocessing.get_context("forkserver")
    # The server has everything imported, so a child trains within milliseconds of its start.
    context.set_forkserver_preload(["groupwise.training.pipeline", "tests.integration.toy_task", "torch.optim.adamw"])
    dice = random.Random(0)
    num_kills, num_runs = 0, 0
    while num_kills < NUM_KILLS:
        num_runs += 1
        run_dir = tmp_path / f"run-{num_runs}"
        for attempt in itertools.count():
            child = context.Process(target=train_or_resume, args=(toml, run_dir))
            child.start()
            # Longer with each attempt: a machine that has become slower since `seconds` was taken must not starve it.
            child.join(timeout=dice.uniform(0.05, (1.2 + 0.1 * attempt) * seconds))
            child.kill()  # unless it has just ended by itself
            child.join()
            if child.exitcode == 0:
                break
            if child.exitcode != -signal.SIGKILL:
                pytest.fail(f"{run_dir} could not be resumed: exit code {child.exitcode}")
            num_kills += 1
        assert whole_result(run_dir) == expected
    assert num_runs >= 2


def test_sigterm_saves_inside_the_batch_and_the_resumed_run_is_the_same(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_with(checkpoints={"every_steps": 100})
    pipeline.train(recipe, tmp_path / "whole")
    original, count = Training.after_update, 0

    def signalling(self: Training, stats: UpdateStats) -> None:
        nonlocal count
        count += 1
        if count == 3 + 4 + 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        original(self, stats)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "after_update", signalling)
        assert pipeline.train(recipe, tmp_path / "stopped") is False
    names = [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir()]
    assert "step-000005-update-002" in names
    assert pipeline.resume(tmp_path / "stopped")
    assert whole_result(tmp_path / "stopped") == whole_result(tmp_path / "whole")


@pytest.mark.parametrize("where", ["sampling", "evaluation"])
def test_sigterm_while_tokens_are_drawn_stops_at_once(
    where: str, recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's sampling may take minutes: it is thrown away, and sampled again after the resume.

    In an evaluation the model holds its moving average; what is saved must be the weights themselves.
    """
    from groupwise.engines.native import decode

    # A step draws 6 tokens, so the eighth draw is in the second step or in the evaluation after the first.
    evaluation = {"at_start": False, "every_steps": 1 if where == "evaluation" else 0, "num_problems": 4}
    recipe = recipe_with(
        model=TINY_MODEL | {"ema_decay": 0.5}, stages=[GRPO], evaluation=evaluation | {"use_ema": True}
    )
    pipeline.train(recipe, tmp_path / "whole")
    original, count = decode.draw_tokens, 0

    def signalling(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count == 8:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
            pytest.fail("the signal did not interrupt the sampling")
        return original(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(decode, "draw_tokens", signalling)
        assert pipeline.train(recipe, tmp_path / "stopped") is False
    assert pipeline.resume(tmp_path / "stopped")
    assert whole_result(tmp_path / "stopped") == whole_result(tmp_path / "whole")


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe = recipe_with(checkpoints={"every_steps": 1, "keep_last": 3})
    pipeline.train(recipe, tmp_path / "whole")
    run_until(monkeypatch, recipe, tmp_path / "damaged", 12)
    newest = sorted((tmp_path / "damaged" / "checkpoints").glob("step-*"))[-1]
    weights = newest / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    assert pipeline.resume(tmp_path / "damaged")
    assert whole_result(tmp_path / "damaged") == whole_result(tmp_path / "whole")
    assert "checkpoint_passed_over" in (tmp_path / "damaged" / "events.jsonl").read_text()
    assert f"{newest} is passed over: weights.safetensors was changed" in caplog.text


def cut(checkpoints: Path) -> list[str]:
    for path in checkpoints.glob("step-*"):
        os.truncate(path / "weights.safetensors", 10)
    return [f"{path.name}: weights.safetensors has 10 bytes" for path in checkpoints.glob("step-*")]


def unmount(checkpoints: Path) -> list[str]:
    shutil.rmtree(checkpoints)
    checkpoints.mkdir()
    return [f"{checkpoints} has no checkpoint"]


def leave_the_first(checkpoints: Path) -> list[str]:
    """As if the disk had gone back to the start of the run: what is there is whole."""
    later = [path for path in sorted(checkpoints.glob("step-*")) if path.name != "step-000000"]
    assert (checkpoints / "step-000000").is_dir()
    for path in later:
        shutil.rmtree(path)
    return [f"{later[-1].name}: it is missing"]


@pytest.mark.parametrize("lose", [cut, unmount, leave_the_first])
def test_a_run_that_lost_its_checkpoints_begins_again_only_when_told(
    lose: Callable[[Path], list[str]],
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = tmp_path / "run"
    pipeline.train(recipe_with(), run_dir)
    expected, metrics = whole_result(run_dir), (run_dir / "metrics.jsonl").read_bytes()
    reasons = lose(run_dir / "checkpoints")
    assert main(["train", "--resume", str(run_dir)]) == 2
    said = capsys.readouterr().err
    assert f"{run_dir} has logs up to step 6, but no checkpoint to continue from" in said
    assert all(reason in said for reason in [*reasons, "--start-over"])
    assert (run_dir / "metrics.jsonl").read_bytes() == metrics
    assert main(["train", "--resume", str(run_dir), "--start-over"]) == 0
    assert whole_result(run_dir) == expected
    assert (run_dir / "old-1" / "metrics.jsonl").read_bytes() == metrics
    assert Run(run_dir / "old-1").recipe == Run(run_dir).recipe


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_one(folder: Path) -> None:
    min(folder.iterdir()).unlink()


def lose_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))


@pytest.mark.parametrize(
    ("log", "damage"),
    [
        *(("metrics.jsonl", damage) for damage in (remove, lambda path: os.truncate(path, 0), lose_a_line)),
        *(("events.jsonl", damage) for damage in (remove, lose_a_line)),
        *(("rollouts", damage) for damage in (remove, remove_one)),
        ("evals.jsonl", lose_a_line),
    ],
)
@pytest.mark.parametrize("when", ["killed", "running"])
def test_a_log_with_a_hole_is_refused_and_named_unless_accepted(
    log: str,
    damage: Callable[[Path], None],
    when: str,
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also one that was damaged while the run went on: a checkpoint notes what was written, not what is left of it."""
    recipe, run_dir = recipe_with(checkpoints={"every_steps": 1}), tmp_path / "run"
    if when == "running":
        original = Training.after_step

        def damaged(self: Training, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            if self.position.step == 4:
                damage(run_dir / log)
                (run_dir / "rollouts").mkdir(exist_ok=True)

        monkeypatch.setattr(Training, "after_step", damaged)
    run_until(monkeypatch, recipe, run_dir, 14)
    monkeypatch.undo()
    if when == "killed":
        damage(run_dir / log)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    assert main(["train", "--resume", str(run_dir)]) == 2
    assert f"{run_dir / log} " in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path in before} == before
    assert pipeline.resume(run_dir, accept_logs=True)
    assert "logs_accepted" in (run_dir / "events.jsonl").read_text()
    assert pipeline.resume(run_dir)
    pipeline.train(recipe, tmp_path / "whole")
    assert state_digest(run_dir) == state_digest(tmp_path / "whole")


def test_a_finished_run_notes_the_logs_that_were_accepted(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    pipeline.train(recipe_with(), tmp_path / "run")
    before = state_digest(tmp_path / "run")
    lose_a_line(tmp_path / "run" / "metrics.jsonl")
    assert pipeline.resume(tmp_path / "run", accept_logs=True)
    assert pipeline.resume(tmp_path / "run")
    assert state_digest(tmp_path / "run") == before


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_with(checkpoints={"every_steps": 3, "keep_best": False})
    pipeline.train(recipe, tmp_path / "whole")
    run_until(monkeypatch, recipe, tmp_path / "killed", 3)
    assert len(metrics_lines(tmp_path / "killed")) == 2
    assert pipeline.resume(tmp_path / "killed")
    assert whole_result(tmp_path / "killed") == whole_result(tmp_path / "whole")
