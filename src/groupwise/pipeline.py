"""From a recipe to a finished run: set everything up, run the stages one after the other, resume where a run stopped.

    train(recipe, run_dir) ──▶ lock ──▶ task, model, engine ──▶ for each stage: begin, run its loop ──▶ done
    resume(run_dir)        ──▶ lock ──▶ the same, then the newest valid checkpoint ──▶ go on where it stands

One run directory, one step axis over all stages. Nothing is trained before everything that can be checked was checked:
recipe, data, overlap of train and held-out, the model's files, context length.
"""

from __future__ import annotations

import logging
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import transformers

import groupwise
from groupwise import grpo, sft
from groupwise.audit.held_out_gain import held_out_gains
from groupwise.checkpoint import CheckpointReader, CheckpointStore
from groupwise.collect import Prompts
from groupwise.config import (
    ConfigError,
    EngineConfig,
    Recipe,
    RlStage,
    SftStage,
    Stage,
    dump_toml,
    fingerprint,
    make_recipe,
    to_table,
)
from groupwise.control import StopControl, StopRequested
from groupwise.data.step_batch import batch_from_json
from groupwise.distributed.world import Alone, RankLost, World
from groupwise.doctor.live import EVENT as FINDING
from groupwise.doctor.live import LiveDoctor
from groupwise.engines.engine import Engine
from groupwise.engines.native.engine import NativeEngine
from groupwise.engines.native.memory import DeviceMemoryError, ReleasableMemory
from groupwise.engines.reference import ReferenceEngine
from groupwise.engines.refilled import RefilledEngine
from groupwise.engines.vllm.backend import Backend
from groupwise.engines.vllm.engine import VllmEngine
from groupwise.engines.vllm.in_process import InProcess
from groupwise.engines.vllm.server import Server
from groupwise.evals.contamination import find_contamination
from groupwise.evals.guards import check_guards_fit
from groupwise.evals.held_out import eval_max_new_tokens
from groupwise.models.chat import check_fits
from groupwise.models.export import save_folder
from groupwise.models.memory import memory_limit_gib
from groupwise.models.policy import Policy, load_policy
from groupwise.models.publish import PublishedWeights
from groupwise.models.replica import HostMemory
from groupwise.rehearsal import OutOfMemory, ran_out, rehearse
from groupwise.runlog import RunLogError, layout
from groupwise.runlog.lock import RunLock
from groupwise.runlog.reader import Run
from groupwise.runlog.sinks import Sink, make_sink, tracked_name
from groupwise.runlog.writer import RunLog
from groupwise.tasks import check_splits, make_task
from groupwise.training import Position, Training, restore_random_state, seed_random_state
from groupwise.verifiers.scorer import ScorerMaker, make_scorer, verifier_version
from groupwise.workers import num_cores

logger = logging.getLogger(__name__)

LOOPS: Mapping[type[Stage], Callable[[Training, Any], None]] = {RlStage: grpo.run_stage, SftStage: sft.run_stage}


def train(
    recipe: Recipe,
    run_dir: Path,
    sinks: Sequence[Sink] = (),
    world: World | None = None,
    *,
    make_scorer: ScorerMaker = make_scorer,
) -> bool:
    """Start a run. True when it finished, False when it was asked to stop (and saved)."""
    world = world or Alone()
    if world.rank > 0:
        return _run(recipe, run_dir, sinks, world, make_scorer, is_resumed=False)
    if (run_dir / layout.RECIPE).exists():
        raise ConfigError(
            f"{run_dir} holds a run already; go on with `groupwise train --resume {run_dir}`, or take another --run-dir"
        )
    try:
        layout.validate_run_name(run_dir.resolve().name)
    except layout.RunNameError as error:
        raise ConfigError(f"--run-dir {run_dir}: {error}") from None
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"{run_dir} is a file, not a folder; choose another --run-dir")
    with RunLock(run_dir):
        return _run(recipe, run_dir, sinks, world, make_scorer, is_resumed=False)


def resume(
    run_dir: Path,
    sinks: Sequence[Sink] = (),
    world: World | None = None,
    *,
    accept_verifier: bool = False,
    make_scorer: ScorerMaker = make_scorer,
) -> bool:
    """Go on with a run, from its newest checkpoint that verifies.

    A verifier of another version than the run began with is refused, unless `accept_verifier`; the log tells.
    """
    world, recipe = world or Alone(), recipe_of(run_dir)
    # One rank writes, and so one rank holds the lock.
    with RunLock(run_dir) if world.rank == 0 else nullcontext():
        return _run(recipe, run_dir, sinks, world, make_scorer, is_resumed=True, accept_verifier=accept_verifier)


