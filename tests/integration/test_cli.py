"""The command line: what it lists, what it prints, and that asking for help is quick."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from groupwise.cli import main
from groupwise.cli.demo import show_result
from groupwise.cli.describe import pages
from groupwise.config import Recipe
from groupwise.runs.reader import Run
from groupwise.training import pipeline

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
    for name in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++", "gr_reinforce", "sft"):
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
    assert pipeline.recipe_of(tmp_path / "run").seed == 3


def test_the_demo_shows_scores_completions_and_a_picture(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    pipeline.train(recipe_with(), tmp_path / "run")
    console = Console(record=True, width=120)
    show_result(Run(tmp_path / "run"), console, seconds=1.0)
    text = console.export_text()
    last = Run(tmp_path / "run").evals()[-1]
    assert f"{last.pass_at_1:.1%}" in text
    assert "even 1000" in text
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
