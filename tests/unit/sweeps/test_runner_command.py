"""`groupwise sweep`, with a small program in place of `groupwise train`: what it prints and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.cli import main
from groupwise.runs.lock import RunLock
from groupwise.sweeps import run_jobs
from groupwise.sweeps.display import Display
from groupwise.sweeps.run_jobs import JobProgress
from groupwise.sweeps.spec import SWEEPS

FAKE_TRAIN = (sys.executable, str(Path(__file__).with_name("fake_train.py")))
SPEC = """
name = "small"
recipe = "recipe.toml"
seeds = [0, 1]
[[knobs]]
name = "epochs"
key = "stages.grpo.epochs_per_batch"
values = [1, 2]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_jobs, "TRAIN", FAKE_TRAIN)
    demo = (SWEEPS.parent / "demo.toml").read_text()
    Path("recipe.toml").write_text(demo.replace('path = "tiny-qwen3"', 'path = "tiny-qwen3"\ndevice = "cpu"'))
    Path("sweep.toml").write_text(SPEC)
    return "sweep.toml"


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = main(["sweep", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_dry_run_shows_the_arms_and_writes_nothing(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["sweep", file, "--dry-run", "--set", "stages.grpo.steps=3"]) == 0
    output = capsys.readouterr().out
    assert "small: 2 arms × 2 seeds = 4 runs of recipe.toml" in output
    assert "epochs-2  stages.grpo.epochs_per_batch=2" in output
    assert "base      the recipe itself" in output
    assert "No plan: model.device is the CPU" in output
    assert not Path("sweeps").exists()
    Path("recipe.toml").write_text((SWEEPS.parent / "demo.toml").read_text())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["sweep", file, "--dry-run"]) == 2
    assert "No plan: --gpu: torch sees no GPU here" in capsys.readouterr().out
    status, table = result(capsys, file, "--dry-run", "--arms", "epochs-2", "--gpu", "h200")
    assert status == 0
    (arm,) = table["arms"]
    assert arm["set"] == {"stages.grpo.epochs_per_batch": 2}
    assert arm["fits"] is True
    assert arm["run_s"] > 0


def test_from_one_sitting_to_the_next(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TRAIN", json.dumps({"epochs-2/seed-1": "fail"}))
    assert main(["sweep", file, "--arms", "base"]) == 0
    assert "finished" in capsys.readouterr().out
    status, table = result(capsys, file, "--jobs", "2")
    assert status == 1
    assert table["counts"] == {"finished": 3, "failed": 1, "stopped": 0, "running": 0, "waiting": 0}
    (failed,) = [run for run in table["runs"] if run["status"] == "failed"]
    assert (failed["arm"], failed["seed"], failed["error"]) == ("epochs-2", 1, "OddError: the reason")
    assert Path(table["report"]).is_file()
    assert main(["sweep", file]) == 1
    output = capsys.readouterr().out
    assert "OddError: the reason" in output
    assert "Resume with the same command" in output
    monkeypatch.delenv("FAKE_TRAIN")
    status, table = result(capsys, file)
    assert status == 0
    assert table["findings"]
    report = Path(table["report"])
    report.unlink()
    for given in (file, "sweeps/small"):
        status, analysis = result(capsys, given, "--analyse-only")
        assert status == 0
        assert analysis["findings"] == table["findings"]
    assert report.is_file()


def test_an_edited_recipe_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", file, "--arms", "base"]) == 0
    recipe = Path("recipe.toml")
    recipe.write_text(recipe.read_text().replace("3e-4", "2e-4"))
    assert main(["sweep", file]) == 2
    assert "stages.1.optimizer.learning_rate was 0.0003 and is 0.0002" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "epochs-3"], "--arms epochs-3: no such arm; did you mean 'epochs-2'"),
        (["--jobs", "0"], "--jobs = 0"),
        (["--jobs", "some"], "--jobs = 'some'"),
        (["--max-minutes", "0"], "--max-minutes = 0.0: must be above 0"),
        (["--set", "stages.grpo.stesp=1"], "stages.1.stesp: unknown key; did you mean 'steps'"),
        (["--set", "seed=1"], "list the seeds in `seeds`"),
        (["--dry-run", "--analyse-only"], "do not go together"),
        (["--analyse-only"], "is not a sweep"),
        (["--dir", "recipe.toml"], "is a file"),
    ],
)
def test_input_that_cannot_be_used(
    arguments: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", file, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("sweeps/small/sweep.json").exists()


def test_two_sweeps_do_not_write_one_folder(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLock(Path("sweeps/small")):
        assert main(["sweep", file]) == 1
    assert f"is being written by process {os.getpid()}" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_signal_ends_it_with_its_own_status(
    number: int, status: int, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TRAIN", json.dumps({"base/seed-0": "wait"}))
    told: list[int] = []

    def passed(self: Display, runs: Sequence[JobProgress]) -> None:
        if not told and Path("sweeps/small/runs/base/seed-0/starts").exists():
            told.append(number)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Display, "passed", passed)
    assert main(["sweep", file]) == status
    assert main(["sweep", file]) == 0


def test_asking_for_a_sweep_does_not_load_torch(file: str) -> None:
    code = (
        "import sys; from groupwise.cli import main; from groupwise.sweeps import run_jobs\n"
        f"run_jobs.TRAIN = {FAKE_TRAIN!r}\n"
        "assert main(['sweep', 'sweep.toml']) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
