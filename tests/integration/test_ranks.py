"""Two ranks are one rank: the same losses, metrics and weights to fp32's rounding, whoever wrote the checkpoint."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.config import make_recipe
from groupwise.config.build import to_table
from groupwise.config.presets import ALGORITHMS
from groupwise.config.recipe import dump_toml
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from tests.factories import GRPO, SFT, TINY_MODEL
from tests.integration.conftest import eval_lines, metrics_lines

ROOT = Path(__file__).parents[2]
RL = GRPO | {"steps": 5, "kl": {"coefficient": 0.05}, "microbatch_tokens": 40}
ONE_PASS = {"epochs_per_batch": 1, "problems_per_update": 4}
"""For the algorithms without a ratio."""


def stage_of(algorithm: str) -> dict[str, Any]:
    return RL | {"algorithm": algorithm} | (ONE_PASS if algorithm in ("rloo", "gr_reinforce") else {})


RECIPES: dict[str, dict[str, Any]] = {
    **{f"{name}-full".replace("++", "-pp"): {"stages": [stage_of(name)]} for name in ALGORITHMS},
    **{
        f"{name}-lora".replace("++", "-pp"): {"stages": [stage_of(name)], "model": TINY_MODEL | {"lora": {"rank": 2}}}
        for name in ALGORITHMS
    },
    "sft-grpo-best": {
        "stages": [SFT, RL | {"steps": 2, "start_from": "best"}],
        "model": TINY_MODEL | {"ema_decay": 0.5},
        "evaluation": {
            "every_steps": 1,
            "num_problems": 5,
            "rollouts_per_problem": 3,
            "temperature": 1.0,
            "use_ema": True,
        },
    },
    # One problem a step: one of the two ranks has nothing to draw and, with large microbatches, nothing to learn from.
    "idle-rank": {"stages": [RL | {"problems_per_step": 1, "problems_per_update": 1, "microbatch_tokens": 10_000}]},
}


def recipe_table(changes: Mapping[str, Any]) -> dict[str, Any]:
    table = {
        "name": "test",
        "model": TINY_MODEL,
        "task": {"name": "tests.integration.toy_task:EvenLetters"},
        "evaluation": {"every_steps": 0, "num_problems": 5},
        "checkpoints": {"every_steps": 2, "keep_last": 9},
        "logging": {"tokens_every_steps": 2},
    }
    return to_table(make_recipe(table | dict(changes)))


def command(*arguments: object, ranks: int = 2) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(port)]
    return [sys.executable, *launcher, *map(str, arguments)]


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def newest(run_dir: Path) -> dict[str, dict[str, torch.Tensor]]:
    store = CheckpointStore(run_dir / "checkpoints", 9)
    path = store.newest_valid()
    assert path is not None
    return store.load(path)[0]


def assert_close(left: Path, right: Path) -> None:
    ours, theirs = metrics_lines(left), metrics_lines(right)
    assert len(ours) == len(theirs) > 0
    for one, two in zip(ours, theirs, strict=True):
        assert one["metrics"] == pytest.approx(two["metrics"], rel=1e-4, abs=1e-6)
    for one, two in zip(eval_lines(left), eval_lines(right), strict=True):
        assert one.pop("stage") == two.pop("stage")
        assert one == pytest.approx(two, rel=1e-4, abs=1e-6)
    assert Run(left).token_steps() == Run(right).token_steps()
    for step in Run(left).token_steps():
        for one, two in zip(Run(left).tokens(step), Run(right).tokens(step), strict=True):
            assert one.problem_id == two.problem_id
            for tokens, other in zip(one.rollouts, two.rollouts, strict=True):
                assert (tokens is None) == (other is None)
                if tokens is not None and other is not None:
                    assert tokens.pieces == other.pieces
                    assert tokens.ratios == pytest.approx(other.ratios, rel=1e-3, abs=1e-3)
    groups, others = newest(left), newest(right)
    assert groups.keys() == others.keys()
    for name, tensors in groups.items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(tensor, others[name][key], rtol=1e-3, atol=1e-5, msg=f"{left}: {name} {key}")


def stand_at(run_dir: Path, copy: Path, step: int) -> None:
    """A copy of a run that goes no further than a checkpoint of `step`."""
    shutil.copytree(run_dir, copy)
    for path in (copy / "checkpoints").iterdir():
        if path.is_dir() and path.name > f"step-{step:06d}~":
            shutil.rmtree(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(folder of runs on one rank, of runs on two, of runs that were begun on one and ended on two)."""
    root = tmp_path_factory.mktemp("ranks")
    alone, together, mixed, recipes = (root / name for name in ("alone", "together", "mixed", "recipes"))
    recipes.mkdir()
    mixed.mkdir()
    for name, changes in RECIPES.items():
        table = recipe_table(changes)
        (recipes / f"{name}.toml").write_text(dump_toml(table))
        assert pipeline.train(make_recipe(table), alone / name)
    stand_at(alone / "grpo-full", mixed / "grpo-full", 2)
    main = Path(__file__).with_name("ranks_main.py")
    done = subprocess.run(
        command(main, recipes, together, mixed), env=ENVIRONMENT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return alone, together, mixed


@pytest.mark.parametrize("name", RECIPES)
def test_two_ranks_are_one(name: str, runs: tuple[Path, Path, Path]) -> None:
    alone, together, _ = runs
    assert_close(alone / name, together / name)
    updates = [line["metrics"].get("policy/grad_norm", 0.0) for line in metrics_lines(alone / name)]
    assert max(updates) > 0


def test_a_run_of_one_rank_goes_on_with_two(runs: tuple[Path, Path, Path]) -> None:
    alone, _, mixed = runs
    assert_close(mixed / "grpo-full", alone / "grpo-full")


def test_a_run_of_two_ranks_goes_on_with_one(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    alone, together, _ = runs
    stand_at(together / "dapo-lora", tmp_path / "dapo-lora", 2)
    assert pipeline.resume(tmp_path / "dapo-lora")
    assert_close(tmp_path / "dapo-lora", alone / "dapo-lora")


def run_with_signal(name: str, folder: Path) -> tuple[int, Path]:
    """Rank 1 gets a signal at the end of step 3; (exit status, the run)."""
    recipes, together, nothing = (folder / part for part in ("recipes", "together", "nothing"))
    recipes.mkdir()
    nothing.mkdir()
    (recipes / "grpo-full.toml").write_text(dump_toml(recipe_table(RECIPES["grpo-full"])))
    main = Path(__file__).with_name("ranks_main.py")
    environment = ENVIRONMENT | {name: "3"}
    done = subprocess.run(
        command(main, recipes, together, nothing), env=environment, capture_output=True, text=True, timeout=120
    )
    return done.returncode, together / "grpo-full"


def test_a_rank_that_dies_ends_the_run_with_the_reason(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    status, run_dir = run_with_signal("SIGKILL", tmp_path)
    assert status != 0
    # Said in the log: the launcher may end this rank before it gets to print its last words.
    (event,) = [event for event in Run(run_dir).events() if event["kind"] == "rank_lost"]
    assert event["reason"].startswith("another rank is gone")
    assert "--resume" in event["reason"]
    assert pipeline.resume(run_dir)
    assert_close(run_dir, runs[0] / "grpo-full")


def test_a_rank_that_is_asked_to_stop_stops_all(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    status, run_dir = run_with_signal("SIGTERM", tmp_path)
    assert status == 0
    assert [event["step"] for event in Run(run_dir).events() if event["kind"] == "stopped"] == [3]
    assert len(metrics_lines(run_dir)) == 3
    assert pipeline.resume(run_dir)
    assert_close(run_dir, runs[0] / "grpo-full")


def test_ranks_that_have_said_their_last_word_end_without_a_crash() -> None:
    """Gloo's threads may still hold that word when Python shuts down."""
    main = Path(__file__).with_name("leaving_main.py")
    done = subprocess.run(command(main, ranks=6), env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
