"""The ranks of a run on a Ray cluster: what `torchrun` does, on machines that Ray provides.

    driver (the command) ──▶ rank × N (an actor each, a GPU or a CPU each) ──▶ the work of a rank, in its main thread
          ▲    │                │
          │    └─ stop ─▶ desk ◀┘ news (an actor beside the driver: busy ranks cannot be called)

A rank gets the environment that `torchrun` would set and runs the same code. Signals to the driver reach every rank as
SIGTERM, as under `torchrun`. A rank that fails ends the others, and the driver reports which and why. Actors belong to
the driver: however it ends, Ray ends them.

This module knows nothing about training. Work is any callable that can be pickled.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from groupwise.base.signals import handling_stops
from groupwise.base.text_layout import last_line
from groupwise.config import ConfigError
from groupwise.distributed.world import RankLost
from groupwise.workers.ray_hosts import ray

Tell = Callable[[Any], None]
"""How a rank reports to the driver."""
Work = Callable[[Tell], Any]

POLL_S = 0.5
GRACE_S = 10.0
"""Time for the other ranks to notice a lost rank and to log it. Then they are ended."""
CONNECT_S = 10.0
ROOM_S = 120.0
"""Time to wait for free resources in the cluster."""
SHARED_FOLDER_S = 10.0
"""Time for a file to become visible on another machine."""


class RankFailed(RuntimeError):
    """A rank ended unexpectedly. The message says which, where and why."""


class ClusterFull(RuntimeError):
    """Ray has no free resources for the ranks."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    node_id: str
    address: str


@dataclass(frozen=True, slots=True)
class RankFailure:
    error: BaseException
    """The exception of the rank, or Ray's own error if its process died."""
    has_died: bool
    """Its process died without an exception."""
    traceback: str = ""


