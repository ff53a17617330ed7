"""`groupwise plan`: exit status, JSON, and which GPU and speed are taken."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise as gw
from groupwise.cli import main
from groupwise.planner import measure
from groupwise.planner.timing import Speed
from groupwise.tasks import make_task

RECIPE = """
name = "tiny"
model = { path = "tiny-qwen3" }
task = { name = "countdown" }

[[stages]]
algorithm = "grpo"
steps = 3
problems_per_step = 4
rollouts_per_problem = 4
sampling = { max_new_tokens = 64 }
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main(["plan", *arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_the_exit_status_says_whether_it_fits(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, recipe, "--gpu", "4090")
    assert plan["fits"]
    assert plan["stages"][0]["mean_tokens"] == 32
    assert plan["prompt_tokens"] == 128
    assert planned(capsys, recipe, "--gpu", "4090", "--mean-tokens", "50")["stages"][0]["mean_tokens"] == 50
    assert not planned(capsys, recipe, "--gpu", "4090", "--memory-gib", "0.8", status=1)["fits"]
    assert not plan["stages"][0]["most"]["phases"]["sampling"].keys() & {"replica"}
    assert main(["plan", recipe, "--gpu", "4090"]) == 0
    assert "fits: at most" in capsys.readouterr().out


def test_overrides_count(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, recipe, "--gpu", "h200", "--set", "stages.0.steps=7")
    assert plan["stages"][0]["steps"] == 7


def test_prompts_as_the_task_has_them(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, recipe, "--gpu", "h200", "--prompt-tokens", "task")
    # Bytes, but tags are one token; two tokens around each message and two around all.
    problems = make_task("countdown", {}).problems("train")[:256]
    texts = [
        [re.sub("</?(answer|think)>", "~", message.content) for message in problem.messages] for problem in problems
    ]
    lengths = [2 + sum(2 + len(text.encode()) for text in messages) for messages in texts]
    assert plan["prompt_tokens"] == round(sum(lengths) / len(lengths))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--gpu", "h2000"], "--gpu 'h2000': unknown"),
        (["--gpu", "h200", "--measure"], "drop --gpu h200"),
        (["--gpu", "h200", "--memory-gib", "0"], "must be above 0"),
        (["--gpu", "h200", "--ranks", "0"], "--ranks = 0"),
        (["--gpu", "h200", "--prompt-tokens", "many"], "--prompt-tokens 'many'"),
        (["--gpu", "h200", "--prompt-tokens", "0"], "--prompt-tokens = 0"),
        (["--gpu", "h200", "--against", "nowhere.json"], "--against nowhere.json"),
    ],
)
def test_input_that_cannot_be_used(
    recipe: str, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", recipe, *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_without_a_gpu_one_has_to_be_named(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["plan", recipe]) == 2
    assert "torch sees no GPU here; name one: 3090" in capsys.readouterr().err


class Device:
    name = "NVIDIA H200"
    total_memory = 100 << 30


@pytest.fixture
def on_an_h200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Device())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100 << 30, 100 << 30))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("on_an_h200")
def test_measuring_once_is_enough(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample_time(*arguments: str) -> float:
        return float(planned(capsys, recipe, *arguments)["stages"][0]["phases_s"]["sample"])

    before = sample_time()
    monkeypatch.setattr(measure, "speed_of", lambda probed, gpu: Speed(decode=3.0, update=1.0))
    monkeypatch.setattr(measure.measure, "__defaults__", (lambda gpu: None,))
    assert sample_time("--measure") == pytest.approx(3 * before)
    assert sample_time() == pytest.approx(3 * before)
    own = gw.plan(recipe)
    assert own.stages[0].phases_s["sample"] == pytest.approx(3 * before)
    assert sample_time("--gpu", "h200") == pytest.approx(before)  # any H200, not the one that is here
    assert planned(capsys, recipe)["gpu"]["memory_gib"] == 100


def test_against_what_was_measured(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, recipe, "--gpu", "h200", "--mean-tokens", "40")
    stage = plan["stages"][0]
    found = {
        "stage": "grpo",
        "device": "NVIDIA H200",
        "step_s": stage["step_s"],
        "phases_s": stage["phases_s"],
        "mean_tokens": 40.0,
        "peak_bytes": stage["usual"]["peak_bytes"],
    }
    path = tmp_path / "step.json"
    path.write_text(json.dumps(found))
    rows = planned(capsys, recipe, "--against", str(path))["rows"]
    assert [row["difference"] for row in rows] == pytest.approx([0.0] * len(rows))
    path.write_text(json.dumps(found | {"step_s": 2 * stage["step_s"]}))
    assert main(["plan", recipe, "--against", str(path)]) == 1
    assert "NOT within 25 %" in capsys.readouterr().out
    path.write_text(json.dumps(found | {"stage": "other"}))
    assert main(["plan", recipe, "--against", str(path)]) == 2
