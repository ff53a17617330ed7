"""Golden runs: the numbers of short trainings, bit for bit as they were kept; an old run that must stay usable.

A change that is meant to move numbers runs `python -m tests.golden.runs --write` and says so.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from groupwise import cli
from tests.golden.runs import NAMES, OLD_RUN, expected_of, run_apart

on_x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the kept numbers are of x86-64 processors")


@on_x86_64
@pytest.mark.parametrize("name", NAMES)
def test_a_golden_run_has_the_numbers_that_were_kept(name: str, tmp_path: Path) -> None:
    assert json.loads(run_apart(name, str(tmp_path / name))) == expected_of(name)


@on_x86_64
def test_stopped_inside_a_batch_and_resumed_it_has_the_numbers_of_the_whole_run(tmp_path: Path) -> None:
    assert json.loads(run_apart("resumed", str(tmp_path / "run"))) == expected_of("two-epochs")


@on_x86_64
def test_a_run_that_an_older_version_stopped_is_resumed_with_the_numbers_that_were_kept(tmp_path: Path) -> None:
    """Not to that of "old": its first steps were computed by a version with other numbers."""
    assert json.loads(run_apart("old-resumed", str(tmp_path / "run"))) == expected_of("old-resumed")


def test_a_run_of_an_older_version_is_still_reported_diagnosed_audited_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "old"
    shutil.copytree(OLD_RUN, run)
    assert cli.main(["report", str(run)]) == 0
    assert "Held-out pass@1 0.0 % → 0.0 %" in capsys.readouterr().out
    assert "countdown" in (run / "report.html").read_text()
    assert cli.main(["doctor", str(run), "--json"]) in (0, 1)
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert [(stage["name"], stage["num_steps"]) for stage in stages] == [("sft", 3), ("grpo", 1)]
    assert cli.main(["audit", str(run)]) == 0
    assert cli.main(["export", str(run), str(tmp_path / "model"), "--checkpoint", "last"]) == 0
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_a_run_of_an_older_version_is_still_shown_in_the_dashboard(tmp_path: Path) -> None:
    shutil.copytree(OLD_RUN, tmp_path / "old")
    command = [sys.executable, "-m", "groupwise", "watch", str(tmp_path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            (shown,) = told["runs"]
            assert shown["name"] == "old"
            with urllib.request.urlopen(f"{told['url']}api/runs/{shown['id']}/metrics", timeout=100) as answer:
                assert [line["step"] for line in json.load(answer)["lines"]] == [1, 2, 3, 4]
        finally:
            process.terminate()