def recipe_of(run_dir: Path) -> Recipe:
    """The resolved recipe that a run was started with."""
    if not (run_dir / layout.RECIPE).exists():
        raise ConfigError(f"{run_dir} holds no run to resume: there is no {layout.RECIPE} in it")
    return make_recipe(Run(run_dir).recipe)


def default_run_dir(recipe: Recipe) -> Path:
    return Path("runs") / f"{recipe.name}-{fingerprint(recipe)[:8]}"


def memory_limit_of(run_dir: Path) -> float | None:
    """In GiB, that a run was started with. Sizes of packs and chunks go by it, and so the last bits of every sum."""
    if not (run_dir / layout.INFO).exists():  # killed as it began
        return None
    limit = Run(run_dir).info.get("machine", {}).get("memory_limit_gib")
    return None if limit is None else float(limit)


def _run(
    recipe: Recipe,
    run_dir: Path,
    sinks: Sequence[Sink],
    world: World,
    make_scorer: ScorerMaker,
    *,
    is_resumed: bool,
    accept_verifier: bool = False,
) -> bool:
    with own_folder(run_dir, world) as folder:
        training = set_up(recipe, run_dir, sinks, world, folder, make_scorer)
        return _run_in(training, is_resumed, accept_verifier)


@contextmanager
def own_folder(run_dir: Path, world: World) -> Iterator[Path]:
    """Where a rank writes: rank 0 into the run directory, the others into one that is thrown away."""
    if world.rank == 0:
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix="groupwise-rank-") as folder:
        yield Path(folder)


def _run_in(training: Training, is_resumed: bool, accept_verifier: bool) -> bool:
    recipe, run_dir = training.recipe, training.run_dir
    try:
        if is_resumed:
            restore(training, accept_verifier=accept_verifier)
        else:
            training.log.write_recipe(dump_toml(to_table(recipe)))
            training.log.write_info(training.identity | {"name": run_dir.name, "machine": _machine(training.policy)})
            warn_of_contamination(training)
        training.log.write_event("resumed" if is_resumed else "started", step=training.position.step, pid=os.getpid())
        with training.control.listening():
            try:
                run_stages(training)
            except StopRequested:
                training.save()
                training.log.write_event("stopped", step=training.position.step)
                return False
            except RankLost as error:
                training.log.write_event("rank_lost", step=training.position.step, reason=str(error))
                raise
            except Exception as error:
                told = OutOfMemory(_ran_out(training, error)) if _is_out_of_memory(error) else error
                # Whoever looks at the run later should read why it ended; where the disk is full, it cannot be kept.
                with suppress(RunLogError):
                    reason = f"{type(told).__name__}: {told}"
                    training.log.write_event("failed", step=training.position.step, reason=reason)
                if told is error:
                    raise
                raise told from error
        training.log.write_event("finished", step=training.position.step)
        return True
    finally:
        training.scorer.close()
        training.log.close()
        if isinstance(training.engine, VllmEngine):
            training.engine.close()


def _is_out_of_memory(error: Exception) -> bool:
    """As torch, our own memory and the libraries that torch calls say it."""
    if isinstance(error, DeviceMemoryError):
        return error.is_out_of_memory
    is_said_by_library = isinstance(error, RuntimeError) and "STATUS_ALLOC_FAILED" in str(error)
    return isinstance(error, torch.OutOfMemoryError) or is_said_by_library


def _ran_out(training: Training, error: Exception) -> str:
    position, names = training.position, training.store.names()
    stage = training.recipe.stages[position.stage_index]
    saved = names[-1] if names else None
    return ran_out(stage, position.stage_index, position.step + 1, saved, training.run_dir, error)


