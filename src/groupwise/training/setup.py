"""Make and check everything that a run needs, before anything is trained or written.

Refused here: missing data, training data that overlaps with held-out data, prompts that do not fit the context, and
engines or trackers that are not installed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groupwise.base.signals import StopControl
from groupwise.config import Recipe, RlStage, SftStage, fingerprint, to_table
from groupwise.engines.factory import make_engine
from groupwise.evals.contamination import find_contamination
from groupwise.evals.guards import check_guards_fit
from groupwise.evals.held_out import eval_max_new_tokens
from groupwise.models.chat import Prompts, check_fits
from groupwise.models.checkpoint_store import CheckpointReader, CheckpointStore
from groupwise.models.load import versions
from groupwise.models.placement import memory_limit_gib
from groupwise.models.policy import Policy, load_policy
from groupwise.runs import layout
from groupwise.runs.sinks import Sink, make_sink, tracked_name
from groupwise.runs.writer import RunLog
from groupwise.scoring.scorer import verifier_version
from groupwise.tasks import check_splits
from groupwise.tasks.functions import task_of
from groupwise.training import sft
from groupwise.training.checkpoint import seed_random_state
from groupwise.training.position import Position
from groupwise.training.request import RunRequest
from groupwise.training.training import Training
from groupwise.types import Problem
from groupwise.workers import num_cores

logger = logging.getLogger(__name__)


def set_up(request: RunRequest, folder: Path) -> Training:
    """Check the request and build the run, with a policy at its initial weights. This rank writes to `folder`."""
    recipe, run_dir, world = request.recipe, request.run_dir, request.world
    seed_random_state(recipe.seed)
    task = task_of(recipe.task, request.rewards, request.task)
    train_problems, held_out = check_splits(task)
    for stage in recipe.stages:
        if isinstance(stage, SftStage):
            sft.check_source(stage, task, held_out)
    policy = load_policy(recipe, world)
    prompts = Prompts(policy.tokenizer)
    _check_lengths(recipe, policy, prompts, train_problems, held_out)
    # Before anything is written, because its package may not be installed.
    engine = make_engine(recipe.engine, policy)
    log = RunLog(folder, _sinks(request))
    kind = CheckpointStore if world.rank == 0 else CheckpointReader
    store = kind(
        run_dir / layout.CHECKPOINTS,
        recipe.checkpoints.keep_last,
        on_skip=lambda path, reason: log.write_event("checkpoint_passed_over", name=path.name, reason=reason),
    )
    return Training(
        recipe=recipe,
        run_dir=run_dir,
        task=task,
        scorer=request.make_scorer(task, recipe.verifier),
        train_problems=train_problems,
        held_out_problems=held_out,
        policy=policy,
        engine=engine,
        prompts=prompts,
        log=log,
        store=store,
        control=StopControl(None if world.size == 1 else lambda is_asked: any(world.gather(is_asked))),
        position=Position(),
        identity={
            "fingerprint": fingerprint(recipe),
            "verifier": verifier_version(task, recipe.verifier.process),
            "versions": versions(),
        },
    )


def _check_lengths(
    recipe: Recipe, policy: Policy, prompts: Prompts, train: Sequence[Problem], held_out: Sequence[Problem]
) -> None:
    """Refuse prompts that leave no room in the context for the longest completion."""
    for stage in recipe.stages:
        if isinstance(stage, RlStage):
            check_fits([prompts[problem] for problem in train], stage.sampling.max_new_tokens, policy.context_tokens)
    evaluated = held_out[: recipe.evaluation.num_problems or None]
    check_fits([prompts[problem] for problem in evaluated], eval_max_new_tokens(recipe), policy.context_tokens)
    if recipe.guards is not None:
        check_guards_fit(recipe.guards, prompts, policy.context_tokens)


def _sinks(request: RunRequest) -> list[Sink]:
    """Return the sinks of the caller and the recipe. Only rank 0 has any, or trackers would show each rank as a run."""
    if request.world.rank > 0:
        return []
    run_dir, table = request.run_dir, to_table(request.recipe)
    return [
        *request.sinks,
        *(make_sink(name, run_dir, tracked_name(run_dir), table) for name in request.recipe.logging.sinks),
    ]


def warn_of_contamination(training: Training) -> None:
    """Log held-out problems that are near copies of training problems. Exact copies were refused before."""
    if training.policy.world.rank > 0:
        return
    evaluated = training.held_out_problems[: training.recipe.evaluation.num_problems or None]
    found = find_contamination(evaluated, training.train_problems)
    if found.overlaps:
        training.log.write_event("contamination", **found.to_json())
        logger.warning("%s; see `contamination` in %s", found, training.run_dir / layout.EVENTS)


def machine_of(policy: Policy) -> dict[str, Any]:
    num_parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    return {
        "device": policy.device.type,
        "device_name": policy.device_name,
        "num_parameters": num_parameters,
        "num_cores": num_cores(),
        "memory_limit_gib": memory_limit_gib(policy.device),
    }
