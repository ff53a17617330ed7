"""Train a recipe: set everything up, run the stages one after the other, resume where a run stopped.

    train(recipe, run_dir) ──▶ lock ──▶ set_up ──▶ for each stage: begin, run its loop ──▶ finished
    resume(run_dir)        ──▶ lock ──▶ set_up ──▶ newest valid checkpoint ──▶ the same, from there

All stages share one run directory and one step axis. Before anything is trained or written, `set_up` refuses missing
data, training data that overlaps with held-out data, prompts that do not fit the context, and engines or trackers that
are not installed.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from groupwise.base.signals import StopControl, StopRequested
from groupwise.config import (
    ConfigError,
    Recipe,
    RlStage,
    SftStage,
    Stage,
    dump_toml,
    fingerprint,
    make_recipe,
    to_table,
)
from groupwise.distributed.world import RankLost, World
from groupwise.engines.factory import make_engine
from groupwise.engines.vllm.vllm_engine import VllmEngine
from groupwise.evals.contamination import find_contamination
from groupwise.evals.guards import check_guards_fit
from groupwise.evals.held_out import eval_max_new_tokens
from groupwise.models.chat import Prompts, check_fits
from groupwise.models.checkpoint_store import CheckpointReader, CheckpointStore
from groupwise.models.device_memory import DeviceMemoryError
from groupwise.models.load import versions
from groupwise.models.placement import limit_memory, memory_limit_gib
from groupwise.models.policy import Policy, load_policy
from groupwise.runs import RunLogError, layout
from groupwise.runs.lock import RunLock
from groupwise.runs.reader import Run
from groupwise.runs.sinks import Sink, make_sink, tracked_name
from groupwise.runs.writer import RunLog
from groupwise.scoring.scorer import ScorerMaker, make_scorer, verifier_version
from groupwise.tasks import check_splits
from groupwise.tasks.functions import Reward, WithRewards, source_of, task_of
from groupwise.tasks.task import Task
from groupwise.training import grpo, sft
from groupwise.training.rehearsal import rehearse
from groupwise.training.training import Position, Training, seed_random_state
from groupwise.workers import num_cores

logger = logging.getLogger(__name__)

LOOPS: Mapping[type[Stage], Callable[[Training, Any], None]] = {RlStage: grpo.run_stage, SftStage: sft.run_stage}


@dataclass(frozen=True)
class RunRequest:
    """A request to the trainer: which run, new or resumed, with which sinks, on which rank."""

    recipe: Recipe
    run_dir: Path
    is_resumed: bool = False
    accept_verifier: bool = False
    """Resume although the verifier's version has changed. The change is logged."""
    memory_gib: float | None = None
    """Limit on the GPU memory of this process, for runs that share a GPU."""
    sinks: Sequence[Sink] = ()
    """Receivers of every record besides the run directory, on rank 0 only."""
    world: World = field(default_factory=World)
    make_scorer: ScorerMaker = make_scorer
    task: Task | None = None
    """The task as an object, where the one that the recipe names cannot be imported."""
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    """Reward functions that cannot be imported, by the name that the recipe has for them."""


class OutOfMemory(RuntimeError):
    """Memory ran out in the middle of a run, which can be resumed. The message says what to do."""


def train(recipe: Recipe, run_dir: Path, sinks: Sequence[Sink] = ()) -> bool:
    """Start a run on this process alone. True when it finished, False when it was asked to stop (and saved)."""
    return carry_out(RunRequest(recipe, run_dir, sinks=sinks))


def resume(run_dir: Path, sinks: Sequence[Sink] = (), *, accept_verifier: bool = False) -> bool:
    """Resume a run from its newest valid checkpoint. A changed verifier is refused unless `accept_verifier`."""
    return carry_out(RunRequest(recipe_of(run_dir), run_dir, True, accept_verifier, sinks=sinks))


def carry_out(request: RunRequest) -> bool:
    """Run one rank's part of a request. True when the run finished, False when it was asked to stop (and saved)."""
    if request.memory_gib is not None:
        limit_memory(request.memory_gib)
    if request.world.rank == 0:
        if not request.is_resumed:
            _check_run_dir(request.run_dir)
        with RunLock(request.run_dir):
            return _run(set_up(request, request.run_dir), request)
    # Only rank 0 writes the run directory. The others have a folder of their own, which is thrown away.
    with tempfile.TemporaryDirectory(prefix="groupwise-rank-") as folder:
        return _run(set_up(request, Path(folder)), request)


def _check_run_dir(run_dir: Path) -> None:
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
    """Return the resolved recipe that a run was started with."""
    if not (run_dir / layout.RECIPE).exists():
        raise ConfigError(f"{run_dir} has no run to resume: there is no {layout.RECIPE} in it")
    return make_recipe(Run(run_dir).recipe)


def default_run_dir(recipe: Recipe) -> Path:
    return Path("runs") / f"{recipe.name}-{fingerprint(recipe)[:8]}"


def memory_limit_of(run_dir: Path) -> float | None:
    """Return the memory limit in GiB that a run was started with.

    Sizes of packs and chunks depend on it, and so do the last bits of every sum.
    """
    # A run that was killed at its start has no info.
    limit = Run(run_dir).info_if_any.get("machine", {}).get("memory_limit_gib")
    return None if limit is None else float(limit)


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
    evaluated = [prompts[problem] for problem in held_out[: recipe.evaluation.num_problems or None]]
    for stage in recipe.stages:
        if isinstance(stage, RlStage):
            trained_on = [prompts[problem] for problem in train_problems]
            check_fits(trained_on, stage.sampling.max_new_tokens, policy.context_tokens)
    check_fits(evaluated, eval_max_new_tokens(recipe), policy.context_tokens)
    if recipe.guards is not None:
        check_guards_fit(recipe.guards, prompts, policy.context_tokens)
    # Before anything is written, because its package may not be installed.
    engine = make_engine(recipe.engine, policy)
    sinks: list[Sink] = []
    if world.rank == 0:  # or trackers would show each rank as a run
        name, table = tracked_name(run_dir), to_table(recipe)
        sinks = [*request.sinks, *(make_sink(sink, run_dir, name, table) for sink in recipe.logging.sinks)]
    log = RunLog(folder, sinks)
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


