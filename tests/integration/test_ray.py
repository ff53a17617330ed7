"""Two machines of a Ray cluster, both of them this one: the run is that of one rank, and what dies is survived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import ConfigError, make_recipe
from groupwise.config.recipe import dump_toml
from groupwise.distributed.ray_cluster import Rank, RayRanks
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from groupwise.workers import Answer, Limits, Outcome, WorkerPool
from groupwise.workers.ray_hosts import RayPool, spread_workers
from tests.integration.conftest import metrics_lines
from tests.integration.ray_task import BlindRank, echo_or_lose_host
from tests.integration.test_ranks import RL, assert_close, recipe_table
from tests.waiting import wait_until

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.extras

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster with two nodes of one CPU each: ranks and workers must use both."""
    from ray.cluster_utils import Cluster

    before = os.environ.copy()
    os.environ.update(ENVIRONMENT)
    nodes = Cluster()
    try:
        for label in "ab":
            nodes.add_node(
                num_cpus=1,
                num_gpus=0,
                object_store_memory=80 * 2**20,
                include_dashboard=False,
                env_vars={"NODE_LABEL": label},
            )
        nodes.wait_for_nodes()
        yield nodes.address
    finally:
        nodes.shutdown()
        os.environ.clear()
        os.environ.update(before)


def table_for(seen_in: Path | str, seconds: float = 0.02) -> dict[str, Any]:
    options = {"seen_in": str(seen_in), "seconds": seconds}
    task = {"name": "tests.integration.ray_task:SeenLetters", "options": options}
    return recipe_table({"stages": [RL], "task": task, "verifier": {"workers": 2}})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    assert pipeline.train(make_recipe(table_for("")), run_dir)
    return run_dir


