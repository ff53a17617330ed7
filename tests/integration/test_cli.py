"""The command line: what it lists, what it prints, and that asking for help is quick."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.base.text_layout import percent
from groupwise.cli import main, make_parser
from groupwise.cli.describe import pages
from groupwise.cli.train import train_here
from groupwise.config import ALGORITHMS, Recipe
from groupwise.runs.reader import Run
from groupwise.training import pipeline, setup
from groupwise.training.setup import RunRequest
from groupwise.types import StepRecord

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_help_does_not_load_torch() -> None:
    start = time.monotonic()
    code = "import sys; from groupwise.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
    assert time.monotonic() - start < 10


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    assert "demo" in capsys.readouterr().out
    assert main(["recipes", "demo"]) == 0
    assert 'algorithm = "grpo"' in capsys.readouterr().out
    assert main(["tasks"]) == 0
    output = capsys.readouterr().out
    for name in ("format-copy", "countdown", "gsm8k", "math", "math-hard", "arithmetic", "jsonl", "module:Class"):
        assert name in output
    assert main(["tasks", "countdown"]) == 0
    assert "max_numbers = 4" in capsys.readouterr().out
    assert main(["algorithms"]) == 0
    output = capsys.readouterr().out
    for name in ("sft", *ALGORITHMS):
        assert name in output


def test_the_reference_pages_are_not_stale() -> None:
    for name, text in pages().items():
        assert (REFERENCE / name).read_text() == text, f"{name} is stale: run `make docs`"


def test_train_prints_a_line_a_step_and_where_the_run_is(
    recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from groupwise.config import dump_toml, to_table

    (tmp_path / "recipe.toml").write_text(dump_toml(to_table(recipe_with())))
    arguments = ["train", str(tmp_path / "recipe.toml"), "--run-dir", str(tmp_path / "run"), "--set", "seed=3"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert f"Finished: {tmp_path / 'run'}" in captured.out
    for step in range(1, 7):
        assert f"step {step}/6" in captured.err
    assert "\x1b" not in captured.err
    assert setup.recipe_of(tmp_path / "run").seed == 3


@pytest.mark.parametrize("key", ["model.path=./no-such-model", "verifier.process=no_such:function"])
def test_a_run_that_is_refused_leaves_no_folder(
    key: str, recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from groupwise.config import dump_toml, to_table

    (tmp_path / "recipe.toml").write_text(dump_toml(to_table(recipe_with())))
    run_dir = tmp_path / "run"
    assert main(["train", str(tmp_path / "recipe.toml"), "--run-dir", str(run_dir), "--set", key]) == 2
    assert key.partition("=")[2] in capsys.readouterr().err
    assert not run_dir.exists()


def test_an_interrupted_demo_ends_like_any_other(
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    run_dir = tmp_path / "my runs" / "demo"
    make = StepRecord.__init__

    def interrupt(self: StepRecord, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        if self.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(StepRecord, "__init__", interrupt)
        assert train_here(RunRequest(recipe_with(name="demo"), run_dir)) == 1
    resume = capsys.readouterr().out.splitlines()[-1]
    assert resume == f"groupwise train --resume '{run_dir}'"
    monkeypatch.setenv("COLUMNS", "120")
    assert main(shlex.split(resume)[1:]) == 0
    shown = capsys.readouterr().out
    last = Run(run_dir).evals()[-1]
    assert percent(last.pass_at_1) in shown
    assert "even 1000" in shown
    assert (run_dir / "curves.png").read_bytes().startswith(b"\x89PNG")
    following = shown.splitlines()[-4:]
    assert [shlex.split(line)[:3] for line in following] == [
        ["groupwise", verb, str(run_dir)] for verb in ("report", "watch", "eval", "export")
    ]
    for line in following:
        make_parser().parse_args(shlex.split(line)[1:])


def test_a_run_is_sampled_from_at_its_best(
    recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.train(recipe_with(checkpoints={"every_steps": 2, "keep_last": 9}), tmp_path / "run")

    def logprobs(*more: str) -> list[float]:
        assert main(["sample", str(tmp_path / "run"), "even 1000", "--n", "2", "--seed", "3", "--json", *more]) == 0
        return [json.loads(line)["logprob"] for line in capsys.readouterr().out.splitlines()]

    assert logprobs() == logprobs("--checkpoint", "best")
    assert logprobs("--checkpoint", "last") != logprobs("--checkpoint", "step-000002")
    assert main(["sample", str(tmp_path / "run"), "even 1000", "--max-new-tokens", "128"]) == 2
    assert "128 tokens of context" in capsys.readouterr().err