class Rank:
    """One rank, as a Ray actor. Its methods run in its main thread, where signals are handled."""

    def place(self) -> RankPlace:
        return RankPlace(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())

    def offer_port(self) -> int:
        """Return a free port where the other ranks can reach this one."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def write_token(self, folder: Path, name: str) -> str:
        """Write a file. Return why that failed, or "" on success."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def remove_token(self, folder: Path, name: str) -> None:
        (folder / name).unlink()

    def sees_token(self, folder: Path, name: str) -> bool:
        deadline = time.monotonic() + SHARED_FOLDER_S
        while not (is_there := (folder / name).exists()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return is_there

    def run(
        self, environment: Mapping[str, str], folder: str, search_path: Sequence[str], work: bytes, desk: Any
    ) -> Any:
        os.environ.update(environment)
        try:
            os.chdir(folder)
        except OSError as error:
            raise ConfigError(
                f"{folder}: {error.strerror} on {ray.util.get_node_ip_address()}; start the run in a folder that every "
                "machine has under the same path"
            ) from None
        sys.path.extend(path for path in search_path if path not in sys.path)
        threading.Thread(target=_await_stop, args=(desk,), daemon=True).start()
        return pickle.loads(work)(lambda news: ray.get(desk.tell.remote(news)))


def _await_stop(desk: Any) -> None:
    # Without a desk there is no driver, and Ray ends this process.
    with suppress(ray.exceptions.RayError):
        ray.get(desk.stop_asked.remote())
        os.kill(os.getpid(), signal.SIGTERM)


class Desk:
    """A mailbox for news to the driver and for its request to stop."""

    def __init__(self) -> None:
        self._news: list[Any] = []
        self._has_news = asyncio.Event()
        self._stop = asyncio.Event()

    async def tell(self, news: Any) -> None:
        self._news.append(news)
        self._has_news.set()

    async def next_news(self) -> list[Any]:
        await self._has_news.wait()
        return await self.take_news()

    async def take_news(self) -> list[Any]:
        news, self._news = self._news, []
        self._has_news.clear()
        return news

    async def ask_to_stop(self) -> None:
        self._stop.set()

    async def stop_asked(self) -> None:
        await self._stop.wait()


class RayRanks:
    """The ranks, placed and waiting for work."""

    def __init__(self, actors: Sequence[Any], desk: Any, bundle: Mapping[str, float]) -> None:
        self._actors = actors
        self._desk = desk
        self._bundle = bundle
        self._is_stopping = False
        self.size = len(actors)
        self.places: list[RankPlace] = ray.get([actor.place.remote() for actor in actors])

    def free_cpus(self) -> dict[str, float]:
        """Return the CPUs of each machine that the ranks leave free, by its id. Other users are ignored."""
        free = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]}
        for place in self.places:
            free[place.node_id] = max(0.0, free[place.node_id] - self._bundle["CPU"])
        return free

    def check_folder(self, folder: Path) -> None:
        """Refuse a folder that is not shared by all ranks."""
        name = f".seen-by-all-{uuid.uuid4().hex}"
        first, where = self._actors[0], self.places[0].address
        why_not = ray.get(first.write_token.remote(folder, name))
        if why_not:
            raise ConfigError(f"--run-dir {folder}: cannot be written on {where}: {why_not}; choose another --run-dir")
        sees = ray.get([actor.sees_token.remote(folder, name) for actor in self._actors])
        ray.get(first.remove_token.remote(folder, name))
        blind = sorted({place.address for place, is_seen in zip(self.places, sees, strict=True) if not is_seen})
        if blind:
            raise ConfigError(
                f"--run-dir {folder}: a file written there on {where} is not visible on {', '.join(blind)}; choose a "
                "folder on a disk that all machines share"
            )

    def run(self, works: Sequence[Work], on_news: Tell) -> list[Any]:
        """Run each rank's work and return the results, by rank. Signals are forwarded to the ranks."""
        port = ray.get(self._actors[0].offer_port.remote())
        here = (os.getcwd(), list(sys.path))
        calls = {}
        for rank, (actor, work) in enumerate(zip(self._actors, works, strict=True)):
            environment = rank_environment(rank, self.size, self.places[0].address, port, "GPU" in self._bundle)
            calls[actor.run.remote(environment, *here, pickle.dumps(work), self._desk)] = rank
        results, failures = self._await(calls, on_news)
        if failures:
            raise self._blame(failures)
        return [results[rank] for rank in range(self.size)]

    def _await(self, calls: dict[Any, int], on_news: Tell) -> tuple[dict[int, Any], dict[int, RankFailure]]:
        results: dict[int, Any] = {}
        failures: dict[int, RankFailure] = {}
        deadline = float("inf")
        news = self._desk.next_news.remote()
        signals: list[int] = []

        def on_signal(number: int, frame: FrameType | None) -> None:
            signals.append(number)
            if len(signals) > 1 and number == signal.SIGINT:
                raise KeyboardInterrupt  # the second Ctrl-C does not wait

        with handling_stops(on_signal):
            while calls and time.monotonic() < deadline:
                if signals and not self._is_stopping:
                    self._is_stopping = True
                    self._desk.ask_to_stop.remote()
                for call in ray.wait([*calls, news], timeout=POLL_S)[0]:
                    if call == news:
                        for item in ray.get(news):
                            on_news(item)
                        news = self._desk.next_news.remote()
                        continue
                    rank = calls.pop(call)
                    outcome = _outcome(call)
                    if isinstance(outcome, RankFailure):
                        failures[rank] = outcome
                        deadline = min(deadline, time.monotonic() + GRACE_S)
                    else:
                        results[rank] = outcome
        for item in ray.get(self._desk.take_news.remote()):
            on_news(item)
        return results, failures

    def _blame(self, failures: Mapping[int, RankFailure]) -> Exception:
        rank = to_blame(failures)
        failure = failures[rank]
        if isinstance(failure.error, ConfigError):
            return failure.error
        if not failure.has_died and not type(failure.error).__module__.startswith("groupwise."):
            print(failure.traceback, file=sys.stderr)  # not one of our own errors, which explain themselves
        who = f"rank {rank} on {self.places[rank].address}"
        what = "its process died" if failure.has_died else type(failure.error).__name__
        how = f"{who} ended before the run could stop and save" if self._is_stopping else f"{who} ended the run"
        why = last_line(failure.error).rstrip(".")
        return RankFailed(f"{how}: {what}: {why}. Earlier checkpoints are intact: continue with --resume")


