"""Train a recipe: set everything up, run the stages one after the other, resume where a run stopped.

    train(recipe, run_dir) ──▶ lock ──▶ set_up ──▶ for each stage: begin, run its loop ──▶ finished
    resume(run_dir)        ──▶ lock ──▶ set_up ──▶ newest valid checkpoint ──▶ the same, from there

All stages share one run directory and one step axis. Training starts only after everything that can be checked was
checked (train/setup). Saving and restoring are in train/checkpoint.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from groupwise.base.signals import StopRequested
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
from groupwise.engines.vllm.vllm_engine import VllmEngine
from groupwise.models.device_memory import DeviceMemoryError
from groupwise.models.placement import limit_memory
from groupwise.runs import RunLogError, layout
from groupwise.runs.lock import RunLock
from groupwise.runs.reader import Run
from groupwise.runs.sinks import Sink
from groupwise.tasks.functions import WithRewards, source_of
from groupwise.training import grpo, sft
from groupwise.training.checkpoint import restore, save
from groupwise.training.rehearsal import OutOfMemory, ran_out, rehearse
from groupwise.training.request import RunRequest
from groupwise.training.setup import machine_of, set_up, warn_of_contamination
from groupwise.training.training import Training

LOOPS: Mapping[type[Stage], Callable[[Training, Any], None]] = {RlStage: grpo.run_stage, SftStage: sft.run_stage}


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
    is_writer = request.world.rank == 0
    if is_writer and not request.is_resumed:
        _check_run_dir(request.run_dir)
    # Only one rank writes, so only that rank holds the lock.
    with RunLock(request.run_dir) if is_writer else nullcontext(), own_folder(request.run_dir, request.world) as folder:
        return _run(set_up(request, folder), request)


def _check_run_dir(run_dir: Path) -> None:
    if (run_dir / layout.RECIPE).exists():
        raise ConfigError(
            f"{run_dir} already contains a run; resume it with `groupwise train --resume {run_dir}`, or choose another "
            "--run-dir"
        )
    try:
        layout.validate_run_name(run_dir.resolve().name)
    except layout.RunNameError as error:
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
    if not (run_dir / layout.INFO).exists():  # killed at its start
        return None
    limit = Run(run_dir).info.get("machine", {}).get("memory_limit_gib")
    return None if limit is None else float(limit)


@contextmanager
def own_folder(run_dir: Path, world: World) -> Iterator[Path]:
    """Yield the folder of a rank: the run directory for rank 0, a temporary one for the others."""
    if world.rank == 0:
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix="groupwise-rank-") as folder:
        yield Path(folder)


def _run(training: Training, request: RunRequest) -> bool:
    log = training.log
    try:
        if request.is_resumed:
            restore(training, accept_verifier=request.accept_verifier)
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
                save(training)
                log.write_event("stopped", step=training.position.step)
                return False
            except RankLost as error:
                log.write_event("rank_lost", step=training.position.step, reason=str(error))
                raise
            except Exception as error:
                told = OutOfMemory(_ran_out(training, error)) if _is_out_of_memory(error) else error
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
        rehearse_stage(training, stage)
        LOOPS[type(stage)](training, stage)
        if position.is_guard_broken and training.recipe.guards and training.recipe.guards.action == "fall_back":
            fall_back(training)
        training.log.write_event("stage_finished", name=stage.name, step=position.step)
        save(training)
        position.stage_index += 1
        position.stage_step = position.evals_without_best = 0
        position.sampler = position.kl_coefficient = None
        position.is_guard_broken = False
        training.saved = None


def rehearse_stage(training: Training, stage: Stage) -> None:
    """Refuse a stage whose longest batch does not fit into memory, before its first step."""
    if isinstance(stage, SftStage):
        return
    longest = max(len(training.prompts[problem].token_ids) for problem in training.train_problems)
    rehearse(
        training.policy,
        stage=stage.name,
        prompt_tokens=longest,
        new_tokens=stage.sampling.max_new_tokens,
        max_tokens=stage.microbatch_tokens,
    )


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
    """Whether torch, a library that it calls, or our own allocator ran out of memory."""
    if isinstance(error, DeviceMemoryError):
        return error.is_out_of_memory
    is_said_by_library = isinstance(error, RuntimeError) and "STATUS_ALLOC_FAILED" in str(error)
    return isinstance(error, torch.OutOfMemoryError) or is_said_by_library


def _ran_out(training: Training, error: Exception) -> str:
    position, names = training.position, training.store.names()
    stage = training.recipe.stages[position.stage_index]
    saved = names[-1] if names else None
    return ran_out(stage, position.stage_index, position.step + 1, saved, training.run_dir, error)
