"""Lists as JSON, and exit statuses that shells know."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from groupwise.cli import algorithms, main
from groupwise.config import ALGORITHMS, find_recipe, load_recipe, make_recipe
from groupwise.tasks import list_tasks


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    recipes = printed(capsys, "recipes")
    assert {"name": "demo", "stages": ["sft", "grpo"]}.items() <= next(
        r for r in recipes if r["name"] == "demo"
    ).items()
    assert {row["name"]: row["summary"] for row in printed(capsys, "tasks")} == list_tasks()
    algorithms = {row["name"]: row["sets"] for row in printed(capsys, "algorithms")}
    assert set(algorithms) == {*ALGORITHMS, "sft"}
    assert algorithms["grpo"] == ALGORITHMS["grpo"]


def test_one_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    table = printed(capsys, "recipes", "math-hard-dapo")

    def from_json(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: from_json(inner) for key, inner in value.items()}
        return float(value) if value in ("inf", "-inf") else value

    table["stages"] = [from_json(stage) for stage in table["stages"]]
    assert make_recipe(table) == load_recipe(find_recipe("math-hard-dapo"))
    options = printed(capsys, "tasks", "countdown")
    assert {"key": "max_numbers", "type": "integer, from 2 to 4", "default": "4", "meaning": ""} in options


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    # More than a pipe holds, so that writing fails.
    code = (
        "import sys; from groupwise import cli; from groupwise.cli import algorithms\n"
        "def talk(options): print('x' * 10**6); return 0\n"
        "algorithms.run = talk\n"
        "sys.exit(cli.main(['algorithms']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert errors == b""


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(options: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(algorithms, "run", interrupt)
    assert main(["algorithms"]) == 130
    assert capsys.readouterr().err == "groupwise: interrupted\n"
