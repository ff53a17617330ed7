"""A run in progress: what the loops of the stages share. It logs, evaluates, saves, and notices when to stop.

The loops change the policy and `position`; everything that a resumed run needs is in those two. `position` is plain
JSON and goes into every checkpoint beside the policy's tensors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from groupwise.base.signals import StopControl
from groupwise.config import Recipe, RlStage, Stage
from groupwise.data.step_batch import StepBatch
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
from groupwise.training.position import Position
from groupwise.training.traces import trace_tokens
from groupwise.types import Problem, ScoredGroup, StepRecord, UpdateStats

logger = logging.getLogger(__name__)

QUICK_SAVE_S = 5.0
"""A save that takes no longer is made whenever it is due."""


class TrainingFailed(RuntimeError):
    """The run cannot go on. The message says why and what to change; the run directory is intact."""


@dataclass(slots=True)
class Training:
    recipe: Recipe
    run_dir: Path
    task: Task
    scorer: Scorer
    train_problems: Sequence[Problem]
    held_out_problems: Sequence[Problem]
    policy: Policy
    engine: Engine
    prompts: Prompts
    log: RunLog
    store: CheckpointStore
    control: StopControl
    position: Position
    identity: dict[str, Any]
    """What a resumed run must agree with: recipe fingerprint, verifier, versions."""
    batch: StepBatch | None = None
    """The batch in flight, between two updates of a step."""
    aside: dict[str, float] = field(default_factory=lambda: {"time/eval_s": 0.0, "time/checkpoint_s": 0.0})
    """Time spent on evaluating and saving since the newest line of metrics."""
    save_s: float = 0.0
    """How long the newest save took, and when it was over."""
    save_end: float = 0.0
    saved: tuple[int, int] | None = None
    """(step, updates into the next one) of the newest checkpoint, so that none is written twice."""

    def interruptible(self) -> AbstractContextManager[None]:
        return self.control.interruptible()

    def is_stage_over(self, stage: Stage) -> bool:
        """Asked before each step. Evaluates first when that is due, since a bad enough run ends its stage early."""
        self.evaluate_if_due(stage)
        patience = self.recipe.evaluation.patience
        is_stuck = patience > 0 and self.position.evals_without_best >= patience
        return self.position.stage_step >= stage.steps or is_stuck or self.position.is_guard_broken

    def log_rollouts(self, stage: Stage, groups: Sequence[ScoredGroup]) -> None:
        """Of the step that is now in flight."""
        step = self.position.step + 1
        if _is_due(step, self.recipe.logging.rollouts_every_steps):
            self.log.write_rollouts(step, stage.name, groups)

    def log_tokens(self, stage: RlStage, batch: StepBatch) -> None:
        """What the step's updates did to the tokens of its rollouts."""
        step, logging = self.position.step + 1, self.recipe.logging
        if _is_due(step, logging.rollouts_every_steps) and _is_due(step, logging.tokens_every_steps):
            start = time.perf_counter()
            traces = trace_tokens(self.policy, batch, stage.sampling.temperature, stage.microbatch_tokens)
            self.log.write_tokens(step, stage.name, traces)
            batch.metrics["time/tokens_s"] = time.perf_counter() - start

    def after_update(self, stats: UpdateStats) -> None:
        """Count what could not be applied, and save inside a step where that was asked for."""
        position = self.position
        position.policy_version = self.policy.version
        position.nonfinite_in_a_row = 0 if stats.is_finite else position.nonfinite_in_a_row + 1
        if not stats.is_finite:
            self.log.write_event("update_skipped", step=position.step + 1, loss=stats.loss, grad_norm=stats.grad_norm)
        if position.nonfinite_in_a_row >= self.recipe.max_nonfinite_updates:
            raise TrainingFailed(
                f"step {position.step + 1}: loss or gradient was NaN or inf in {position.nonfinite_in_a_row} updates"
                f" in a row, which is max_nonfinite_updates; the weights are those before them. Lower the stage's "
                f"optimizer.learning_rate and start a new run; the best weights so far are in {self.run_dir}"
            )
        if self.batch is not None:
            if self.recipe.checkpoints.every_update:
                checkpoint.save(self)
            self.control.check()

    def after_step(self, stage: Stage, metrics: dict[str, float], *, num_tokens: int, seconds: float) -> None:
        """Log the step, save if it is time."""
        position = self.position
        position.step += 1
        position.stage_step += 1
        position.num_tokens += num_tokens
        if metrics.get("time/sample_s"):
            metrics["engine/tokens_per_s"] = num_tokens / metrics["time/sample_s"]
        metrics |= self.aside | {"tokens/total": float(position.num_tokens), "time/step_s": seconds}
        self.aside = dict.fromkeys(self.aside, 0.0)
        if self.policy.device.type == "cuda":
            # torch does not know of the engine's cache, which is held while it draws, nor of what recordings use.
            sampling = self.engine.peak_bytes + self.policy.recorded_bytes
            metrics["memory/peak_bytes"] = float(max(self.policy.take_peak_bytes(), sampling))
        self.log.write_step(StepRecord(position.step, stage.name, position.stage_step, metrics))
        self.evaluate_if_due(stage)
        if position.stage_step == stage.steps or self._is_worth_saving():
            checkpoint.save(self)
        self.control.check()

    def _is_worth_saving(self) -> bool:
        """Every so many steps, unless the last save took long and was not long ago."""
        config = self.recipe.checkpoints
        if not _is_due(self.position.stage_step, config.every_steps):
            return False
        passed = time.perf_counter() - self.save_end
        is_cheap = self.save_s <= QUICK_SAVE_S or self.save_s <= config.time_share * (passed + self.save_s)
        return self.policy.world.gather(is_cheap)[0]  # clocks differ, and all ranks save together

    def evaluate_if_due(self, stage: Stage) -> None:
        """Held-out pass@1 at the start of the run, every N steps and at the end of a stage; once per step."""
        config, position = self.recipe.evaluation, self.position
        at_start = position.step == 0 and config.at_start
        at_end = position.stage_step == stage.steps
        at_interval = config.every_steps > 0 and position.step > 0 and position.step % config.every_steps == 0
        if position.last_eval_step == position.step or not (at_start or at_end or at_interval):
            return
        record, groups = evaluate(
            self.recipe,
            self.scorer,
            self.held_out_problems,
            self.policy,
            self.engine,
            self.prompts,
            self.interruptible,
        )
        self.aside["time/eval_s"] += record.seconds
        # Before the evaluation is noted: a stop inside of it must leave both for the resumed run.
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

    def passes_guards(self) -> bool:
        """Whether the model still is, away from the task, what it was at the start of the run."""
        config, position = self.recipe.guards, self.position
        if config is None:
            return True
        start = time.perf_counter()
        with self.policy.averaged() if self.recipe.evaluation.use_ema else nullcontext():
            now = dict(read_guards(config, self.policy, self.engine, self.interruptible))
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
