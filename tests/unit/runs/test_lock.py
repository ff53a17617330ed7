from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from groupwise.runs import RunLogError
from groupwise.runs.layout import validate_run_name
from groupwise.runs.lock import RunInUse, RunLock, read_holder
from groupwise.runs.writer import RunLog

HOLD = """
import os, sys, time
from pathlib import Path
from groupwise.runs.lock import RunLock
with RunLock(Path(sys.argv[1])):
    child = os.fork() if sys.argv[2] == "fork" else 0
    if not child:  # the worker tells of itself, and so has run past the fork when it is heard of
        print(os.getpid() if sys.argv[2] == "fork" else 0, flush=True)
    time.sleep(60)
"""


@contextmanager
def holder(run_dir: Path, how: str = "plain") -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run_dir), how], stdout=subprocess.PIPE, text=True)
    child = 0
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        yield process, child
    finally:
        process.kill()
        process.wait()
        if child:
            os.kill(child, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()


def test_a_second_trainer_is_refused_and_told_whom_to_look_for(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        with (
            pytest.raises(RunInUse, match=rf"process {process.pid} on .* or choose another run directory"),
            RunLock(tmp_path),
        ):
            pass
        found = read_holder(tmp_path)
        assert found is not None
        assert (found.pid, found.is_alive) == (process.pid, True)


def test_one_process_cannot_hold_a_run_twice(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(RunInUse), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass
    assert read_holder(tmp_path) is None


def test_an_error_before_anything_is_written_leaves_no_folder(tmp_path: Path) -> None:
    def fail_in(run_dir: Path, file: str = "") -> None:
        with RunLock(run_dir):
            (run_dir / "rollouts").mkdir()
            if file:
                (run_dir / file).touch()
            raise ValueError("mistyped")

    (tmp_path / "existed").mkdir()
    for name, file in (("a/b/new", ""), ("existed/new", ""), ("existed", ""), ("written", "rollouts/000001.jsonl")):
        with pytest.raises(ValueError, match="mistyped"):
            fail_in(tmp_path / name, file)
    with RunLock(tmp_path / "unused"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["existed", "unused", "written"]
    assert not (tmp_path / "existed" / "new").exists()


def test_a_folder_that_was_removed_while_it_was_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_first(descriptor: int, operation: int) -> None:
        (tmp_path / "run.lock").unlink()

    monkeypatch.setattr("groupwise.runs.lock.fcntl.flock", remove_first)
    with pytest.raises(RunInUse, match="another process"), RunLock(tmp_path):
        pass


def test_a_deleted_lock_is_made_again_before_another_trainer_takes_it(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        lock.confirm()
        (tmp_path / "run.lock").unlink()
        lock.confirm()
        with pytest.raises(RunInUse), RunLock(tmp_path):
            pass
        lock.confirm()
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize("is_over", [False, True])
def test_a_run_that_another_trainer_took_is_left_to_it(tmp_path: Path, is_over: bool) -> None:
    with RunLock(tmp_path) as lock:
        (tmp_path / "run.lock").unlink()
        with holder(tmp_path) as (process, _):
            if is_over:
                process.kill()
                process.wait()
            with pytest.raises(RunInUse, match=rf"was replaced while .* process {process.pid} on"):
                lock.confirm()


def test_nothing_is_written_to_a_run_that_another_trainer_took(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        log = RunLog(tmp_path, lock=lock)
        log.write_event("started")
        before = (tmp_path / "events.jsonl").read_bytes()
        (tmp_path / "run.lock").unlink()
        with holder(tmp_path):
            for write in (log.write_event, log.write_recipe):
                with pytest.raises(RunInUse):
                    write("stopped")
    assert (tmp_path / "events.jsonl").read_bytes() == before
    assert not (tmp_path / "recipe.toml").exists()


def test_a_killed_trainer_frees_the_run(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = read_holder(tmp_path)
        assert left is not None
        assert not left.is_alive
        with RunLock(tmp_path):
            pass


def test_a_worker_that_outlives_its_killed_trainer_does_not_keep_the_run(tmp_path: Path) -> None:
    with holder(tmp_path, "fork") as (process, child):
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(child, 0)  # the worker is still there
        with RunLock(tmp_path):
            pass


def test_a_worker_that_ends_does_not_free_its_trainers_run(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(RunInUse), RunLock(tmp_path):
            pass


def test_locks_do_not_leak_descriptors(tmp_path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    with RunLock(tmp_path):
        before = count()
        for _ in range(20):
            with pytest.raises(RunInUse), RunLock(tmp_path):
                pass
        assert count() == before


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    started = time.monotonic()
    with pytest.raises(RunLogError, match=r"run\.lock"), RunLock(tmp_path / "file" / "run"):
        pass
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("name", ["a", "Qwen3-0.6B_countdown.v2", "x" * 64, "...", "-"])
def test_good_run_names(name: str) -> None:
    assert validate_run_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 65, "é", "a\n", "a\x00", "../etc"])
def test_bad_run_names(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        validate_run_name(name)
