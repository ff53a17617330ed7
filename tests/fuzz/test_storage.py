"""Faults of storage × files of a run: what a resumed run says of each, and that it never waits and never forgets."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, strategies

import groupwise as gw
from groupwise.models.checkpoint_store import CheckpointError
from groupwise.runs import RunLogError, RunReadError
from groupwise.training import pipeline
from groupwise.training.training import Training
from tests.factories import GRPO, tiny_recipe
from tests.fuzz import examples

Fault: TypeAlias = Callable[[Path, Path], None]
"""(file, the same file at the checkpoint before) → the file is damaged."""


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def deleted(path: Path, older: Path) -> None:
    remove(path)


def emptied(path: Path, older: Path) -> None:
    files = list(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        os.truncate(file, 0)


def truncated(path: Path, older: Path) -> None:
    path = min(path.iterdir()) if path.is_dir() else path
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path, older: Path) -> None:
    path = min(path.iterdir()) if path.is_dir() else path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x04
    path.write_bytes(data)


def of_another_kind(path: Path, older: Path) -> None:
    is_folder = path.is_dir()
    remove(path)
    path.touch() if is_folder else path.mkdir()


def a_fifo(path: Path, older: Path) -> None:
    remove(path)
    os.mkfifo(path)


def unreadable(path: Path, older: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    path.chmod(0)


def older_copy(path: Path, older: Path) -> None:
    remove(path)
    shutil.copytree(older, path) if older.is_dir() else shutil.copy(older, path)


FAULTS = (deleted, emptied, truncated, flipped, of_another_kind, a_fifo, unreadable, older_copy)
CHECKPOINT = ("weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
LOGS = ("metrics.jsonl", "evals.jsonl", "events.jsonl", "rollouts", "tokens", "eval_rollouts")


REFUSED = (gw.ConfigError, RunLogError, RunReadError, CheckpointError)


class Killed(BaseException):
    """Not an Exception, which the trainer would log."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its third step, and beside it what it was after the first."""
    folder = tmp_path_factory.mktemp("storage")
    stage = GRPO | {"problems_per_update": 4, "epochs_per_batch": 1, "kl": {"coefficient": 0.1}}
    evaluation = {"every_steps": 1, "num_problems": 2}
    recipe = tiny_recipe(stages=[stage], checkpoints={"every_steps": 1, "keep_last": 2}, evaluation=evaluation)
    after_step = Training.after_step

    def dying(self: Training, *arguments: Any, **named: Any) -> None:
        if self.position.step == 1:
            self.log.write_event("between")  # or both checkpoints would note the same events
        if self.position.step == 2:
            raise Killed
        after_step(self, *arguments, **named)
        if self.position.step == 1:
            shutil.copytree(folder / "run", folder / "older")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "after_step", dying)
        with pytest.raises(Killed):
            pipeline.train(recipe, folder / "run")
    # As a trainer leaves it that is killed and cannot even release its lock.
    (folder / "run" / "run.lock").write_text('{"pid": 1, "host": "elsewhere"}\n')
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the run. Resumed, it is restored and not trained further."""
    monkeypatch.setattr(pipeline, "run_stages", lambda training: None)
    shutil.copytree(original / "run", tmp_path / "run")
    yield tmp_path / "run"
    for path in tmp_path.rglob("*"):
        path.chmod(0o700)


def step_of(run: Path) -> int:
    return int(gw.Run(run).events()[-1]["step"])


def content(run: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() for name in LOGS for path in [run / name, *(run / name).glob("*")] if path.is_file()
    }


def test_an_unharmed_run_is_resumed_without_a_word(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    gw.resume(run, progress=False)
    assert (step_of(run), caplog.text) == (2, "")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", CHECKPOINT)
def test_a_damaged_checkpoint_is_passed_over_and_named(
    name: str, fault: Fault, run: Path, original: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest = run / "checkpoints" / "step-000002"
    fault(newest / name, original / "older" / "checkpoints" / "step-000001" / name)
    gw.resume(run, progress=False)
    assert f"{newest} is passed over: " in caplog.text
    assert name in caplog.text or name == "manifest.json"  # an older manifest says that another file was changed
    assert f"{run} continues from step-000001: the steps after it are repeated" in caplog.text
    assert step_of(run) == 1


def test_a_missing_checkpoint_is_named(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    newest = run / "checkpoints" / "step-000002"
    shutil.rmtree(newest)
    gw.resume(run, progress=False)
    assert f"{newest} is passed over: it is missing" in caplog.text
    assert f"{run} continues from step-000001: the steps after it are repeated" in caplog.text
    caplog.clear()
    gw.resume(run, progress=False)
    assert (step_of(run), caplog.text) == (1, "")
    gw.resume(run, progress=False)
    assert (step_of(run), caplog.text) == (1, "")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", LOGS)
def test_a_damaged_log_is_refused_and_named(name: str, fault: Fault, run: Path, original: Path) -> None:
    fault(run / name, original / "older" / name)
    before = content(run)
    with pytest.raises(REFUSED) as raised:
        gw.resume(run, progress=False)
    assert str(run / name) in str(raised.value)
    # At most half a line was cut off.
    assert all(data.startswith(content(run)[path]) for path, data in before.items())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_without_any_checkpoint_is_not_begun_again(fault: Fault, run: Path) -> None:
    for path in (run / "checkpoints").glob("step-*"):
        fault(path / "state.json", path / "manifest.json")
    before = content(run)
    said = r"has logs up to step 3, but no checkpoint(.|\n)*state\.json(.|\n)*--start-over"
    with pytest.raises(gw.ConfigError, match=said):
        gw.resume(run, progress=False)
    assert all(content(run)[path].startswith(data) for path, data in before.items())  # events have become more
    gw.resume(run, start_over=True, progress=False)
    assert gw.Run(run).steps() == []
    assert content(run / "old-1").keys() == {run / "old-1" / path.relative_to(run) for path in before}


TAGS = "checkpoints/tags.json"
OTHERS = [
    *(("recipe.toml", fault, "refused") for fault in FAULTS if fault is not older_copy),
    ("run.json", deleted, "said"),
    *(("run.json", fault, "refused") for fault in (emptied, truncated, of_another_kind, a_fifo, unreadable)),
    *(("run.lock", fault, "nothing") for fault in (deleted, emptied, truncated, flipped)),
    *(("run.lock", fault, "refused") for fault in (of_another_kind, a_fifo, unreadable)),
    (TAGS, deleted, "nothing"),
    (TAGS, of_another_kind, "refused"),
    *((TAGS, fault, "said") for fault in (emptied, truncated, flipped, a_fifo, unreadable)),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "fault", "answer"), OTHERS)
def test_other_files_are_named_or_made_again(
    name: str, fault: Fault, answer: str, run: Path, original: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = run / name
    fault(path, path)
    if answer == "refused":
        with pytest.raises(REFUSED) as raised:
            gw.resume(run, progress=False)
        assert str(run) in str(raised.value)
        assert path.name in str(raised.value)
        return
    gw.resume(run, progress=False)
    assert step_of(run) == 2
    assert (str(path) in caplog.text) == (answer == "said")
    assert (run / TAGS).read_bytes() == (original / "run" / TAGS).read_bytes()


@examples(25)
@given(data=strategies.data())
def test_any_bytes_in_any_file_are_harmless_said_or_refused(data: strategies.DataObject, original: Path) -> None:
    """What is not refused goes on from a checkpoint, with the logs up to it as they were."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "run_stages", lambda training: None)
        run = Path(folder) / "run"
        shutil.copytree(original / "run", run)
        before = content(run)
        path = data.draw(strategies.sampled_from(sorted(path for path in run.rglob("*") if path.is_file())))
        old = path.read_bytes()
        first = data.draw(strategies.integers(0, len(old)))
        last = data.draw(strategies.integers(first, len(old)))
        path.write_bytes(old[:first] + data.draw(strategies.binary(max_size=40)) + old[last:])
        try:
            gw.resume(run, progress=False)
        except REFUSED:
            return
        assert step_of(run) >= 1
        assert [record.step for record in gw.Run(run).steps()] == list(range(1, step_of(run) + 1))
        for log in ("metrics.jsonl", "evals.jsonl"):
            assert before[run / log].startswith((run / log).read_bytes())
