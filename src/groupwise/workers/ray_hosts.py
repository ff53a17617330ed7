"""A worker pool over the machines of a Ray cluster, behind the interface of `WorkerPool`.

    caller ──Ray──▶ host, one per machine (an actor) ──▶ its WorkerPool: supervisor, deadlines, kill

The contract is the pool's. A lost host only costs time: its jobs run again on another. A job that was lost twice runs
item by item on a separate host, and an item that ends this one too is `DIED`: an error, never a wrong answer. Ray ends
the hosts with the caller.

Function and items travel as pickle inside pickle: Ray would otherwise load them before the host has the caller's search
path, which your own task may need.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from groupwise.base.text_layout import last_line
from groupwise.workers.messages import Answer, Limits, Outcome
from groupwise.workers.pool import START_SECONDS, PoolFailed, WorkerPool, job_items, pickled

ray: Any = importlib.import_module("ray") if importlib.util.find_spec("ray") else None

MAX_LOSSES = 2
"""Lost hosts after which a job may be the cause and runs separately."""


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """Workers of one caller on one machine."""

    node_id: str
    num_workers: int
    num_cpus: float
    """CPUs that Ray reserves for them."""


def spread_workers(
    num_callers: int, workers_per_caller: int, free_cpus: Mapping[str, float]
) -> list[list[WorkerShare]]:
    """Return the machines of each caller's workers.

    Each worker in turn goes where it gets the most CPU: a whole one while there are enough, else an equal share of the
    machine's.
    """
    counts = dict.fromkeys(free_cpus, 0)
    order = []
    for _ in range(num_callers * workers_per_caller):
        node = max(counts, key=lambda node: (free_cpus[node] / (counts[node] + 1), -counts[node]))
        counts[node] += 1
        order.append(node)
    shares = []
    for caller in range(num_callers):
        mine = Counter(order[caller * workers_per_caller :][:workers_per_caller])
        shares.append(
            [WorkerShare(node, n, _cpus(n * min(1.0, free_cpus[node] / counts[node]))) for node, n in mine.items()]
        )
    return shares


def _cpus(amount: float) -> float:
    """Round as Ray counts CPUs: whole ones, or a fraction of one."""
    return int(amount) if amount >= 1 else int(amount * 100) / 100


class WorkerHost:
    """A pool on one machine as a Ray actor: one call at a time, in the caller's order."""

    def __init__(self, folder: str, search_path: Sequence[str], function: bytes, num_workers: int, limits: Limits):
        os.chdir(folder)
        sys.path.extend(path for path in search_path if path not in sys.path)
        self._pool = WorkerPool(pickle.loads(function), num_workers, limits)
        self._tickets: dict[int, tuple[int, ...]] = {}

    def start(self) -> None:
        self._pool.start()

    def submit(self, number: int, payload: bytes) -> None:
        self._tickets[number] = self._pool.submit(*pickle.loads(payload))

    def answers(self, number: int) -> list[Answer]:
        return self._pool.answers(self._tickets.pop(number))


@dataclass(slots=True, eq=False)
class _Host:
    """The caller's view of a host."""

    share: WorkerShare
    actor: Any
    num_open: int = 0
    """Items sent but not answered."""


@dataclass(slots=True)
class _Job:
    payload: bytes
    num_items: int
    host: _Host
    sent: Any
    """Ray's reference to the call that submitted it."""
    num_losses: int = 0


