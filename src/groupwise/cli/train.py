"""Train a recipe, or resume a run.

Examples:
  groupwise train gsm8k --set seed=1 --set stages.0.steps=50
  groupwise train my-recipe.toml --run-dir runs/mine
  groupwise train --resume runs/mine
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise.cli.arguments import GIB, RECIPE, Options, argument, set_option, takes
from groupwise.cli.printing import say, say_commands
from groupwise.config import ConfigError, find_recipe, load_recipe
from groupwise.distributed.launch import launched_ranks

if TYPE_CHECKING:
    from groupwise.training.setup import RunRequest
    from groupwise.types import EvalRecord, StepRecord
    from groupwise.workers.ray_hosts import WorkerShare


@takes(
    argument("recipe", RECIPE, nargs="?"),
    argument("--resume", "resume the run in this run directory", metavar="RUN", type=Path),
    argument("--run-dir", "directory of the run (default: runs/NAME-FINGERPRINT)", type=Path),
    set_option(),
    argument("--accept-verifier", "resume even if the verifier's version has changed", default=False),
    argument("--accept-logs", "resume even if logs are missing or were changed", default=False),
    argument("--start-over", "with --resume: start at step 1; logs and checkpoints move to RUN/old-N", default=False),
    argument("--memory-gib", "limit this run's GPU memory, for runs that share a GPU", type=float, within=GIB),
    argument("--ray", "train on a Ray cluster, with verifier workers on all its machines", default=False),
    argument("--ray-ranks", "number of ranks (default: one per GPU)", type=int, metavar="N", within="[1, 1e5]"),
    argument("--ray-address", "the cluster (default: RAY_ADDRESS, or a new one here)", metavar="HOST:PORT"),
)
def run(options: Options) -> int:
    is_resumed = options.resume is not None
    if (options.recipe is None) != is_resumed:
        raise ConfigError("train: give either a recipe or --resume RUN")
    if is_resumed and (options.settings or options.run_dir):
        raise ConfigError("train --resume: a run keeps its recipe and its directory; drop --set and --run-dir")
    choices = {name: getattr(options, name) for name in ("accept_verifier", "accept_logs", "start_over")}
    for name, is_chosen in choices.items():
        if is_chosen and not is_resumed:
            raise ConfigError(f"train --{name.replace('_', '-')}: needs --resume RUN; drop it for a new run")
    _, num_ranks = launched_ranks()
    if options.ray and num_ranks > 1:
        raise ConfigError("train --ray: starts the ranks itself; leave torchrun out")
    if not options.ray and (options.ray_ranks is not None or options.ray_address is not None):
        raise ConfigError("train --ray-ranks, --ray-address: need --ray")
    if not is_resumed:
        # Read before torch is imported, so that a typo is reported at once.
        recipe = load_recipe(find_recipe(options.recipe), options.settings)
    from groupwise.training import setup
    from groupwise.training.setup import RunRequest

    if is_resumed:
        recipe, run_dir, limit = setup.recipe_of(options.resume), options.resume, options.memory_gib
        # The limit that the run was started with, unless a new one is given.
        limit = setup.memory_limit_of(run_dir) if limit is None else limit
        request = RunRequest(recipe, run_dir, is_resumed=True, memory_gib=limit, **choices)
    else:
        run_dir = options.run_dir or setup.default_run_dir(recipe)
        request = RunRequest(recipe, run_dir, memory_gib=options.memory_gib)
    if not options.ray:
        return train_here(request)
    # Absolute, because ranks may run elsewhere.
    request = replace(request, run_dir=run_dir.absolute())
    return _finish(request, run_on_ray(request, options.ray_ranks, options.ray_address))


def train_here(request: RunRequest) -> int:
    """Train in this process, which may be one of the ranks that `torchrun` started; return the exit status."""
    from groupwise.api.train_runs import carry_out_watched

    is_finished = carry_out_watched(request)
    rank, _ = launched_ranks()
    if rank > 0:
        return 0 if is_finished else 1
    return _finish(request, is_finished)


def _finish(request: RunRequest, is_finished: bool) -> int:
    """Say how the run ended and what to type next; return the exit status."""
    run_dir = shlex.quote(str(request.run_dir))
    if not is_finished:
        say("Stopped and saved. Resume with:")
        say_commands(f"groupwise train --resume {run_dir}")
        return 1
    from groupwise.api.use_runs import diagnose

    if request.recipe.name == "demo":
        from groupwise.cli.demo_result import show_result

        show_result(request.run_dir)
    say(f"Finished: {request.run_dir}\nNext:")
    name = shlex.quote(f"{request.run_dir.name}-model")
    has_problem = any(finding.severity == "problem" for finding in diagnose(request.run_dir))
    verbs = (*(["doctor"] if has_problem else []), "report", "watch", "eval")
    say_commands(*(f"groupwise {verb} {run_dir}" for verb in verbs))
    say_commands(f"groupwise export {run_dir} {name}")
    return 0


# ---- on a Ray cluster ----


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
    """Train with the ranks on a Ray cluster, watched from this terminal.

    Return True if the run finished, False if it was asked to stop and saved.
    """
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
