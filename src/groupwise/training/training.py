"""A run in progress: what the loops of all stages share. It logs, evaluates, saves, and checks when to stop.

A checkpoint contains all that an exact resume needs: the policy's tensors, the position, the batch in flight, the
global random state, the identity that must be equal in a resumed run (recipe fingerprint, verifier, versions), and how
far each log had come.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from groupwise.base.signals import StopControl
from groupwise.config import ConfigError, Recipe, RlStage, Stage
from groupwise.data.batch import StepBatch, batch_from_json, batch_to_json
from groupwise.engines.engine import Engine
from groupwise.evals.guards import judge, read_guards
from groupwise.evals.held_out import evaluate
from groupwise.models.chat import Prompts
from groupwise.models.checkpoint_store import CheckpointStore, checkpoint_name, checkpoint_order, is_checkpoint_name
from groupwise.models.policy import Policy
from groupwise.runs import layout
from groupwise.runs.reader import Run
from groupwise.runs.writer import RunLog
from groupwise.scoring.scorer import Scorer
from groupwise.tasks.task import Task
from groupwise.training.metrics import trace_tokens
from groupwise.types import Problem, Prompt, ScoredGroup, StepRecord, UpdateStats

logger = logging.getLogger(__name__)

QUICK_SAVE_S = 5.0
"""Saves that take no longer than this are made whenever they are due."""


class TrainingFailed(RuntimeError):
    """The run cannot continue. The message says why and what to change. The run directory is intact."""


@dataclass(slots=True)
class Position:
    """The counters and decisions of a run that a resumed run must continue from."""

    stage_index: int = 0
    stage_step: int = 0
    """Steps of the stage that are complete."""
    step: int = 0
    """Steps of the run that are complete."""
    policy_version: int = 0
    num_tokens: int = 0
    """Tokens sampled so far."""
    nonfinite_in_a_row: int = 0
    kl_coefficient: float | None = None
    """Coefficient of the target-seeking controller."""
    entropy_bonus: float | None = None
    """Steered bonus of the entropy."""
    sampler: dict[str, Any] | None = None
    """State of the sampler after the newest batch was sampled."""
    last_eval_step: int = -1
    best_pass_at_1: float = -1.0
    best_checkpoint: str = ""
    evals_without_best: int = 0
    """Evaluations in this stage since the best one."""
    guards_at_start: dict[str, float] = field(default_factory=dict)
    """Readings of the guards before the first step."""
    is_guard_broken: bool = False
    """A guard that ends the stage was broken in this stage."""


@dataclass(slots=True)
class Training:
    recipe: Recipe
    run_dir: Path
    task: Task
    scorer: Scorer
    train_problems: Sequence[Problem]
    held_out: Sequence[Prompt]
    """The prompts of every evaluation."""
    policy: Policy
    engine: Engine
    prompts: Prompts
    log: RunLog
    store: CheckpointStore
    control: StopControl
    position: Position
    identity: dict[str, Any]
    """What must be equal in a resumed run: recipe fingerprint, verifier, versions."""
    batch: StepBatch | None = None
    """The batch in flight, between two updates of a step."""
    aside: dict[str, float] = field(default_factory=lambda: {"time/eval_s": 0.0, "time/checkpoint_s": 0.0})
    """Time spent on evaluating and saving since the last line of metrics."""
    save_s: float = 0.0
    """Duration of the last save; `save_end` is when it finished."""
    save_end: float = 0.0
    saved: tuple[int, int] | None = None
    """(step, updates into the next step) of the last checkpoint, so none is written twice."""

    def is_stage_over(self, stage: Stage) -> bool:
        """Return whether the stage ends before its next step. Evaluate first if due: a result can end it early."""
        self.evaluate_if_due(stage)
        patience = self.recipe.evaluation.patience
        is_stuck = patience > 0 and self.position.evals_without_best >= patience
        return self.position.stage_step >= stage.steps or is_stuck or self.position.is_guard_broken

    def log_rollouts(self, stage: Stage, groups: Sequence[ScoredGroup]) -> None:
        """Log the rollouts of the current step, if due."""
        step = self.position.step + 1
        if _is_due(step, self.recipe.logging.rollouts_every_steps):
            self.log.write_rollouts(step, stage.name, groups)

    def log_tokens(self, stage: RlStage, batch: StepBatch) -> None:
        """Log what the step's updates did to the tokens of its rollouts, if due."""
        step, logging = self.position.step + 1, self.recipe.logging
        if _is_due(step, logging.rollouts_every_steps) and _is_due(step, logging.tokens_every_steps):
            start = time.perf_counter()
            traces = trace_tokens(self.policy, batch, stage.sampling.temperature, stage.microbatch_tokens)
            self.log.write_tokens(step, stage.name, traces)
            batch.metrics["time/tokens_s"] = time.perf_counter() - start

    def after_update(self, stats: UpdateStats) -> None:
        """Count skipped updates, and save inside a step if the recipe asks for it."""
        position = self.position
        position.policy_version = self.policy.version
        if stats.is_finite and stats.num_tokens:  # an update without tokens says nothing
            position.nonfinite_in_a_row = 0
        if not stats.is_finite:
            position.nonfinite_in_a_row += 1
            self.log.write_event("update_skipped", step=position.step + 1, loss=stats.loss, grad_norm=stats.grad_norm)
        if position.nonfinite_in_a_row >= self.recipe.max_nonfinite_updates:
            raise TrainingFailed(
                f"step {position.step + 1}: loss or gradient was NaN or inf in {position.nonfinite_in_a_row} updates"
                f" in a row, which is max_nonfinite_updates; the weights are those from before. Lower the stage's "
                f"optimizer.learning_rate and start a new run; the best weights so far are in {self.run_dir}"
            )
        if self.batch is not None:
            if self.recipe.checkpoints.every_update:
                self.save()
            self.control.check()

    def after_step(self, stage: Stage, metrics: dict[str, float], *, num_tokens: int, seconds: float) -> None:
        """Log the step, evaluate and save if due."""
        position = self.position
        position.step += 1
        position.stage_step += 1
        position.num_tokens += num_tokens
        if metrics.get("time/sample_s"):
            metrics["engine/tokens_per_s"] = num_tokens / metrics["time/sample_s"]
        metrics |= self.aside | {"tokens/total": float(position.num_tokens), "time/step_s": seconds}
        self.aside = dict.fromkeys(self.aside, 0.0)
        if self.policy.device.type == "cuda":
            # torch does not count the engine's cache, which exists while sampling, or the memory of recordings.
            sampling = self.engine.peak_bytes + self.policy.recorded_bytes
            metrics["memory/peak_bytes"] = float(max(self.policy.take_peak_bytes(), sampling))
        self.log.write_step(StepRecord(position.step, stage.name, position.stage_step, metrics))
        self.evaluate_if_due(stage)
        if position.stage_step == stage.steps or self._is_worth_saving():
            self.save()
        self.control.check()

    def _is_worth_saving(self) -> bool:
        """Return whether to save: every N steps, unless the last save was slow and recent."""
        config = self.recipe.checkpoints
        if not _is_due(self.position.stage_step, config.every_steps):
            return False
        passed = time.perf_counter() - self.save_end
        is_cheap = self.save_s <= QUICK_SAVE_S or self.save_s <= config.time_share * (passed + self.save_s)
        return self.policy.world.gather(is_cheap)[0]  # clocks differ, but all ranks must save together

    def evaluate_if_due(self, stage: Stage) -> None:
        """Evaluate at the start of the run, every N steps and at the end of a stage, at most once per step."""
        config, position = self.recipe.evaluation, self.position
        at_start = position.step == 0 and config.at_start
        at_end = position.stage_step == stage.steps
        at_interval = position.step > 0 and _is_due(position.step, config.every_steps)
        if position.last_eval_step == position.step or not (at_start or at_end or at_interval):
            return
        with self._measuring():
            record, groups = evaluate(self.recipe, self.scorer, self.held_out, self.policy, self.engine)
        self.aside["time/eval_s"] += record.seconds
        # Before the evaluation is recorded: if a stop interrupts it, the resumed run repeats both.
        is_sound = self.passes_guards()
        self.log.write_eval(replace(record, step=position.step, stage=stage.name), groups)
        position.last_eval_step = position.step
        if is_sound and record.pass_at_1 > position.best_pass_at_1:
            position.best_pass_at_1, position.evals_without_best = record.pass_at_1, 0
            if self.recipe.checkpoints.keep_best:
                position.best_checkpoint = checkpoint_name(position.step)
                self.save()
                self.store.mark(position.best_checkpoint, "best")
        else:
            position.evals_without_best += 1

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """Use the weights that are evaluated. A stop may interrupt what is done with them, but not their swap."""
        with self.policy.averaged() if self.recipe.evaluation.use_ema else nullcontext(), self.control.interruptible():
            yield

    def passes_guards(self) -> bool:
        """Return whether the model has kept its abilities outside the task since the start of the run."""
        config, position = self.recipe.guards, self.position
        if config is None:
            return True
        start = time.perf_counter()
        with self._measuring():
            now = dict(read_guards(config, self.policy, self.engine))
        self.aside["time/eval_s"] += time.perf_counter() - start
        position.guards_at_start = position.guards_at_start or now
        broken = judge(config, position.guards_at_start, now)
        self.log.write_event("guards", step=position.step, broken=broken, action=config.action, **now)
        for sentence in broken:
            logger.warning("step %d: %s", position.step, sentence)
        position.is_guard_broken = bool(broken) and config.action != "warn"
        return not broken

    def save(self) -> None:
        """Save the run after a step or, with a batch in flight, inside one. Nothing is written twice."""
        position, batch = self.position, self.batch
        updates_done = len(batch.updates) if batch else 0
        if self.saved == (position.step, updates_done):
            return
        name = checkpoint_name(position.step + 1, updates_done) if batch else checkpoint_name(position.step)
        start = time.perf_counter()
        state = {
            "position": asdict(position),
            "batch": batch_to_json(batch) if batch else None,
            "identity": self.identity,
            "random": random_state(),
            "logs": self.log.notes(),
        }
        is_stage_over = position.stage_step >= self.recipe.stages[position.stage_index].steps
        tensors = self.policy.state(is_stage_over=is_stage_over)
        self.log.confirm_lock()
        self.store.save(name, tensors, state, protected={position.best_checkpoint})
        self.policy.world.gather(None)  # no rank reads the checkpoint before it is complete
        self.saved = (position.step, updates_done)
        self.save_end = time.perf_counter()
        self.save_s = self.save_end - start
        self.aside["time/checkpoint_s"] += self.save_s
        self.log.write_event("checkpoint", name=name, seconds=self.save_s)

    def restore(self, *, accept_verifier: bool = False, accept_logs: bool = False) -> str:
        """Load the newest valid checkpoint; return its name. A run that has saved none starts over: then it is ""."""
        path = self.store.newest_valid(_newest_saved(Run(self.run_dir).events()))
        # Rank 0 chooses the checkpoint; the others only read.
        path, refusal = self.policy.world.gather((path, self._refusal_to_start_over(path)))[0]
        if refusal:
            raise ConfigError(refusal)
        if path is None:
            logger.warning("%s has saved no checkpoint yet: it starts over at step 1", self.run_dir)
            self.log.rewind(0, eval_step=-1)
            return ""
        if self.store.passed_over:
            logger.warning("%s continues from %s: the steps after it are repeated", self.run_dir, path.name)
        tensors, state = self.store.load(path, check=False)
        refuse_changes(self.identity, state["identity"], accept_verifier)
        # Only rank 0 has logs, and it moves checkpoints only after all ranks have loaded theirs.
        differences = self.policy.world.gather(self.log.differences(state.get("logs", {})))[0]
        if differences and not accept_logs:
            raise ConfigError(
                f"the logs are not those that {path} was saved with:\n  "
                + "\n  ".join(differences)
                + "\nRestore them and resume again, or continue with those that are there: --accept-logs "
                "(accept_logs=True)"
            )
        path = self.store.rewind(path.name)
        if differences:
            self.log.write_event("logs_accepted", differences=differences)
        verifiers = [state["identity"]["verifier"], self.identity["verifier"]]
        if verifiers[0] != verifiers[1]:
            self.log.write_event("verifier_changed", step=state["position"]["step"], change=" → ".join(verifiers))
        position = Position(**state["position"])
        stage = self.recipe.stages[position.stage_index]
        self.policy.begin_stage(
            stage.optimizer,
            keep_reference=stage.uses_reference,
            offload_reference=stage.offloads_reference,
            balance_routers=stage.balances_routers,
        )
        self.policy.load_state(tensors, position.policy_version)
        self.position = position
        self.batch = batch_from_json(state["batch"]) if state["batch"] else None
        # A run that is finished saves once more if it must note other logs.
        self.saved = None if differences else (position.step, len(self.batch.updates) if self.batch else 0)
        restore_random_state(state["random"])
        # The rollouts of a step in flight were written before the checkpoint and are not sampled again.
        in_flight = 1 if self.batch else 0
        self.log.rewind(position.step, eval_step=position.last_eval_step, rollout_step=position.step + in_flight)
        if position.best_checkpoint in self.store.names():
            self.store.mark(position.best_checkpoint, "best")
        return path.name

    def _refusal_to_start_over(self, path: Path | None) -> str:
        """Return why a run that lost what it saved does not simply start over; "" if it goes on or saved nothing.

        The checkpoint of step 0 is the start: a run that lost all others starts over there too.
        """
        run, lost, folder = Run(self.run_dir), self.store.passed_over, self.store.root
        if path is not None and not (lost and path.name.endswith(checkpoint_name(0))):
            return ""
        events = run.events()
        saved = _newest_saved(events)
        steps = [record.step for record in run.steps()] + run.rollout_steps()
        step = max(checkpoint_order(saved or checkpoint_name(0))[0], *steps, 0)
        if step == 0 or (events and not saved and not lost):
            return ""
        reasons = [f"{name}: {reason}" for name, reason in lost.items()]
        reasons = reasons or [f"{folder} {'has no checkpoint' if folder.is_dir() else 'is missing'}"]
        return (
            f"{self.run_dir} has logs up to step {step}, but no checkpoint to continue from:\n  "
            + "\n  ".join(reasons)
            + f"\nRestore {folder} and resume again. Or start over at step 1 with --start-over (start_over=True): it "
            f"moves logs and checkpoints to {self.run_dir / layout.OLD}-N and deletes nothing"
        )