class RayPool:
    """A pool that runs `function(shared, item)` on the hosts of `shares`; for one thread of a Ray process."""

    def __init__(self, function: Callable[[Any, Any], Any], shares: Sequence[WorkerShare], limits: Limits) -> None:
        self._function = pickled(function)
        self._shares = shares
        self._limits = limits
        self._hosts: list[_Host] = []
        self._spare: Any = None
        """The host of jobs that run separately."""
        self._jobs: dict[int, _Job] = {}
        self._next_job = 0

    def start(self) -> None:
        """Start the hosts and their workers if they are not running."""
        if self._hosts:
            return
        self._hosts = [_Host(share, self._make_actor(share)) for share in self._shares]
        try:
            ray.get([host.actor.start.remote() for host in self._hosts], timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError:
            self.close()
            raise PoolFailed(
                f"the verifier workers did not start within {START_SECONDS:g} s: the CPUs of the cluster are in use "
                "(see `ray status`); lower verifier.workers, or wait"
            ) from None
        except ray.exceptions.RayError as error:
            self.close()
            raise PoolFailed(
                f"the verifier workers did not start: {last_line(error)}. Every machine of the cluster must have "
                "groupwise and the task's module, and see the folder that the run is started in under the same path"
            ) from error

    def submit(self, shared: Any, items: Sequence[Any]) -> tuple[int, ...]:
        """Start work on `items`; the ticket is for `answers`."""
        self.start()
        ticket = []
        for batch in job_items(items):
            number, self._next_job = self._next_job, self._next_job + 1
            self._jobs[number] = _Job(pickle.dumps((shared, batch)), len(batch), self._hosts[0], None)
            self._send(number, self._hosts)
            ticket.append(number)
        return tuple(ticket)

    def answers(self, ticket: tuple[int, ...]) -> list[Answer]:
        """Wait for the answers to a `submit`. A ticket can be asked for once."""
        return [answer for number in ticket for answer in self._answers_to(number)]

    def close(self) -> None:
        """End all hosts and their workers."""
        for actor in filter(None, (*(host.actor for host in self._hosts), self._spare)):
            ray.kill(actor)
        self._hosts.clear()
        self._spare = None
        self._jobs.clear()

    def _make_actor(self, share: WorkerShare) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Not restarted by Ray: it would come back without its jobs.
        make = ray.remote(num_cpus=share.num_cpus, max_restarts=0)(WorkerHost)
        make = make.options(scheduling_strategy=NodeAffinitySchedulingStrategy(share.node_id, soft=False))
        return make.remote(os.getcwd(), sys.path, self._function, share.num_workers, self._limits)

    def _send(self, number: int, hosts: Sequence[_Host]) -> None:
        """Send a job to the host with the fewest open items per worker."""
        job = self._jobs[number]
        job.host = min(hosts, key=lambda host: (host.num_open + job.num_items) / host.share.num_workers)
        job.host.num_open += job.num_items
        job.sent = job.host.actor.submit.remote(number, job.payload)

    def _answers_to(self, number: int) -> list[Answer]:
        job = self._jobs[number]
        while job.num_losses < MAX_LOSSES:
            try:
                _, answers = ray.get([job.sent, job.host.actor.answers.remote(number)])
            except ray.exceptions.RayError:
                self._replace(job.host)
                continue
            job.host.num_open -= job.num_items
            del self._jobs[number]
            return list(answers)
        del self._jobs[number]
        shared, items = pickle.loads(job.payload)
        return [self._answer_apart(shared, item) for item in items]

    def _replace(self, lost: _Host) -> None:
        """Replace a lost host; its jobs go to the remaining ones."""
        ray.kill(lost.actor)  # it may only be unreachable
        # Without reserved CPUs: waiting for them would block the run.
        lost.share = replace(lost.share, node_id=_living_node(lost.share.node_id), num_cpus=0)
        lost.actor, lost.num_open = self._make_actor(lost.share), 0
        others = [host for host in self._hosts if host is not lost] or [lost]
        for number, job in self._jobs.items():
            if job.host is lost and job.num_losses < MAX_LOSSES:
                job.num_losses += 1
                if job.num_losses < MAX_LOSSES:
                    self._send(number, others)

    def _answer_apart(self, shared: Any, item: Any) -> Answer:
        if self._spare is None:
            self._spare = self._make_actor(WorkerShare(_living_node(), 1, 0))
        sent = self._spare.submit.remote(0, pickle.dumps((shared, [item])))
        try:
            _, (answer,) = ray.get([sent, self._spare.answers.remote(0)])
        except ray.exceptions.RayError as error:
            ray.kill(self._spare)
            self._spare = None
            detail = f"{MAX_LOSSES + 1} hosts of its worker were lost: {last_line(error)}"
            return Answer(Outcome.DIED, None, detail, 0.0)
        return cast(Answer, answer)


def _living_node(preferred: str = "") -> str:
    """Return the preferred machine if it is alive, else this one."""
    is_there = any(node["NodeID"] == preferred and node["Alive"] for node in ray.nodes())
    return preferred if is_there else str(ray.get_runtime_context().get_node_id())
