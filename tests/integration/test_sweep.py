"""A sweep from its file to its findings: real runs of a tiny model, in processes of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from groupwise.cli import main
from groupwise.config import Recipe, dump_toml, to_table
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from tests.factories import GRPO, SFT

from .conftest import metrics_lines

ROOT = Path(__file__).parents[2]
SPEC = """
name = "tiny"
recipe = "recipe.toml"
seeds = [7]
[[knobs]]
name = "epochs"
key = "stages.0.epochs_per_batch"
values = [2, 1]
"""


def test_a_sweep_runs_and_its_runs_are_those_of_train(
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = recipe_with(stages=[GRPO | {"steps": 2}])
    (tmp_path / "recipe.toml").write_text(dump_toml(to_table(recipe)))
    (tmp_path / "sweep.toml").write_text(SPEC)
    # The task is the tests' own: the processes have to find it.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    # As many threads as here, so that the numbers can be compared to the last bit.
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    folder = tmp_path / "out"
    assert main(["sweep", str(tmp_path / "sweep.toml"), "--dir", str(folder), "--json", "--jobs", "2"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["counts"]["finished"] == 2
    runs = {name: Run(folder / "runs" / name / "seed-7") for name in ("base", "epochs-1")}
    assert [len(run.steps()) for run in runs.values()] == [2, 2]
    assert {row["arm"]: row["score"] for row in table["runs"]} == {
        name: run.evals()[-1].pass_at_1 for name, run in runs.items()
    }
    assert table["findings"]
    assert Path(table["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    # An arm is what `groupwise train` makes of the same keys.
    alone = recipe_with(stages=[GRPO | {"steps": 2, "epochs_per_batch": 1}], seed=7)
    assert pipeline.train(alone, tmp_path / "alone")
    assert metrics_lines(folder / "runs" / "epochs-1" / "seed-7") == metrics_lines(tmp_path / "alone")


def test_two_recipes_side_by_side(
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = {"short": [GRPO | {"steps": 2}], "long": [SFT | {"steps": 1}, GRPO | {"steps": 2}]}
    for name, made in stages.items():
        (tmp_path / f"{name}.toml").write_text(dump_toml(to_table(recipe_with(stages=made))))
    spec = 'name = "two"\nrecipe = "short.toml"\n[[arms]]\nname = "a"\n[[arms]]\nname = "b"\nrecipe = "long.toml"\n'
    (tmp_path / "sweep.toml").write_text(spec)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    arguments = ["sweep", str(tmp_path / "sweep.toml"), "--dir", str(tmp_path / "out"), "--json"]
    assert main([*arguments, "--jobs", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["finished"] == 2
    assert [len(Run(tmp_path / "out" / "runs" / arm / "seed-0").steps()) for arm in "ab"] == [2, 3]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Base recipe of b" in page
    assert main([*arguments, "--analyse-only"]) == 0
