"""`import groupwise as gw`, used as a newcomer would: train on rows with a function, look, resume, evaluate, export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.runs.curves import CurvesFigure

MODEL = {
    "path": "tiny-qwen3",
    "device": "cpu",
    "tiny": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "context_tokens": 128,
    },
}
ROWS = [{"prompt": f"Say {number}.", "wanted": "abcdefgh"[number % 8]} for number in range(12)]
SMALL = {"steps": 2, "problems_per_step": 2, "rollouts_per_problem": 4, "max_new_tokens": 6, "progress": False}
QUIET = {"evaluation.num_problems": 4, "checkpoints.every_steps": 1}


def even(completion: str, row: dict[str, Any]) -> float:
    """The share of even bytes, and something of the row."""
    data = completion.encode(errors="replace")
    return sum(byte % 2 == 0 for byte in data) / max(1, len(data)) + 0.01 * ord(row["wanted"])


def train(folder: Path, **changes: Any) -> gw.Run:
    settings = {**QUIET, **changes.pop("settings", {})}
    keywords: dict[str, Any] = {"data": ROWS, "reward": even, **SMALL, **changes}
    return gw.train(MODEL, folder, settings=settings, **keywords)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> gw.Run:
    return train(tmp_path_factory.mktemp("api") / "first")


def test_rows_and_a_function_are_all_it_takes(run: gw.Run) -> None:
    assert run.status == "finished"
    assert [record.step for record in run.steps()] == [1, 2]
    verdicts = {score.verdict for scored in run.rollouts() for score in scored.scores}
    assert gw.Verdict.ERROR not in verdicts
    assert run.recipe["task"]["reward"] == f"{__name__}:even"
    assert run.info["verifier"].startswith("even/")
    assert "share of even bytes" in (run.path / "rewards" / "even.py").read_text()
    held_out = [json.loads(line) for line in (run.path / "data" / "held_out.jsonl").read_text().splitlines()]
    train_rows = [json.loads(line) for line in (run.path / "data" / "train.jsonl").read_text().splitlines()]
    assert (len(train_rows), len(held_out)) == (11, 1)
    assert sorted(train_rows + held_out, key=lambda row: row["prompt"]) == sorted(ROWS, key=lambda row: row["prompt"])


def test_a_run_shows_what_it_has(run: gw.Run) -> None:
    columns = run.metrics()
    assert list(columns["step"]) == [1, 2]
    assert all(0 <= value <= 3 for value in columns["reward/mean"])
    assert len(run.evals()) == 2
    assert len(run.rollouts()) == len(run.rollouts(2)) == 2
    figure = run.plot()
    assert isinstance(figure, CurvesFigure)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert "finished, 2 steps" in run._repr_html_()
    assert str(run.path) in repr(run)


def test_it_is_read_and_used_by_the_other_functions(run: gw.Run, tmp_path: Path) -> None:
    assert gw.report(run, tmp_path / "report.html").stat().st_size > 10_000
    assert isinstance(gw.diagnose(run), tuple)
    found = gw.evaluate(run, n=2, k=(1, 2), out=tmp_path / "evaluation")
    assert set(found.scores) >= {"pass@1", "pass@2"}
    assert "pass@2" in repr(found)
    again = gw.evaluate(run, n=2, k=(1, 2), out=tmp_path / "evaluation")
    assert again.scores == found.scores
    compared = gw.compare(found, found)
    assert compared.difference == 0
    assert (gw.export(run, tmp_path / "model", checkpoint="last") / "model.safetensors").is_file()
    assert len(gw.sample(tmp_path / "model", "Say 1.", n=2, max_new_tokens=4)) == 2


def test_a_model_without_a_task_is_no_recipe() -> None:
    with pytest.raises(gw.ConfigError, match=r"If 'some/model' is a model, give it data= .* or task="):
        gw.train("some/model")
    with pytest.raises(gw.ConfigError, match=r"either data= .* or task="):
        gw.train(MODEL, data=ROWS, task="countdown")
    with pytest.raises(gw.ConfigError, match="reward= needs a model"):
        gw.train("demo", reward=even)


def test_rows_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(gw.ConfigError, match="data, row 2: expected a dict"):
        train(tmp_path / "run", data=[{"prompt": "a"}, "b"])
    with pytest.raises(gw.ConfigError, match="too few to hold out"):
        train(tmp_path / "run", data=ROWS[:1])
    with pytest.raises(gw.ConfigError, match="row 1: has a value that JSON cannot represent"):
        train(tmp_path / "run", data=[{"prompt": "a", "x": {1}}, {"prompt": "b", "x": {2}}])


def test_a_run_directory_is_used_once(run: gw.Run) -> None:
    with pytest.raises(gw.ConfigError, match=r"has a run already; continue it with groupwise\.resume"):
        train(run.path)


def test_a_recipe_by_name_with_settings_is_what_the_command_trains(tmp_path: Path) -> None:
    settings = {
        "model.tiny": MODEL["tiny"],
        "stages.sft.steps": 1,
        "stages.grpo.steps": 1,
        "stages.grpo.problems_per_step": 2,
        "evaluation.num_problems": 2,
        "task.options.num_train": 20,
        "task.options.num_held_out": 4,
    }
    recipe = gw.load_recipe("demo", settings)
    run = gw.train(recipe, tmp_path / "run", progress=False)
    assert [record.stage for record in run.steps()] == ["sft", "grpo"]
    assert gw.plan(recipe, "h200").fits


def test_a_task_object_of_ones_own(tmp_path: Path) -> None:
    from tests.integration.toy_task import EvenLetters

    run = train(tmp_path / "run", data=None, reward=None, task=EvenLetters(num_train=6))
    assert run.recipe["task"]["name"] == "tests.integration.toy_task:EvenLetters"
    assert run.recipe["task"]["options"]["num_train"] == 6


SCRIPT = """
import sys
import groupwise as gw

