"""Train a recipe: set everything up, run the stages one after the other, resume where a run stopped.

    train(recipe, run_dir) ──▶ lock ──▶ set_up ──▶ for each stage: begin, run its loop ──▶ finished
    resume(run_dir)        ──▶ lock ──▶ set_up ──▶ newest valid checkpoint ──▶ the same, from there

All stages share one run directory and one step axis. Training starts only after everything that can be checked was
checked (training/setup). Saving and restoring are in training/training.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from groupwise.base.signals import StopRequested
from groupwise.config import Recipe, RlStage, SftStage, Stage
from groupwise.distributed.world import RankLost
from groupwise.engines.vllm.vllm_engine import VllmEngine
from groupwise.models.device_memory import DeviceMemoryError
from groupwise.models.optimizer import UnusableWeights
from groupwise.models.placement import limit_memory
from groupwise.runs import RunLogError
from groupwise.runs.lock import RunLock
from groupwise.runs.sinks import Sink
from groupwise.training import grpo, sft
from groupwise.training.rehearsal import rehearse
from groupwise.training.setup import RunRequest, check_run_dir, recipe_of, record_start, set_up
from groupwise.training.training import Training, TrainingFailed

LOOPS: Mapping[type[Stage], Callable[[Training, Any], None]] = {RlStage: grpo.run_stage, SftStage: sft.run_stage}


class OutOfMemory(RuntimeError):
    """Memory ran out in the middle of a run, which can be resumed. The message says what to do."""


def train(recipe: Recipe, run_dir: Path, sinks: Sequence[Sink] = ()) -> bool:
    """Start a run on this process alone. True when it finished, False when it was asked to stop (and saved)."""
    return carry_out(RunRequest(recipe, run_dir, sinks=sinks))


def resume(run_dir: Path, sinks: Sequence[Sink] = (), **choices: Any) -> bool:
    """Resume a run from its newest valid checkpoint. `choices`: what the request permits."""
    return carry_out(RunRequest(recipe_of(run_dir), run_dir, is_resumed=True, sinks=sinks, **choices))


def carry_out(request: RunRequest) -> bool:
    """Run one rank's part of a request. True when the run finished, False when it was asked to stop (and saved)."""
    if request.memory_gib is not None:
        limit_memory(request.memory_gib)
    if request.world.rank == 0:
        if not request.is_resumed:
            check_run_dir(request.run_dir)
        with RunLock(request.run_dir) as lock:
            return _run(set_up(request, request.run_dir, lock), request)
    # Only rank 0 writes the run directory. The others have a folder of their own, which is thrown away.
    with tempfile.TemporaryDirectory(prefix="groupwise-rank-") as folder:
        return _run(set_up(request, Path(folder)), request)


def _run(training: Training, request: RunRequest) -> bool:
    log = training.log
    try:
        origin = {}
        if request.is_resumed and not request.start_over:
            name = training.restore(accept_verifier=request.accept_verifier, accept_logs=request.accept_logs)
            origin = {"checkpoint": name}
        else:
            if request.is_resumed:
                log.set_aside()
            record_start(training)
        kind = "resumed" if request.is_resumed else "started"
        log.write_event(kind, step=training.position.step, pid=os.getpid(), **origin)
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
                told = _explained(training, error)
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
    check_first_weights(training)
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
        position.sampler = position.kl_coefficient = position.entropy_bonus = None
        position.is_guard_broken = False
        training.saved = None


def check_first_weights(training: Training) -> None:
    """Check the weights that were loaded, before anything is sampled from them."""
    try:
        training.policy.check_weights()
    except UnusableWeights as error:
        if training.policy.version:
            raise
        path = training.recipe.model.path
        raise TrainingFailed(f"model.path = {path!r}: {error}; download or convert the model again") from error


def begin_stage(training: Training, stage: Stage) -> None:
    """Start a stage with a fresh optimizer and, if needed, the current policy as the reference."""
    position = training.position
    if stage.start_from == "best" and position.best_checkpoint:
        load_best(training)
    training.policy.begin_stage(
        stage.optimizer,
        keep_reference=stage.uses_reference,
        offload_reference=stage.offloads_reference,
        balance_routers=stage.balances_routers,
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


def _explained(training: Training, error: Exception) -> Exception:
    """Return the error with what to do about it, where that takes more than the error itself knows."""
    if _is_out_of_memory(error):
        return _out_of_memory(training, error)
    return _unusable(training, error) if isinstance(error, UnusableWeights) else error


def _unusable(training: Training, error: UnusableWeights) -> TrainingFailed:
    position, names, version = training.position, training.store.names(), training.policy.version
    stage = training.recipe.stages[position.stage_index]
    rate = f"stages.{position.stage_index}.optimizer.learning_rate = {stage.optimizer.learning_rate:g}"
    return TrainingFailed(
        f"step {position.step + 1}, stage {stage.name}, after {version} updates: {error}. The likely cause is {rate}: "
        "lower it and start a new run. "
        + (f"Nothing of this update was saved; the newest checkpoint is {names[-1]}" if names else "Nothing was saved")
    )


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
