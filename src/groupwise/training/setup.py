"""What a caller asks of the trainer, and everything that is made and checked before anything is trained or written.

Refused here: missing data, training data that overlaps with held-out data, prompts that do not fit the context, and
engines or trackers that are not installed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from groupwise.base.signals import StopControl
from groupwise.config import ConfigError, Recipe, RlStage, SftStage, dump_toml, fingerprint, make_recipe, to_table
from groupwise.distributed.world import World
from groupwise.engines.factory import EngineMaker, make_engine
from groupwise.evals.contamination import find_contamination
from groupwise.evals.guards import check_guards_fit
from groupwise.evals.held_out import eval_max_new_tokens
from groupwise.models.chat import Prompts, check_fits
from groupwise.models.checkpoint_store import CheckpointReader, CheckpointStore
from groupwise.models.load import versions
from groupwise.models.placement import memory_limit_gib
from groupwise.models.policy import Policy, load_policy
from groupwise.runs import layout
from groupwise.runs.lock import RunLock
from groupwise.runs.reader import Run
from groupwise.runs.sinks import Sink, make_sink, tracked_name
from groupwise.runs.writer import RunLog
from groupwise.scoring.scorer import ScorerMaker, make_scorer, verifier_version
from groupwise.tasks import check_splits
from groupwise.tasks.functions import Reward, WithRewards, source_of, task_of
from groupwise.tasks.task import Task
from groupwise.training.sft import check_source
from groupwise.training.training import Position, Training, refuse_changes, seed_random_state
from groupwise.workers import num_cores

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunRequest:
    """A request to the trainer: which run, new or resumed, with which sinks, on which rank."""

    recipe: Recipe
    run_dir: Path
    is_resumed: bool = False
    accept_verifier: bool = False
    """Resume although the verifier's version has changed. The change is logged."""
    accept_logs: bool = False
    """Resume although logs are missing or were changed. What differs is logged."""
    start_over: bool = False
    """Begin a resumed run again at its first step. What it has written is moved to a folder inside it."""
    memory_gib: float | None = None
    """Limit on the GPU memory of this process, for runs that share a GPU."""
    sinks: Sequence[Sink] = ()
    """Receivers of every record besides the run directory, on rank 0 only."""
    world: World = field(default_factory=World)
    make_scorer: ScorerMaker = make_scorer
    make_engine: EngineMaker = make_engine
    task: Task | None = None
    """The task as an object, where the one that the recipe names cannot be imported."""
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    """Reward functions that cannot be imported, by the name that the recipe has for them."""


def check_run_dir(run_dir: Path) -> None:
    if (run_dir / layout.RECIPE).exists():
        raise ConfigError(
            f"{run_dir} already contains a run; resume it with `groupwise train --resume {run_dir}`, or choose another "
            "--run-dir"
        )
    try:
        layout.validate_run_name(run_dir.resolve().name)
    except ValueError as error:
        raise ConfigError(f"--run-dir {run_dir}: {error}") from None
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"{run_dir} is a file, not a folder; choose another --run-dir")


def recipe_of(run_dir: Path) -> Recipe:
    """Return the resolved recipe that a run was started with.

    Its fingerprint is compared here, before anything that it names is imported.
    """
    if not (run_dir / layout.RECIPE).exists():
        raise ConfigError(f"{run_dir} has no run to resume: there is no {layout.RECIPE} in it")
    run = Run(run_dir)
    try:
        recipe, info = make_recipe(run.recipe), run.info_if_any
    except ConfigError as error:
        raise ConfigError(f"{run_dir / layout.RECIPE}: {error}") from None
    # A run that was killed at its start has no info.
    if "fingerprint" in info:
        refuse_changes({"fingerprint": fingerprint(recipe)}, info)
    return recipe


def default_run_dir(recipe: Recipe) -> Path:
    return Path("runs") / f"{recipe.name}-{fingerprint(recipe)[:8]}"


def memory_limit_of(run_dir: Path) -> float | None:
    """Return the memory limit in GiB that a run was started with.

    Sizes of packs and chunks depend on it, and so do the last bits of every sum.
    """
    info = Run(run_dir).info_if_any
    if not info:  # as in a run that was killed at its start
        path = run_dir / layout.INFO
        logger.warning("%s is missing: if the run had a limit on GPU memory, give it with --memory-gib", path)
    limit = info.get("machine", {}).get("memory_limit_gib")
    return None if limit is None else float(limit)