def _newest_saved(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the checkpoint that was saved or continued from last; "" if no event says."""
    keys = {"checkpoint": "name", "resumed": "checkpoint"}
    names = [event[keys[event["kind"]]] for event in events if keys.get(event.get("kind", "")) in event]
    return names[-1] if names and is_checkpoint_name(names[-1]) else ""


def refuse_changes(now: Mapping[str, Any], then: Mapping[str, Any], accept_verifier: bool = False) -> None:
    """Refuse to resume where something of the identity that is known now differs from the run's."""
    for key, fix in (
        ("fingerprint", "restore recipe.toml"),
        ("verifier", "install the version that it was started with, or continue anyway with --accept-verifier"),
    ):
        if key in now and now[key] != then[key] and not (key == "verifier" and accept_verifier):
            raise ConfigError(
                f"this run was started with {key} {then[key]} and would continue with {now[key]}: its numbers would "
                f"not be comparable; {fix}, or start a new run"
            )


def seed_random_state(seed: int) -> None:
    """Seed the global generators, which dropout and user-defined tasks may use."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [part.tolist() if isinstance(part, numpy.ndarray) else part for part in numpy.random.get_state()],
        "torch": torch.get_rng_state().tolist(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().tolist()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8))


def _is_due(step: int, every_steps: int) -> bool:
    return every_steps > 0 and step % every_steps == 0
