"""TensorBoard for real; W&B and trackio against stand-ins that hold their documented signatures."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import ConfigError
from groupwise.runs import RunLog, layout
from groupwise.runs.sinks import SINKS, make_sink, tracked_name

RECIPE = {"model": {"name": "tiny"}}


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator_module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = accumulator_module.EventAccumulator(str(run_dir / "tensorboard"))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path, sample: Any) -> None:
    pytest.importorskip("tensorboard")
    log = RunLog(tmp_path, sinks=[make_sink("tensorboard", tmp_path, "run", RECIPE)])
    log.write_eval(sample.eval(0, pass_at_1=0.25), [])
    log.write_step(sample.step(1, policy__loss=0.5))
    log.write_step(sample.step(2, policy__loss=math.nan))
    log.close()
    found = scalars(tmp_path)
    assert found["eval/pass_at_1"] == [(0, 0.25)]
    assert [step for step, _ in found["reward/mean"]] == [1, 2]
    assert found["policy/loss"][0] == (1, 0.5)
    assert math.isnan(found["policy/loss"][1][1])


def test_tensorboard_forgets_the_steps_that_a_resumed_run_repeats(tmp_path: Path, sample: Any) -> None:
    pytest.importorskip("tensorboard")
    for steps, loss in [((1, 2, 3, 4), 0.25), ((3, 4, 5), 0.75)]:
        sink = make_sink("tensorboard", tmp_path, "run", RECIPE)
        for step in steps:
            sink.write(sample.step(step, policy__loss=loss))
        sink.close()
        # Event files are ordered by the second in their name.
        for number, path in enumerate(sorted((tmp_path / "tensorboard").iterdir(), key=lambda p: p.stat().st_mtime)):
            path.rename(path.with_name(f"events.out.tfevents.{1_700_000_000 + number}.host"))
    assert scalars(tmp_path)["policy/loss"] == [(1, 0.25), (2, 0.25), (3, 0.75), (4, 0.75), (5, 0.75)]


class FakeRun:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.calls.append(("define", name, step_metric))

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        assert all(math.isfinite(value) for value in data.values())
        self.calls.append(("log", data, step))

    def finish(self) -> None:
        self.calls.append(("finish",))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[str]], tuple[FakeRun, dict[str, Any]]]:
    def install(name: str, accepted: list[str]) -> tuple[FakeRun, dict[str, Any]]:
        run, arguments = FakeRun(), {}

        def init(**given: Any) -> FakeRun:
            assert set(given) <= set(accepted)
            arguments.update(given)
            return run

        module = types.ModuleType(name)
        module.init = init  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
        return run, arguments

    return install


def test_wandb_continues_one_run_per_run_directory(tmp_path: Path, sample: Any, fake: Any) -> None:
    run, arguments = fake("wandb", ["project", "name", "id", "dir", "config", "resume"])
    sink = make_sink("wandb", tmp_path / "a", "run", RECIPE)
    sink.write(sample.step(7, policy__loss=math.inf, policy__grad_norm=2.0))
    sink.write_eval(sample.eval(7))
    sink.close()
    assert run.calls[:2] == [("define", "step", None), ("define", "*", "step")]
    assert run.calls[2] == ("log", {"reward/mean": pytest.approx(0.7), "policy/grad_norm": 2.0, "step": 7}, None)
    assert run.calls[3][1]["eval/pass_at_1_low"] == 0.25
    assert run.calls[-1] == ("finish",)
    assert (arguments["name"], arguments["config"], arguments["resume"]) == ("run", RECIPE, "allow")

    first = arguments["id"]
    make_sink("wandb", tmp_path / "a", "run", RECIPE)
    assert arguments["id"] == first
    make_sink("wandb", tmp_path / "b", "run", RECIPE)
    assert arguments["id"] != first


def test_trackio_logs_by_step(tmp_path: Path, sample: Any, fake: Any) -> None:
    run, arguments = fake("trackio", ["project", "name", "config", "resume"])
    sink = make_sink("trackio", tmp_path, "run", RECIPE)
    sink.write(sample.step(7, policy__loss=math.nan))
    sink.write_eval(sample.eval(8))
    sink.close()
    assert arguments == {"project": "groupwise", "name": "run", "config": RECIPE, "resume": "allow"}
    assert run.calls[0] == ("log", {"reward/mean": pytest.approx(0.7)}, 7)
    assert run.calls[1][2] == 8
    assert run.calls[2] == ("finish",)


@pytest.mark.parametrize("name", list(SINKS))
def test_a_missing_package_says_what_to_install(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [_Refuser(name), *sys.meta_path])
    with pytest.raises(ConfigError, match=rf"pip install groupwise\[{name}\]"):
        make_sink(name, tmp_path, "run", RECIPE)


class _Refuser:
    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, full_name: str, *_: Any) -> None:
        if full_name.partition(".")[0] == self.name:
            raise ModuleNotFoundError(f"No module named {full_name!r}", name=full_name)


def test_a_package_with_a_broken_dependency_keeps_its_own_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "trackio.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_there"):
        make_sink("trackio", tmp_path, "run", RECIPE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorbord", "did you mean 'tensorboard'"),
        ("zzz", "known: tensorboard"),
        ("no_such_module:Sink", "no_such_module"),
        ("groupwise.runs.sinks:NoSink", "NoSink"),
    ],
)
def test_an_unknown_sink_is_named(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sink(name, tmp_path, "run", RECIPE)


@pytest.mark.parametrize("name", ["shutil:rmtree", "someones_sinks:remove", "someones_sinks:Half"])
def test_what_is_no_sink_is_not_called(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("someones_sinks")
    module.remove = lambda run_dir, *rest: run_dir.rmdir()  # type: ignore[attr-defined]
    module.Half = type("Half", (), {"__init__": module.remove, "write": print})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "someones_sinks", module)
    with pytest.raises(ConfigError, match=r"logging\.sinks: .*(standard library|not a class with the methods)"):
        make_sink(name, tmp_path, "run", RECIPE)
    assert tmp_path.exists()


def test_trackers_tell_the_runs_of_a_sweep_apart(tmp_path: Path) -> None:
    run_dir = tmp_path / "study" / layout.SWEEP_RUNS / "kl-0.1" / "seed-0"
    run_dir.mkdir(parents=True)
    assert tracked_name(run_dir) == "seed-0"
    (tmp_path / "study" / layout.SWEEP).write_text("{}")
    assert tracked_name(run_dir) == "study-kl-0.1-seed-0"
    assert tracked_name(tmp_path / "mine") == "mine"


def test_a_sink_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class Memory:\n    def __init__(self, *given):\n        self.given = given\n"
    text += "    def write(self, record): ...\n    write_eval = write\n    def close(self): ...\n"
    (tmp_path / "sinks_of_this_folder.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    made: Any = make_sink("sinks_of_this_folder:Memory", tmp_path, "run", RECIPE)
    assert made.given == (tmp_path, "run", RECIPE)
