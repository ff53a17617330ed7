"""Commands that look at several runs: one that cannot be read is told, and the others are looked at."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import groupwise as gw
from groupwise.cli import main
from groupwise.runs import layout

OLD_RUN = Path(__file__).parents[2] / "golden" / "old_run"


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """A run whose events are a FIFO, and one that is whole."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    for path in (bad, good):
        shutil.copytree(OLD_RUN, path, ignore=shutil.ignore_patterns(layout.CHECKPOINTS))
    for name in (layout.EVENTS, layout.EVALS, f"{layout.EVAL_ROLLOUTS}/000004.jsonl"):
        (bad / name).unlink()
        os.mkfifo(bad / name)
    return str(bad), str(good)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("report", "BAD", "GOOD", "--out", "OUT.html"), "good"),
        (("reach", "BAD", "GOOD", "--scores", "0.1", "--json"), '"rows": [{'),
        (("compare", "GOOD", "BAD", "GOOD"), "no clear difference"),
    ],
)
def test_the_others_are_shown(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], shown: str
) -> None:
    places = {"BAD": runs[0], "GOOD": runs[1], "OUT.html": str(tmp_path / "out.html")}
    assert main([places.get(word, word) for word in command]) == 2
    printed = capsys.readouterr()
    assert "is a FIFO, not a regular file" in printed.err
    assert shown in printed.out + ((tmp_path / "out.html").read_text() if command[0] == "report" else "")


@pytest.mark.parametrize("command", ["report", "doctor", "audit", "reach"])
def test_alone_it_is_refused(runs: tuple[str, str], capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, runs[0], *(["--scores", "0.1"] if command == "reach" else [])]) == 2
    assert "is a FIFO, not a regular file" in capsys.readouterr().err


def test_a_report_from_python_warns(runs: tuple[str, str], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="FIFO"):
        page = gw.report(runs, tmp_path / "out.html")
    (error,) = json.loads(page.with_suffix(".json").read_text())["sections"]["unread"]["errors"]
    assert "evals.jsonl is a FIFO" in error