class Driver:
    """`groupwise train … --ray --ray-ranks 2` on the cluster."""

    def __init__(self, cluster: str, folder: Path, *arguments: object) -> None:
        self._output = folder / "output.txt"
        command = [sys.executable, "-m", "groupwise", "train", *map(str, arguments)]
        with self._output.open("w") as file:
            self.process = subprocess.Popen(
                [*command, "--ray", "--ray-ranks", "2", "--ray-address", cluster],
                env=os.environ | ENVIRONMENT,
                cwd=folder,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> tuple[int, str]:
        status = self.process.wait(timeout=120)
        return status, self._output.read_text()


def start_slowly(cluster: str, folder: Path) -> tuple[Driver, Path]:
    """A run that has done two of its steps, each of which takes a while."""
    (folder / "recipe.toml").write_text(dump_toml(table_for("", seconds=0.3)))
    driver = Driver(cluster, folder, folder / "recipe.toml", "--run-dir", folder / "run")
    metrics = folder / "run" / "metrics.jsonl"

    def has_begun() -> bool:
        return driver.process.poll() is not None or (metrics.exists() and len(metrics.read_text().splitlines()) >= 2)

    assert wait_until(has_begun, 100), driver.wait()
    assert driver.process.poll() is None, driver.wait()
    return driver, folder / "run"


def processes(title: str) -> set[int]:
    """Ray titles its processes by what they run."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if title in path.read_text():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def assert_goes_on_alone(run_dir: Path, alone: Path) -> None:
    assert CheckpointStore(run_dir / "checkpoints", 9).newest_valid() is not None
    assert pipeline.resume(run_dir)
    assert_close(run_dir, alone)


def test_two_ranks_on_two_nodes_are_one_rank(cluster: str, alone: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    (tmp_path / "recipe.toml").write_text(dump_toml(table_for(seen)))
    status, output = Driver(cluster, tmp_path, tmp_path / "recipe.toml", "--run-dir", tmp_path / "run").wait()
    assert status == 0, output
    assert_close(tmp_path / "run", alone)
    assert f"Finished: {tmp_path / 'run'}" in output
    for step in range(1, 6):
        assert f"step {step}/5" in output
    assert "ranks: 2, on machines: 2; verifier workers: 4, on: 2" in output
    labels = [path.name[0] for path in seen.iterdir()]
    assert {label: labels.count(label) for label in "ab"} == {"a": 2, "b": 2}
    assert not list((tmp_path / "run").glob(".seen-by-all*"))


def test_a_rank_that_is_killed_ends_the_run_with_the_reason(cluster: str, alone: Path, tmp_path: Path) -> None:
    driver, run_dir = start_slowly(cluster, tmp_path)
    (started,) = [event for event in Run(run_dir).events() if event["kind"] == "started"]
    (other,) = processes("ray::Rank") - {started["pid"]}
    os.kill(other, signal.SIGKILL)
    status, output = driver.wait()
    assert status == 1
    assert "groupwise: rank 1 on " in output
    assert "its process died" in output
    assert "--resume" in output
    assert [event["kind"] for event in Run(run_dir).events()][-1] == "rank_lost"
    assert wait_until(lambda: not processes("ray::Rank") and not processes("ray::WorkerHost"), 20)
    status, output = Driver(cluster, tmp_path, "--resume", run_dir).wait()
    assert status == 0, output
    assert_close(run_dir, alone)


def test_a_signal_to_the_driver_stops_and_saves(cluster: str, alone: Path, tmp_path: Path) -> None:
    driver, run_dir = start_slowly(cluster, tmp_path)
    driver.process.send_signal(signal.SIGTERM)
    status, output = driver.wait()
    assert status == 1, output
    assert f"Stopped and saved. Resume with:\ngroupwise train --resume {run_dir}" in output
    (stopped,) = [event for event in Run(run_dir).events() if event["kind"] == "stopped"]
    assert stopped["step"] == len(metrics_lines(run_dir)) < 5
    assert_goes_on_alone(run_dir, alone)


def test_a_driver_that_is_killed_leaves_nothing_running(cluster: str, alone: Path, tmp_path: Path) -> None:
    driver, run_dir = start_slowly(cluster, tmp_path)
    (started,) = [event for event in Run(run_dir).events() if event["kind"] == "started"]
    assert len(processes("ray::Rank")) == 2
    assert len(processes("ray::WorkerHost")) == 4
    assert len(processes("groupwise.workers.supervisor")) >= 4
    driver.process.kill()
    driver.process.wait()
    for title in ("ray::Rank", "ray::WorkerHost", "ray::Desk", "groupwise.workers.supervisor"):
        assert wait_until(lambda title=title: not processes(title), 30), title  # type: ignore[misc]
    # Its title goes first, and the lock with the rest of it.
    assert wait_until(lambda: not Path(f"/proc/{started['pid']}").exists(), 20)
    assert_goes_on_alone(run_dir, alone)


def test_a_folder_that_cannot_be_shared_is_refused(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(dump_toml(table_for("")))
    (tmp_path / "file").write_text("")
    status, output = Driver(cluster, tmp_path, tmp_path / "recipe.toml", "--run-dir", tmp_path / "file" / "run").wait()
    assert status == 2, output
    assert f"--run-dir {tmp_path / 'file' / 'run'}: cannot be written on" in output


def test_bad_input_is_told_once_as_by_one_process(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(dump_toml(table_for("") | {"model": {"path": "./no-such-model"}}))
    status, output = Driver(cluster, tmp_path, tmp_path / "recipe.toml", "--run-dir", tmp_path / "run").wait()
    assert status == 2, output
    assert output.count("groupwise: ") == 1
    assert "no-such-model" in output
    assert "Traceback" not in output


@pytest.fixture
def connected(cluster: str) -> Iterator[None]:
    ray.init(address=cluster, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.mark.usefixtures("connected")
def test_a_folder_that_is_not_seen_everywhere_is_refused(tmp_path: Path) -> None:
    make = [ray.remote(num_cpus=0)(kind) for kind in (Rank, Rank, BlindRank)]
    ranks = RayRanks([kind.remote() for kind in make], None, {"CPU": 0})
    with pytest.raises(
        ConfigError, match=r"is not visible on [0-9.]+; choose a folder on a disk that all machines share"
    ):
        ranks.check_folder(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


@pytest.fixture
def ray_pool(connected: None) -> Iterator[RayPool]:
    nodes = {node["NodeID"]: 0.0 for node in ray.nodes() if node["Alive"]}
    (shares,) = spread_workers(1, 2, nodes)
    pool = RayPool(echo_or_lose_host, shares, Limits(seconds=0.5, wall_seconds=20))
    yield pool
    pool.close()


def ask(pool: RayPool | WorkerPool, shared: str, items: list[Any]) -> list[tuple[Outcome, Any, str]]:
    half = len(items) // 2
    tickets = [pool.submit(shared, items[:half]), pool.submit(shared, items[half:])]
    answers: list[Answer] = [answer for ticket in tickets for answer in pool.answers(ticket)]
    return [(answer.outcome, answer.value, answer.detail) for answer in answers]


def test_answers_are_those_of_a_pool_on_this_machine(ray_pool: RayPool) -> None:
    items = [*range(40), "raise", "hang", "text", *range(40)]
    with WorkerPool(echo_or_lose_host, 2, Limits(seconds=0.5, wall_seconds=20)) as pool:
        expected = ask(pool, "x", items)
    assert ask(ray_pool, "x", items) == expected


def test_items_of_a_lost_host_are_done_by_another(ray_pool: RayPool, tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")
    items = [*range(20), "once", *range(20)]
    assert ask(ray_pool, flag, items) == [(Outcome.DONE, [flag, item], "") for item in items]
    assert Path(flag).exists()
    # The lost one was replaced: its place is not empty from then on.
    assert ask(ray_pool, flag, items) == [(Outcome.DONE, [flag, item], "") for item in items]


def test_an_item_that_loses_every_host_is_an_error_and_others_are_right(ray_pool: RayPool, tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")
    items = [*range(20), "always", *range(20)]
    answers = ask(ray_pool, flag, items)
    outcome, value, detail = answers[20]
    assert (outcome, value) == (Outcome.DIED, None)
    assert "3 hosts of its worker were lost" in detail
    answers[20] = (Outcome.DONE, [flag, "always"], "")
    assert answers == [(Outcome.DONE, [flag, item], "") for item in items]
    assert ask(ray_pool, flag, [1, 2]) == [(Outcome.DONE, [flag, item], "") for item in (1, 2)]
