"""`groupwise train --ray`: the ranks of a run on a Ray cluster, watched from this terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from groupwise.cli.printing import say

if TYPE_CHECKING:
    from groupwise.training.pipeline import RunRequest
    from groupwise.types import EvalRecord, StepRecord
    from groupwise.workers.ray_hosts import WorkerShare


@dataclass(frozen=True)
class NewsSink:
    """Sends the records of a rank to the driver."""

    tell: Callable[[Any], None]

    def write(self, record: StepRecord) -> None:
        self.tell(("write", record))

    def write_eval(self, record: EvalRecord) -> None:
        self.tell(("write_eval", record))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class RankWork:
    """The work of one rank: its part of the run, with verifier workers where CPUs are free."""

    request: RunRequest
    shares: Sequence[WorkerShare]

    def __call__(self, tell: Callable[[Any], None]) -> bool:
        from groupwise.api.train_runs import carry_out_watched
        from groupwise.scoring.scorer import make_scorer
        from groupwise.workers.ray_hosts import RayPool

        def make_pool(function: Any, num_workers: int, limits: Any) -> RayPool:
            return RayPool(function, self.shares, limits)

        with_pool = partial(make_scorer, make_pool=make_pool)
        request = replace(self.request, sinks=[NewsSink(tell)], make_scorer=with_pool)
        return carry_out_watched(request, progress=False)


def run_on_ray(request: RunRequest, num_ranks: int | None, address: str | None) -> bool:
    """Return True if the run finished, False if it was asked to stop and saved."""
    from groupwise.distributed.ray_cluster import ray_ranks
    from groupwise.runs.progress import Progress
    from groupwise.workers import usual_workers
    from groupwise.workers.ray_hosts import spread_workers

    recipe = request.recipe
    with ray_ranks(num_ranks, address=address, use_gpus=recipe.model.device != "cpu") as ranks:
        ranks.check_folder(request.run_dir)
        cpus, workers = ranks.free_cpus(), recipe.verifier.workers
        workers_each = usual_workers(sum(cpus.values()), ranks.size) if workers == "auto" else workers
        shares = spread_workers(ranks.size, workers_each, cpus)
        on_nodes = len({place.node_id for place in ranks.places})
        hosted_by = len({share.node_id for mine in shares for share in mine})
        num_workers = ranks.size * workers_each
        say(f"Ray: ranks: {ranks.size}, on machines: {on_nodes}; verifier workers: {num_workers}, on: {hosted_by}")
        progress = Progress(recipe.total_steps)
        try:
            results = ranks.run(
                [RankWork(request, mine) for mine in shares], lambda news: getattr(progress, news[0])(news[1])
            )
        finally:
            progress.close()
        return all(results)