ROWS = [{"prompt": f"Say {number}.", "wanted": number % 2} for number in range(12)]

def even(completion, row):
    data = completion.encode(errors="replace")
    return sum(byte % 2 == row["wanted"] for byte in data) / max(1, len(data))

if sys.argv[1] == "train":
    run = gw.train(MODEL, "run", data=ROWS, reward={even: 1.0, (lambda completion, row: 0.5): 0.1}, **SMALL)
elif sys.argv[1] == "other":
    def even(completion, row):
        return 0.0
    run = gw.resume("run", reward={even: 1.0, (lambda completion, row: 0.5): 0.1}, progress=False)
else:
    run = gw.resume("run", reward={even: 1.0, (lambda completion, row: 0.5): 0.1}, progress=False)
print(run.status, len(run.steps()), any(s.is_error for g in run.rollouts() for s in g.scores))
"""


def test_functions_of_a_script_reach_the_workers_and_are_needed_to_resume(tmp_path: Path) -> None:
    """The functions of `__main__` are sent by value. The run directory keeps their source, and never runs it."""
    script = SCRIPT.replace("MODEL", repr(MODEL)).replace("**SMALL", f"settings={QUIET!r}, **{SMALL!r}")
    (tmp_path / "script.py").write_text(script)

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=200, env=dict(os.environ)
        )

    started = call("script.py", "train")
    assert started.stdout.splitlines()[-1:] == ["finished 2 False"], started.stderr
    recipe = gw.Run(tmp_path / "run").recipe
    assert recipe["task"]["reward"] == {"local:even": 1.0, "local:lambda": 0.1}
    assert 'row["wanted"]' in (tmp_path / "run" / "rewards" / "even.py").read_text()
    # Take the last step away, so that there is something to resume.
    newest = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1]
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    resumed = call("script.py", "resume")
    assert resumed.stdout.splitlines()[-1:] == ["finished 2 False"], resumed.stderr
    by_command = call("-m", "groupwise", "train", "--resume", "run")
    assert by_command.returncode == 2
    assert "groupwise.resume(run, reward=even)" in " ".join(by_command.stderr.split())
    changed = call("script.py", "other")
    assert "verifier" in changed.stderr
    assert changed.returncode == 1