def set_up(
    recipe: Recipe,
    run_dir: Path,
    sinks: Sequence[Sink] = (),
    world: World | None = None,
    folder: Path | None = None,
    make_scorer: ScorerMaker = make_scorer,
) -> Training:
    """Everything that a run needs, checked; a policy at its initial weights. This rank's log goes to `folder`."""
    world, folder = world or Alone(), folder or run_dir
    seed_random_state(recipe.seed)
    task = make_task(recipe.task.name, recipe.task.options)
    train_problems, held_out = check_splits(task)
    for stage in recipe.stages:
        if isinstance(stage, SftStage):
            sft.check_source(stage, task, held_out)
    policy = load_policy(recipe, world)
    prompts = Prompts(policy.tokenizer)
    for stage in recipe.stages:
        if isinstance(stage, RlStage):
            check_fits([prompts[p] for p in train_problems], stage.sampling.max_new_tokens, policy.context_tokens)
    evaluated = held_out[: recipe.evaluation.num_problems or None]
    check_fits([prompts[p] for p in evaluated], eval_max_new_tokens(recipe), policy.context_tokens)
    if recipe.guards is not None:
        check_guards_fit(recipe.guards, prompts, policy.context_tokens)
    # Before anything is written: an engine that others provide may not be there.
    engine = make_engine(recipe.engine, policy)
    # A tracker that every rank reported to would show the run once for each.
    named = recipe.logging.sinks if world.rank == 0 else ()
    named_sinks = [make_sink(name, run_dir, tracked_name(run_dir), to_table(recipe)) for name in named]
    doctor = LiveDoctor(folder, to_table(recipe), lambda found: log.write_event(FINDING, **found.to_json()))
    log = RunLog(folder, [*sinks, *named_sinks, doctor] if world.rank == 0 else [])
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
        scorer=make_scorer(task, recipe.verifier),
        train_problems=train_problems,
        held_out_problems=held_out,
        policy=policy,
        engine=engine,
        prompts=prompts,
        log=log,
        store=store,
        control=StopControl(None if world.size == 1 else lambda is_asked: any(world.gather(is_asked))),
        position=Position(),
        identity=_identity(recipe, verifier_version(task, recipe.verifier.process)),
    )


def make_engine(config: EngineConfig, policy: Policy) -> Engine:
    if policy.world.is_alone:
        return _make_engine(config, policy, policy.model)
    if config.name == "vllm":
        raise ConfigError('engine.name = "vllm": is for one rank; take engine.name = "native" under torchrun')
    replica = policy.replica(ReleasableMemory(policy.device) if policy.device.type == "cuda" else HostMemory())
    return RefilledEngine(_make_engine(config, policy, replica.model), replica.filled, replica.num_bytes)


def _make_engine(config: EngineConfig, policy: Policy, model: Any) -> Engine:
    if config.name == "vllm":
        weights = PublishedWeights(model)
        return VllmEngine(_make_backend(config, policy), weights, policy.tokenizer, policy.stop_token_ids)
    parts = (model, policy.tokenizer, policy.stop_token_ids, config.max_batch_rollouts)
    if config.name == "native":
        return NativeEngine(*parts, cache_tokens=config.cache_tokens)
    return ReferenceEngine(*parts)


def _make_backend(config: EngineConfig, policy: Policy) -> Backend:
    if config.url:
        return Server(
            config.url,
            weights_folder=config.weights_folder,
            max_batch_rollouts=config.max_batch_rollouts,
            timeout_s=config.timeout_s,
        )
    return InProcess(
        lambda folder: save_folder(policy, folder),
        dtype=str(policy.model.dtype).removeprefix("torch."),
        device=policy.device.type,
        context_tokens=policy.context_tokens,
        max_batch_rollouts=config.max_batch_rollouts,
        memory_share=config.memory_share,
    )


def run_stages(training: Training) -> None:
    position, stages = training.position, training.recipe.stages
    while position.stage_index < len(stages):
        stage = stages[position.stage_index]
        if position.stage_step == 0 and training.batch is None:
            begin_stage(training, stage)
        rehearse_stage(training, stage)
        LOOPS[type(stage)](training, stage)
        if position.is_guard_broken and training.recipe.guards and training.recipe.guards.action == "fall_back":
            fall_back(training)
        warn_of_hollow_reward(training, stage)
        training.save()
        position.stage_index += 1
        position.stage_step = position.evals_without_best = 0
        position.sampler = position.kl_coefficient = None
        position.is_guard_broken = False
        training.saved = None


def rehearse_stage(training: Training, stage: Stage) -> None:
    """Refuse a stage whose longest batch does not fit, before its first step."""
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
    """A fresh optimizer and, where the stage needs one, a reference: the policy as it is now."""
    position = training.position
    if stage.start_from == "best" and position.best_checkpoint:
        load_best(training)
    training.policy.begin_stage(
        stage.optimizer, keep_reference=stage.uses_reference, offload_reference=stage.offloads_reference
    )
    training.log.write_event("stage", name=stage.name, index=position.stage_index, step=position.step)


def load_best(training: Training) -> None:
    tensors, _ = training.store.load(training.store.root / training.position.best_checkpoint)
    # The best by its moving average, where that is what was evaluated.
    training.policy.load_weights(tensors["ema" if training.recipe.evaluation.use_ema else "weights"])


