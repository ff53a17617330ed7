"""How a run is doing, from its files; which runs there are; in what their recipes differ."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from groupwise.runs import RunLock, RunLog, layout
from groupwise.runs.results import RESULT
from groupwise.web.dashboard import library as library_module
from groupwise.web.dashboard.library import Library
from groupwise.web.dashboard.recipes import difference, flatten
from groupwise.web.dashboard.state import describe, read_summary, state_of
from tests.factories import make_eval


def state(path: Path) -> tuple[str, str]:
    return state_of(path, read_summary(path))


def test_states(tmp_path: Path, sample: Any) -> None:
    path = tmp_path / "run"
    log = sample.run(path, num_steps=1)
    assert state(path)[0] == "failed", "it was started, and nobody holds its lock"
    with RunLock(path):
        assert state(path) == ("running", "")
        log.write_event("finished", step=1)
        assert state(path) == ("running", ""), "until it lets go of the run"
    assert state(path) == ("finished", "")
    log.write_event("resumed", step=1)
    log.write_event("stopped", step=1)
    log.write_event("checkpoint", name="000001")
    assert state(path)[0] == "stopped"
    log.write_event("rank_lost", step=1, reason="rank 3 is gone")
    assert state(path) == ("failed", "rank 3 is gone")


def test_a_killed_trainer_is_no_running_one(tmp_path: Path, sample: Any) -> None:
    path = tmp_path / "run"
    sample.run(path, num_steps=1)
    code = f"import os; from groupwise.runs import RunLock; RunLock({str(path)!r}).__enter__(); os._exit(9)"
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert (path / layout.LOCK).read_text()
    found, reason = state(path)
    assert found == "failed"
    assert "ended without a reason" in reason


def test_a_run_that_has_only_just_begun(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunLock(path):
        found = describe(path, read_summary(path))
    assert (found["state"], found["step"], found["phase"], found["best"]) == ("running", 0, None, None)
    assert state(path) == ("failed", "it ended before its first step")


def test_progress_and_phases(tmp_path: Path, sample: Any) -> None:
    path = tmp_path / "run"
    sample.run(path, num_steps=4)
    with RunLock(path):
        found = describe(path, read_summary(path))
    assert (found["step"], found["planned_steps"], found["stage"], found["task"]) == (4, 10, "grpo", "countdown")
    assert found["phase"]["seconds"] == {"sample": 1.0, "step": 2.0, "eval": 0.5}
    assert (found["step_s"], found["left_s"], found["reward"]) == (2.5, 15.0, 0.4)
    assert 0 <= found["phase"]["ago_s"] < 100
    assert describe(path, read_summary(path))["left_s"] is None


def test_damaged_files_do_not_hide_a_run(tmp_path: Path, sample: Any) -> None:
    path = tmp_path / "run"
    sample.run(path, num_steps=1)
    with open(path / layout.METRICS, "ab") as file:
        file.write(
            b'\x00\x00\n{"step":"two"}\n{"step":2,"stage":"grpo","metrics":{"time/step_s":NaN}, "stage_step": 2}\n{"st'
        )
    known = dataclasses.asdict(make_eval(2, 0.5))
    (path / layout.EVALS).write_text('{"step":1}\n' + json.dumps(known | {"low": None}) + "\n")
    (path / layout.RECIPE).write_text("not = [toml")
    (path / layout.INFO).write_text("[1]")
    found = describe(path, read_summary(path))
    assert (found["step"], found["task"], found["fingerprint"], found["stages"]) == (2, None, None, [])
    assert found["best"] == {"step": 2, "pass_at_1": 0.5, "low": None, "high": 0.0}


def names(library: Library) -> list[str]:
    library._looked_at = None
    return sorted(run.name for run in library.look()[0])


def make_run(path: Path) -> None:
    RunLog(path).write_recipe("name = 'x'")


def test_runs_are_found_and_go(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    make_run(tmp_path / "sweep/runs/arm/seed-0")
    make_run(tmp_path / "a/b/c/d/too-deep")
    make_run(tmp_path / ".hidden")
    make_run(tmp_path / "one/checkpoints/inside")
    (tmp_path / "loop").symlink_to(tmp_path)
    library = Library([tmp_path])
    assert names(library) == ["one", "sweep/runs/arm/seed-0"]
    identity = next(run for run in library.look()[0] if run.name == "one").id
    make_run(tmp_path / "later")
    assert names(library) == ["later", "one", "sweep/runs/arm/seed-0"]
    (tmp_path / "later" / layout.RECIPE).unlink()
    assert names(library) == ["one", "sweep/runs/arm/seed-0"]
    found = library.get(identity)
    assert found is not None
    assert found.name == "one"
    assert library.get("f" * 12) is None


def test_links_out_of_the_folder_are_followed_only_if_told(tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere/secret")
    root = tmp_path / "runs"
    make_run(root / "one")
    (root / "inside").symlink_to(root / "one")
    (root / "outside").symlink_to(tmp_path / "elsewhere/secret")
    (root / "circle").symlink_to(root / "circle")
    library = Library([root])
    assert names(library) == ["one"]
    (warning,) = library.look()[1]
    assert "outside: a link to outside of" in warning
    assert "--follow-links" in warning
    assert names(Library([root], follow_links=True)) == ["one", "secret"]
    (tmp_path / "link").symlink_to(root)
    assert names(Library([tmp_path / "link"])) == ["one"], "the folder that is named may be a link"


def test_several_roots_and_one_name(tmp_path: Path) -> None:
    make_run(tmp_path / "x/run")
    make_run(tmp_path / "y/run")
    assert names(Library([tmp_path / "x/run", tmp_path / "x"])) == ["run"], "the same run twice is one"
    assert names(Library([tmp_path / "x", tmp_path / "y"])) == ["x/run", "y/run"]
    first, second = names(Library([tmp_path / "x/run", tmp_path / "y/run"]))
    assert first != second
    assert first.startswith("run (")
    library = Library([tmp_path / "not-yet"])
    assert "does not exist" in library.look()[1][0]


def test_a_whole_disk_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "MAX_FOLDERS", 5)
    for number in range(10):
        (tmp_path / f"folder-{number}").mkdir()
    assert "give one below it" in Library([tmp_path]).look()[1][0]


ONE = {
    "seed": 0,
    "task": {"name": "countdown", "options": {}},
    "stages": [{"algorithm": "sft", "steps": 5}, {"algorithm": "grpo", "clip": {"high": float("inf")}, "steps": 10}],
}


def test_flat_keys() -> None:
    assert flatten(ONE) == {
        "seed": 0,
        "task.name": "countdown",
        "task.options": {},
        "stages": ["sft", "grpo"],
        "stages.sft.algorithm": "sft",
        "stages.sft.steps": 5,
        "stages.grpo.algorithm": "grpo",
        "stages.grpo.clip.high": "inf",
        "stages.grpo.steps": 10,
    }
    assert list(flatten({"stages": [{"algorithm": "grpo"}, {"algorithm": "grpo"}]})) == [
        *("stages", "stages.grpo.algorithm", "stages.grpo-1.algorithm")
    ]
    assert flatten({"stages": "damaged"}) == {}


def test_what_differs() -> None:
    other = {**ONE, "seed": 1, "stages": [{"algorithm": "grpo", "steps": 10, "clip": {"high": 0.2}}]}
    assert difference(ONE, ONE) == {}
    assert difference(ONE, other) == {
        "seed": [0, 1],
        "stages": [["sft", "grpo"], ["grpo"]],
        "stages.sft.algorithm": ["sft", None],
        "stages.sft.steps": [5, None],
        "stages.grpo.clip.high": ["inf", 0.2],
    }


def test_sweeps_results_and_refused_recipes_are_no_runs(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    with RunLock(sweep):  # as while it runs
        for name in (layout.SWEEP, layout.RECIPE):
            (sweep / name).write_text("")
        for seed in (0, 1):
            RunLog(sweep / "runs" / "base" / f"seed-{seed}").write_recipe('name = "x"\n')
        with RunLock(tmp_path / "evals" / "one"):
            (tmp_path / "evals" / "one" / RESULT).write_text("{}")
        with RunLock(tmp_path / "refused"):
            pass
        with RunLock(tmp_path / "being-set-up"):
            found = {run.name for run in Library([tmp_path]).look()[0]}
            assert found == {"being-set-up", "sweep/runs/base/seed-0", "sweep/runs/base/seed-1"}
        assert {run.name for run in Library([sweep]).look()[0]} == {"runs/base/seed-0", "runs/base/seed-1"}
