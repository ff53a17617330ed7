"""The runner, with a small program in place of `groupwise train`: failures, stops, limits, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from groupwise.runs.files import read_lines
from groupwise.runs.reader import Run
from groupwise.sweeps import run_jobs as runner_module
from groupwise.sweeps.arms import resolve
from groupwise.sweeps.folder import SweepJob, jobs_of, prepare
from groupwise.sweeps.run_jobs import JobProgress, JobRunner, Placement, StopSwitch
from groupwise.sweeps.spec import parse_spec
from groupwise.sweeps.sweep_records import Sweep
from tests.waiting import wait_until

FAKE_TRAIN = (sys.executable, str(Path(__file__).with_name("fake_train.py")))
SPEC = """
name = "small"
recipe = "demo"
seeds = [0, 1]
set = { stages.grpo.optimizer.learning_rate = 1e-4 }
[[arms]]
name = "one"
[[arms]]
name = "two"
set = { stages.grpo.epochs_per_batch = 2 }
"""


class Told:
    """A watcher that keeps what it is told, and does something when a condition holds."""

    def __init__(self, when: Callable[[], bool] = lambda: False, then: Callable[[], None] = lambda: None) -> None:
        self.changes: list[tuple[str, str]] = []
        self._when, self._then = when, then

    def changed(self, now: JobProgress) -> None:
        self.changes.append((f"{now.job.arm.name}/seed-{now.job.seed}", now.status))

    def passed(self, runs: Sequence[JobProgress]) -> None:
        if self._when():
            self._when = lambda: False
            self._then()


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    made = resolve(parse_spec(SPEC), tmp_path)
    prepare(made, tmp_path)
    return made


@pytest.fixture
def jobs(sweep: Sweep, tmp_path: Path) -> list[SweepJob]:
    return jobs_of(sweep, tmp_path, sweep.arms)


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda **runs: monkeypatch.setenv(
        "FAKE_TRAIN", json.dumps({name.replace("_", "/seed-"): how for name, how in runs.items()})
    )


def runner(folder: Path, **options: Any) -> JobRunner:
    return JobRunner(folder, train=FAKE_TRAIN, **options)


def statuses(runs: Sequence[JobProgress]) -> list[str]:
    return [run.status for run in runs]


def starts(job: SweepJob) -> list[dict[str, Any]]:
    return [entry for _, entry in read_lines(job.run_dir / "starts")]


def has_begun(job: SweepJob) -> Callable[[], bool]:
    return lambda: (job.run_dir / "starts").exists()


def test_runs_go_seed_by_seed_with_the_keys_of_their_arm(jobs: list[SweepJob], tmp_path: Path) -> None:
    told = Told()
    runs = runner(tmp_path, watcher=told).run(jobs)
    assert statuses(runs) == ["finished"] * 4
    assert [run.score for run in runs] == [1.0] * 4
    began = [name for name, status in told.changes if status == "running"]
    assert began == ["one/seed-0", "two/seed-0", "one/seed-1", "two/seed-1"]
    recipe = Run(jobs[3].run_dir).recipe
    assert recipe["seed"] == 1
    assert recipe["stages"][1]["epochs_per_batch"] == 2
    assert recipe["stages"][1]["optimizer"]["learning_rate"] == 1e-4
    assert Run(jobs[2].run_dir).recipe["stages"][1]["epochs_per_batch"] == 1


def test_a_failing_run_does_not_end_the_others_and_is_tried_anew(
    jobs: list[SweepJob], tmp_path: Path, behave: Callable[..., None]
) -> None:
    behave(one_0="fail")
    runs = runner(tmp_path).run(jobs)
    assert statuses(runs) == ["failed", "finished", "finished", "finished"]
    assert runs[0].error == "OddError: the reason"
    (entry,) = [entry for _, entry in read_lines(tmp_path / "failures.jsonl")]
    assert (entry["arm"], entry["seed"], entry["exit_code"]) == ("one", 0, 3)
    assert entry["last_lines"] == ["Traceback …", "OddError: the reason"]
    behave()
    assert statuses(runner(tmp_path).run(jobs)) == ["finished"] * 4
    assert [len(starts(job)) for job in jobs] == [2, 1, 1, 1]
    assert starts(jobs[0])[1]["arguments"] == ["--resume", str(jobs[0].run_dir)]


def test_asked_to_stop_it_tells_the_runs_and_goes_on_when_asked_again(
    jobs: list[SweepJob], tmp_path: Path, behave: Callable[..., None]
) -> None:
    behave(two_0="wait")
    before = signal.getsignal(signal.SIGTERM)
    stop = StopSwitch()
    told = Told(has_begun(jobs[1]), lambda: os.kill(os.getpid(), signal.SIGTERM))
    runs = runner(tmp_path, stop=stop, watcher=told).run(jobs)
    assert stop.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert statuses(runs) == ["finished", "stopped", "waiting", "waiting"]
    assert jobs[1].state == "begun"
    assert not (tmp_path / "failures.jsonl").exists()
    assert statuses(runner(tmp_path).run(jobs)) == ["finished"] * 4
    assert [event["kind"] for event in Run(jobs[1].run_dir).events()] == ["started", "stopped", "resumed", "finished"]
    assert len(starts(jobs[0])) == 1


def test_when_the_time_is_up_nothing_new_begins(
    jobs: list[SweepJob], tmp_path: Path, behave: Callable[..., None]
) -> None:
    behave(one_0="wait")
    now = [0.0]
    stop = StopSwitch(limit_s=60, clock=lambda: now[0])
    told = Told(has_begun(jobs[0]), lambda: now.__setitem__(0, 61.0))
    runs = runner(tmp_path, stop=stop, watcher=told).run(jobs)
    assert stop.is_time_up
    assert stop.signal is None
    assert statuses(runs) == ["stopped", "waiting", "waiting", "waiting"]
    assert Run(jobs[0].run_dir).events()[-1]["kind"] == "stopped"


def test_a_run_that_does_not_listen_is_killed_when_asked_twice(
    jobs: list[SweepJob], tmp_path: Path, behave: Callable[..., None]
) -> None:
    behave(one_0="deaf")

    def ask_twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    told = Told(has_begun(jobs[0]), ask_twice)
    stop = StopSwitch()
    assert statuses(runner(tmp_path, stop=stop, watcher=told).run(jobs[:1])) == ["stopped"]
    assert stop.is_urgent
    assert not is_alive(starts(jobs[0])[0]["pid"])


def test_a_slot_that_is_free_while_others_stop_stays_free(
    jobs: list[SweepJob], tmp_path: Path, behave: Callable[..., None]
) -> None:
    behave(one_0="wait", two_0="deaf")

    class AskAgain(Told):
        def passed(self, runs: Sequence[JobProgress]) -> None:
            super().passed(runs)
            if ("one/seed-0", "stopped") in self.changes:
                os.kill(os.getpid(), signal.SIGTERM)

    told = AskAgain(lambda: has_begun(jobs[0])() and has_begun(jobs[1])(), lambda: os.kill(os.getpid(), signal.SIGTERM))
    runs = runner(tmp_path, placement=Placement(at_once=2), watcher=told).run(jobs)
    assert statuses(runs) == ["stopped", "stopped", "waiting", "waiting"]


def test_checkpoints_are_kept_unless_they_shall_not_be(
    jobs: list[SweepJob], tmp_path: Path, behave: Callable[..., None]
) -> None:
    behave(two_0="fail")
    for job in jobs[:3]:
        (job.run_dir / "checkpoints" / "step-000001").mkdir(parents=True)
    runner(tmp_path).run(jobs[:1])
    runner(tmp_path, keeps_checkpoints=False).run(jobs[:3])
    assert [(job.run_dir / "checkpoints").exists() for job in jobs[:3]] == [True, True, False]


def test_two_at_once_share_the_cores(
    jobs: list[SweepJob], tmp_path: Path, behave: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(runner_module, "num_cores", lambda: 6)
    behave(one_0="meet", two_0="meet")
    runs = runner(tmp_path, placement=Placement(at_once=2)).run(jobs[:2])
    assert statuses(runs) == ["finished"] * 2
    assert [starts(job)[0]["threads"] for job in jobs[:2]] == ["3", "3"]


def test_an_error_of_the_sweep_itself_leaves_no_run_behind(
    jobs: list[SweepJob], tmp_path: Path, behave: Callable[..., None]
) -> None:
    behave(one_0="deaf")

    def fail() -> None:
        raise RuntimeError("the sweep broke")

    with pytest.raises(RuntimeError, match="the sweep broke"):
        runner(tmp_path, watcher=Told(has_begun(jobs[0]), fail)).run(jobs)
    assert not is_alive(starts(jobs[0])[0]["pid"])


def test_a_sweep_that_is_killed_leaves_no_run_behind(
    jobs: list[SweepJob], tmp_path: Path, behave: Callable[..., None]
) -> None:
    behave(one_0="wait")
    code = (
        "import sys; from pathlib import Path\n"
        "from groupwise.sweeps.folder import jobs_of; from groupwise.sweeps.sweep_records import read_sweep\n"
        "from groupwise.sweeps.run_jobs import JobRunner\n"
        "folder = Path(sys.argv[1]); sweep = read_sweep(folder)\n"
        "JobRunner(folder, train=sys.argv[2:]).run(jobs_of(sweep, folder, sweep.arms))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *FAKE_TRAIN])
    assert wait_until(has_begun(jobs[0]))
    process.kill()
    process.wait()
    # The run was told in the sweep's place: it has saved.
    assert wait_until(lambda: Run(jobs[0].run_dir).events()[-1]["kind"] == "stopped")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_run_of_another_time_that_cannot_be_read_is_a_failure_of_its_own(
    jobs: list[SweepJob], tmp_path: Path
) -> None:
    jobs[0].run_dir.mkdir(parents=True)
    (jobs[0].run_dir / "recipe.toml").write_text("not a recipe")
    (jobs[0].run_dir / "events.jsonl").write_text("not JSON\n")
    assert jobs[0].state == "begun"
    assert statuses(runner(tmp_path).run(jobs[:2])) == ["failed", "finished"]


def test_gpus_are_taken_in_turns_and_threads_are_left_as_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    placement = Placement(at_once=4, devices=("2", "5"))
    environments = [placement.environment(slot) for slot in range(4)]
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in environments] == ["2", "5", "2", "5"]
    assert {environment["OMP_NUM_THREADS"] for environment in environments} == {"7"}