def rank_environment(rank: int, size: int, address: str, port: int, has_gpu: bool) -> dict[str, str]:
    """Return the environment that `torchrun` would set. Ray shows each rank only its own GPU, so it is GPU 0."""
    table = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "MASTER_ADDR": address, "MASTER_PORT": port}
    return {name: str(value) for name, value in table.items()} | ({} if has_gpu else {"CUDA_VISIBLE_DEVICES": ""})


def choose_ranks(asked: int | None, *, num_gpus: float, num_cpus: float, use_gpus: bool) -> tuple[int, dict[str, int]]:
    """Return the number of ranks and the resources of each."""
    kind, number = ("GPU", int(num_gpus)) if use_gpus and num_gpus >= 1 else ("CPU", int(num_cpus))
    if asked is None and kind == "CPU":
        why = "the cluster has no GPUs" if use_gpus else 'model.device = "cpu"'
        raise ConfigError(f"--ray-ranks: {why}, so set the number of ranks, as in --ray-ranks 2")
    if asked is not None and asked > number:
        raise ConfigError(f"--ray-ranks {asked}: a rank needs one {kind}, and the cluster has {number}")
    return asked or number, {"CPU": 1} | ({"GPU": 1} if kind == "GPU" else {})


def check_address(address: str) -> None:
    """Refuse an address that does not respond: Ray itself would retry for minutes."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"--ray-address {address}: this is an address for clients; run the command on a machine of the cluster"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # "auto" and similar, which Ray handles
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--ray-address {address}: does not respond ({error}); is it what `ray start --head` printed?"
        ) from None


def to_blame(failures: Mapping[int, RankFailure]) -> int:
    """Return the rank that most likely failed first: one that died, else one that raised an error of its own."""

    def order(rank: int) -> tuple[bool, bool]:
        return not failures[rank].has_died, isinstance(failures[rank].error, RankLost)

    return min(failures, key=order)  # among equals, the first that was reported


def _outcome(call: Any) -> Any:
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        return RankFailure(error.cause, has_died=False, traceback=str(error))
    except ray.exceptions.RayError as error:
        return RankFailure(error, has_died=True)


@contextmanager
def ray_ranks(asked: int | None, *, address: str | None, use_gpus: bool) -> Iterator[RayRanks]:
    """Place ranks on the cluster at `address`, else at RAY_ADDRESS or on this machine, else on a new local one."""
    if ray is None:
        raise ConfigError("--ray: Ray is not installed; pip install 'groupwise[ray]'")
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    check_address(address or os.environ.get("RAY_ADDRESS", ""))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that is started here sends no usage statistics
    try:
        ray.init(address=address, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"--ray: no usable cluster: {last_line(error)}") from error
    try:
        has = ray.cluster_resources()
        counts = {"num_gpus": has.get("GPU", 0), "num_cpus": has.get("CPU", 0)}
        size, bundle = choose_ranks(asked, **counts, use_gpus=use_gpus)
        group = placement_group([bundle] * size, strategy="PACK")
        if not group.wait(ROOM_S):
            raise ClusterFull(
                f"--ray: the cluster had no free resources for {size} ranks with {bundle} each within {ROOM_S:g} s; "
                "`ray status` shows what is in use"
            )
        options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "max_restarts": 0}
        make = ray.remote(**options)(Rank)
        places = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=n) for n in range(size)]
        beside = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        desk = ray.remote(num_cpus=0, max_restarts=0)(Desk).options(scheduling_strategy=beside).remote()
        yield RayRanks([make.options(scheduling_strategy=place).remote() for place in places], desk, bundle)
    finally:
        # Ray ends the driver's actors and frees their resources.
        ray.shutdown()