def warn_of_contamination(training: Training) -> None:
    """Log held-out problems that are near copies of training problems. Exact copies were refused before."""
    if training.policy.world.rank > 0:
        return
    found = find_contamination([prompt.problem for prompt in training.held_out], training.train_problems)
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


def _run(training: Training, request: RunRequest) -> bool:
    log = training.log
    try:
        if request.is_resumed:
            training.restore(accept_verifier=request.accept_verifier)
        else:
            log.write_recipe(dump_toml(to_table(training.recipe)))
            if isinstance(training.task, WithRewards):
                log.write_rewards({one.name: source_of(one.call) for one in training.task.functions if one.call})
            log.write_info(training.identity | {"name": training.run_dir.name, "machine": machine_of(training.policy)})
            warn_of_contamination(training)
        log.write_event("resumed" if request.is_resumed else "started", step=training.position.step, pid=os.getpid())
        with training.control.listening():
            try:
                run_stages(training)
            except StopRequested:
                training.save()
                log.write_event("stopped", step=training.position.step)
                return False
            except RankLost as error:
                log.write_event("rank_lost", step=training.position.step, reason=str(error))
                raise
            except Exception as error:
                told = _out_of_memory(training, error) if _is_out_of_memory(error) else error
                # Record why the run ended, unless the disk is full.
                with suppress(RunLogError):
                    reason = f"{type(told).__name__}: {told}"
                    log.write_event("failed", step=training.position.step, reason=reason)
                if told is error:
                    raise
                raise told from error
        log.write_event("finished", step=training.position.step)
        return True
    finally:
        training.scorer.close()
        log.close()
        if isinstance(training.engine, VllmEngine):
            training.engine.close()


def run_stages(training: Training) -> None:
    """Run the remaining stages, one after the other."""
    position, stages = training.position, training.recipe.stages
    while position.stage_index < len(stages):
        stage = stages[position.stage_index]
        if position.stage_step == 0 and training.batch is None:
            begin_stage(training, stage)
        if isinstance(stage, RlStage):
            # Before its first step: a stage whose longest batch does not fit into memory is refused.
            longest = max(len(training.prompts[problem].token_ids) for problem in training.train_problems)
            rehearse(training.policy, stage, longest)
        LOOPS[type(stage)](training, stage)
        if position.is_guard_broken and training.recipe.guards and training.recipe.guards.action == "fall_back":
            fall_back(training)
        training.log.write_event("stage_finished", name=stage.name, step=position.step)
        training.save()
        position.stage_index += 1
        position.stage_step = position.evals_without_best = 0
        position.sampler = position.kl_coefficient = None
        position.is_guard_broken = False
        training.saved = None


def begin_stage(training: Training, stage: Stage) -> None:
    """Start a stage with a fresh optimizer and, if needed, the current policy as the reference."""
    position = training.position
    if stage.start_from == "best" and position.best_checkpoint:
        load_best(training)
    training.policy.begin_stage(
        stage.optimizer, keep_reference=stage.uses_reference, offload_reference=stage.offloads_reference
    )
    training.log.write_event("stage", name=stage.name, index=position.stage_index, step=position.step)


def load_best(training: Training) -> None:
    tensors, _ = training.store.load(training.store.root / training.position.best_checkpoint)
    # The moving average, if that is what was evaluated.
    training.policy.load_weights(tensors["ema" if training.recipe.evaluation.use_ema else "weights"])


def fall_back(training: Training) -> None:
    """Return to the weights of the best checkpoint after a guard was broken."""
    load_best(training)
    # A checkpoint of this step would contain the abandoned weights.
    training.saved = None
    training.log.write_event("fell_back", step=training.position.step, checkpoint=training.position.best_checkpoint)


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether torch, a library that it calls, or our own allocator ran out of memory."""
    if isinstance(error, DeviceMemoryError):
        return error.is_out_of_memory
    is_said_by_library = isinstance(error, RuntimeError) and "STATUS_ALLOC_FAILED" in str(error)
    return isinstance(error, torch.OutOfMemoryError) or is_said_by_library


def _out_of_memory(training: Training, cause: Exception) -> OutOfMemory:
    position, names = training.position, training.store.names()
    stage = training.recipe.stages[position.stage_index]
    seen = str(cause).split(" Of the allocated memory")[0].rstrip(".")
    tried = " Its largest microbatch fitted before the first step." if isinstance(stage, RlStage) else ""
    smaller = f"--set stages.{position.stage_index}.microbatch_tokens={max(1, stage.microbatch_tokens // 2)}"
    return OutOfMemory(
        f"step {position.step + 1}, stage {stage.name}: GPU memory ran out: {seen}.{tried}\n"
        "If other programs use much of it, let them finish first. To use less, start a new run with "
        f"{smaller}, which gives the same gradient; `groupwise plan` shows how memory is used.\n"
        + (f"{names[-1]} is saved: groupwise train --resume {training.run_dir}" if names else "Nothing was saved yet.")
    )