def fall_back(training: Training) -> None:
    """After a broken guard: the weights of the best checkpoint, in which none was broken."""
    load_best(training)
    # The checkpoint of this step, if there is one, holds the weights that are given up.
    training.saved = None
    training.log.write_event("fell_back", step=training.position.step, checkpoint=training.position.best_checkpoint)


def warn_of_contamination(training: Training) -> None:
    """Exact copies in one's own held-out split were refused before; what is nearly a copy is told of."""
    if training.policy.world.rank > 0:
        return
    evaluated = training.held_out_problems[: training.recipe.evaluation.num_problems or None]
    found = find_contamination(evaluated, training.train_problems)
    if found.overlaps:
        training.log.write_event("contamination", **found.to_json())
        logger.warning("%s; see `contamination` in %s", found, training.run_dir / layout.EVENTS)


def warn_of_hollow_reward(training: Training, stage: Stage) -> None:
    """Reward that surely rose while held-out pass@1 may not have is what hacking it, or memorizing, looks like."""
    if training.policy.world.rank > 0:
        return
    run = Run(training.run_dir)
    for gain in held_out_gains(run.steps(), run.evals()):
        if gain.stage == stage.name and gain.is_suspicious:
            training.log.write_event("hollow_reward", step=training.position.step, **gain.to_json())
            logger.warning(
                "stage %s: training reward rose by %.3f and held-out pass@1 by %.1f points (95 %% interval %.1f to "
                "%.1f), so it may not have risen at all; look with `groupwise audit %s`",
                *(stage.name, gain.reward_gain, 100 * gain.held_out_gain),
                *(100 * gain.held_out_gain_low, 100 * gain.held_out_gain_high, training.run_dir),
            )


def restore(training: Training, *, accept_verifier: bool = False) -> None:
    """Take up the newest valid checkpoint. Without one the run starts over, which gives the same numbers."""
    path = training.store.newest_valid()
    if path is not None:
        path = training.store.rewind(path.name)
    # What rank 0 found and went back to: the others only read.
    path = training.policy.world.gather(path)[0]
    if path is None:
        training.log.rewind(0, eval_step=-1)
        return
    tensors, state = training.store.load(path, check=False)
    changed = _refuse_changes(training.identity, state["identity"], accept_verifier)
    if changed:
        training.log.write_event("verifier_changed", step=state["position"]["step"], change=changed)
    position = Position(**state["position"])
    stage = training.recipe.stages[position.stage_index]
    training.policy.begin_stage(
        stage.optimizer, keep_reference=stage.uses_reference, offload_reference=stage.offloads_reference
    )
    training.policy.load_state(tensors, position.policy_version)
    training.position = position
    training.batch = batch_from_json(state["batch"]) if state["batch"] else None
    training.saved = (position.step, len(training.batch.updates) if training.batch else 0)
    restore_random_state(state["random"])
    # The rollouts of a step in flight were written before the checkpoint, and are not sampled again.
    in_flight = 1 if training.batch else 0
    training.log.rewind(position.step, eval_step=position.last_eval_step, rollout_step=position.step + in_flight)
    if position.best_checkpoint in training.store.names():
        training.store.mark(position.best_checkpoint, "best")


def _refuse_changes(now: Mapping[str, Any], then: Mapping[str, Any], accept_verifier: bool) -> str:
    """The change of verifier that was accepted; "" where there is none."""
    for key, fix in (
        ("fingerprint", "restore recipe.toml"),
        ("verifier", "install the version that it was started with, or go on all the same with --accept-verifier"),
    ):
        if now[key] != then[key] and not (key == "verifier" and accept_verifier):
            raise ConfigError(
                f"this run was started with {key} {then[key]} and would go on with {now[key]}: its numbers would not "
                f"be comparable; {fix}, or start a new run"
            )
    return "" if now["verifier"] == then["verifier"] else f"{then['verifier']} → {now['verifier']}"


def _identity(recipe: Recipe, verifier: str) -> dict[str, Any]:
    return {"fingerprint": fingerprint(recipe), "verifier": verifier, "versions": versions()}


def versions() -> dict[str, str]:
    return {
        "groupwise": groupwise.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _machine(policy: Policy) -> dict[str, Any]:
    num_parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    return {
        "device": policy.device.type,
        "device_name": policy.device_name,
        "num_parameters": num_parameters,
        "num_cores": num_cores(),
        "memory_limit_gib": memory_limit_gib(policy.device),
    }
