"""A run in progress: what the loops of all stages share. It logs, evaluates, saves, and checks when to stop.

The loops change the policy and `position`, which contain everything that a resumed run needs. `position` is plain JSON
and is saved in every checkpoint with the policy's tensors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from groupwise.base.signals import StopControl
from groupwise.config import Recipe, RlStage, Stage
from groupwise.data.batch import StepBatch
from groupwise.engines.engine import Engine
from groupwise.evals.guards import judge, read_guards
from groupwise.evals.held_out import evaluate
from groupwise.models.chat import Prompts
from groupwise.models.checkpoint_store import CheckpointStore, checkpoint_name
from groupwise.models.policy import Policy
from groupwise.runs.writer import RunLog
from groupwise.scoring.scorer import Scorer
from groupwise.tasks.task import Task
from groupwise.training import checkpoint
from groupwise.training.checkpoint import Position
from groupwise.training.metrics import trace_tokens
from groupwise.types import Problem, Prompt, ScoredGroup, StepRecord, UpdateStats

logger = logging.getLogger(__name__)

QUICK_SAVE_S = 5.0
"""Saves that take no longer than this are made whenever they are due."""


class TrainingFailed(RuntimeError):
    """The run cannot continue. The message says why and what to change. The run directory is intact."""


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
        position.nonfinite_in_a_row = 0 if stats.is_finite else position.nonfinite_in_a_row + 1
        if not stats.is_finite:
            self.log.write_event("update_skipped", step=position.step + 1, loss=stats.loss, grad_norm=stats.grad_norm)
        if position.nonfinite_in_a_row >= self.recipe.max_nonfinite_updates:
            raise TrainingFailed(
                f"step {position.step + 1}: loss or gradient was NaN or inf in {position.nonfinite_in_a_row} updates"
                f" in a row, which is max_nonfinite_updates; the weights are those from before. Lower the stage's "
                f"optimizer.learning_rate and start a new run; the best weights so far are in {self.run_dir}"
            )
        if self.batch is not None:
            if self.recipe.checkpoints.every_update:
                checkpoint.save(self)
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
            checkpoint.save(self)
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
                checkpoint.save(self)
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


def _is_due(step: int, every_steps: int) -> bool:
    return every_steps > 0 and step % every_steps == 0