def _with_dtype(recipe: Recipe, run_dir: Path) -> Recipe:
    """Return the recipe with the dtype that "auto" stood for when the run began."""
    machine = Run(run_dir).info_if_any.get("machine", {})
    # Older runs did not record it, and on a CPU it was always float32.
    dtype = machine.get("dtype", "float32" if machine.get("device") == "cpu" else "auto")
    return replace(recipe, model=replace(recipe.model, dtype=dtype)) if recipe.model.dtype == "auto" else recipe


def set_up(request: RunRequest, folder: Path, lock: RunLock | None = None) -> Training:
    """Check the request and build the run, with a policy at its initial weights. This rank writes to `folder`."""
    recipe, run_dir, world = request.recipe, request.run_dir, request.world
    seed_random_state(recipe.seed)
    task = task_of(recipe.task, request.rewards, request.task)
    train_problems, held_out = check_splits(task)
    for stage in recipe.stages:
        if isinstance(stage, SftStage):
            check_source(stage, task, held_out)
    policy = load_policy(_with_dtype(recipe, run_dir) if request.is_resumed else recipe, world)
    prompts = Prompts(policy.tokenizer)
    evaluated = prompts.of(held_out[: recipe.evaluation.num_problems or None])
    for stage in recipe.stages:
        if isinstance(stage, RlStage):
            trained_on = prompts.of(train_problems)
            check_fits(trained_on, stage.sampling.max_new_tokens, policy.context_tokens)
    check_fits(evaluated, eval_max_new_tokens(recipe), policy.context_tokens)
    if recipe.guards is not None:
        check_guards_fit(recipe.guards, prompts, policy.context_tokens)
    # Before anything is written, because its package may not be installed.
    engine = request.make_engine(recipe.engine, policy, is_truncated=recipe.has_truncated_sampling)
    sinks: list[Sink] = []
    if world.rank == 0:  # or trackers would show each rank as a run
        name, table = tracked_name(run_dir), to_table(recipe)
        sinks = [*request.sinks, *(make_sink(sink, run_dir, name, table) for sink in recipe.logging.sinks)]
    log = RunLog(folder, sinks, lock)

    def pass_over(path: Path, reason: str) -> None:
        log.write_event("checkpoint_passed_over", name=path.name, reason=reason)
        logger.warning("%s is passed over: %s", path, reason)

    kind = CheckpointStore if world.rank == 0 else CheckpointReader
    store = kind(
        run_dir / layout.CHECKPOINTS,
        recipe.checkpoints.keep_last,
        on_skip=pass_over,
    )
    return Training(
        recipe=recipe,
        run_dir=run_dir,
        task=task,
        scorer=request.make_scorer(task, recipe.verifier),
        train_problems=train_problems,
        held_out=evaluated,
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


def record_start(training: Training) -> None:
    """Write what a new run directory begins with: recipe, reward functions, versions and machine."""
    log = training.log
    log.write_recipe(dump_toml(to_table(training.recipe)))
    if isinstance(training.task, WithRewards):
        log.write_rewards({one.name: source_of(one.call) for one in training.task.functions if one.call})
    log.write_info(training.identity | {"name": training.run_dir.name, "machine": _machine_of(training.policy)})
    _warn_of_contamination(training)


def _warn_of_contamination(training: Training) -> None:
    """Log held-out problems that are near copies of training problems. Exact copies were refused before."""
    if training.policy.world.rank > 0:
        return
    found = find_contamination([prompt.problem for prompt in training.held_out], training.train_problems)
    if found.overlaps:
        training.log.write_event("contamination", **found.to_json())
        logger.warning("%s; see `contamination` in %s", found, training.run_dir / layout.EVENTS)


def _machine_of(policy: Policy) -> dict[str, Any]:
    num_parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    return {
        "device": policy.device.type,
        "device_name": policy.device_name,
        "dtype": str(policy.dtype).removeprefix("torch."),
        "num_parameters": num_parameters,
        "num_cores": num_cores(),
        "memory_limit_gib": memory_limit_gib(policy.device),
    }
