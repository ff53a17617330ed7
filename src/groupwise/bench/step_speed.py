"""Time of a training step by phase: the first RL stage of a recipe, run unchanged for a few steps.

The run is a real one, through the pipeline, in a temporary folder; it ends before anything is evaluated or saved. All
numbers come from the metrics that it writes. The stage keeps its own length, and with it the learning rate of each
step. Earlier stages are skipped, so the stage starts from the initial weights.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from groupwise.base.text_layout import aligned, percent
from groupwise.config import ConfigError, Recipe, RlStage
from groupwise.models.device_memory import ReleasableMemory
from groupwise.models.placement import limit_memory
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from groupwise.training.setup import RunRequest
from groupwise.types import EvalRecord, StepRecord

PHASES = ("sample", "score", "logprobs", "update")
"""Each is a metric `time/…_s`; the remaining time of a step is called rest."""


class RunStopped(RuntimeError):
    """The run ended before all steps were measured."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Means over the measured steps unless stated otherwise."""

    recipe: str
    stage: str
    skipped_stages: tuple[str, ...]
    """Stages that come before this one in the recipe."""
    device: str
    steps: int
    """Measured steps: those after the warm-up."""
    warmup_steps: int
    steps_without_update: int
    """Measured steps with nothing to learn from, which make the update look faster than it is."""
    step_s: float
    step_max_s: float
    phases_s: dict[str, float]
    """Seconds of sample, score, logprobs, update and rest; they add up to `step_s`."""
    rollouts: float
    tokens: float
    """Sampled tokens in a step."""
    learned_tokens: float
    """Sampled tokens that went through the updates, counted once per update."""
    mean_tokens: float
    """Mean length of a completion."""
    tokens_per_s: float
    """Sampled tokens / seconds of the step."""
    sample_tokens_per_s: float
    """Sampled tokens / seconds of sampling."""
    peak_bytes: float | None
    """Largest of all steps, warm-up included: what the run needs. None on a CPU."""
    logprob_gap_mean: float | None
    """Mean gap between engine and learner logprobs over the tokens that were learned from; None if there were none."""
    logprob_gap_max: float | None

    def __str__(self) -> str:
        rows = [("step", f"{self.step_s:.3f} s", f"largest {self.step_max_s:.3f} s")]
        rows += [
            (f"  {phase}", f"{seconds:.3f} s", percent(seconds / self.step_s, 0))
            for phase, seconds in self.phases_s.items()
        ]
        rows += [
            ("rollouts", f"{self.rollouts:,.0f}", f"of {self.mean_tokens:.1f} tokens"),
            ("tokens", f"{self.tokens:,.0f}", f"learned from {self.learned_tokens:,.0f}"),
            ("tokens/s", f"{self.tokens_per_s:,.0f}", f"while sampling {self.sample_tokens_per_s:,.0f}"),
        ]
        if self.peak_bytes is not None:
            rows.append(("peak memory", f"{self.peak_bytes / 2**30:.2f} GiB", ""))
        if self.logprob_gap_mean is not None and self.logprob_gap_max is not None:
            rows.append(("logprob gap", f"{self.logprob_gap_mean:.1e}", f"largest {self.logprob_gap_max:.1e}"))
        counted = f"{self.steps} steps after {self.warmup_steps} warm-up steps"
        lines = [f"{self.recipe}, stage {self.stage}, {self.device}: {counted}"]
        if self.skipped_stages:
            lines.append(f"skipped: {', '.join(self.skipped_stages)}; the stage starts from the initial weights")
        lines += aligned(rows, has_notes=True)
        if self.steps_without_update:
            count = f"{self.steps_without_update} of {self.steps} steps"
            lines.append(f"note: {count} had nothing to learn from, so their update took no time")
        return "\n".join(lines)


def bench_step(
    recipe: Recipe, *, steps: int = 12, warmup_steps: int = 4, memory_gib: float | None = None
) -> StepTiming:
    """Run `steps` steps and measure those after the first `warmup_steps`. `memory_gib`: pretend the GPU has less."""
    check_steps(steps, warmup_steps)
    index = first_rl_stage(recipe)
    skipped = tuple(stage.name for stage in recipe.stages[:index])
    with tempfile.TemporaryDirectory(prefix="groupwise-bench-") as folder, only_memory(memory_gib):
        request = RunRequest(with_one_stage(recipe, index, steps), Path(folder) / recipe.name)
        return run_steps(request, steps, warmup_steps, skipped)


def check_steps(steps: int, warmup_steps: int) -> None:
    if steps <= warmup_steps:
        raise ConfigError(f"--steps {steps}, --warmup {warmup_steps}: no step is left after the warm-up; raise --steps")


def first_rl_stage(recipe: Recipe) -> int:
    """Return the index of the stage that is measured."""
    index = next((index for index, stage in enumerate(recipe.stages) if isinstance(stage, RlStage)), None)
    if index is None:
        raise ConfigError(f"{recipe.name}: there is no RL stage to measure; all stages of this recipe are sft")
    return index


def run_steps(request: RunRequest, steps: int, warmup_steps: int, skipped_stages: tuple[str, ...]) -> StepTiming:
    """Run the first `steps` steps of a run and summarize its metrics."""
    recipe = request.recipe
    with contextlib.suppress(_Measured):
        pipeline.carry_out(replace(request, sinks=[_EndAfter(steps)]))
    run = Run(request.run_dir)
    records, device = run.steps(), run.info["machine"]["device_name"]
    if len(records) < steps:
        raise RunStopped(f"{recipe.name}: the run stopped after {len(records)} of {steps} steps; nothing was measured")
    return summarize(records, warmup_steps, recipe=recipe.name, skipped_stages=skipped_stages, device=device)


@contextlib.contextmanager
def only_memory(gib: float | None) -> Iterator[None]:
    """Limit the GPU memory of this process, CUDA context included, inside the context."""
    if gib is None:
        yield
        return
    limit_memory(gib)
    device = torch.device("cuda", torch.cuda.current_device())
    rest = ReleasableMemory(device)
    free, total = torch.cuda.mem_get_info(device)
    # What is in use already, the CUDA context, counts as ours.
    surplus = total - int(gib * 2**30)
    try:
        if not 0 < surplus < free:
            raise ConfigError(
                f"--memory-gib {gib:g}: the GPU has {total / 2**30:.1f} GiB, of which {free / 2**30:.1f} are free; "
                "choose something between what is in use and all of it"
            )
        rest.tensor((surplus,), torch.uint8)
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        rest.release()


def with_one_stage(recipe: Recipe, index: int, steps: int) -> Recipe:
    """Return the recipe with one stage only, long enough for `steps`, without evaluations and checkpoints."""
    stage = recipe.stages[index]
    return replace(
        recipe,
        stages=(replace(stage, steps=max(stage.steps, steps)),),
        evaluation=replace(recipe.evaluation, every_steps=0, at_start=False, patience=0),
        checkpoints=replace(recipe.checkpoints, every_steps=steps + 1, every_update=False),
        logging=replace(recipe.logging, sinks=()),
    )


def summarize(
    records: Sequence[StepRecord], warmup_steps: int, *, recipe: str, skipped_stages: tuple[str, ...], device: str
) -> StepTiming:
    measured = [record.metrics for record in records[warmup_steps:]]
    count = len(measured)

    def mean_of(name: str) -> float:
        return sum(metrics[name] for metrics in measured) / count

    step_s = mean_of("time/step_s")
    phases_s = {phase: mean_of(f"time/{phase}_s") for phase in PHASES}
    tokens_before = records[warmup_steps - 1].metrics["tokens/total"] if warmup_steps else 0.0
    tokens = (measured[-1]["tokens/total"] - tokens_before) / count
    rollouts = mean_of("rollouts/count")
    updated = [metrics for metrics in measured if metrics["update/count"]]
    # The gap is a mean over the tokens that a step learned from, so steps count by these.
    num_learned = sum(metrics["update/tokens"] for metrics in updated)
    compared = [metrics for metrics in updated if "engine/logprob_gap_mean" in metrics]
    gap = sum(metrics["engine/logprob_gap_mean"] * metrics["update/tokens"] for metrics in compared)
    peaks = [record.metrics["memory/peak_bytes"] for record in records if "memory/peak_bytes" in record.metrics]
    return StepTiming(
        recipe=recipe,
        stage=records[0].stage,
        skipped_stages=skipped_stages,
        device=device,
        steps=count,
        warmup_steps=warmup_steps,
        steps_without_update=count - len(updated),
        step_s=step_s,
        step_max_s=max(metrics["time/step_s"] for metrics in measured),
        phases_s=phases_s | {"rest": step_s - sum(phases_s.values())},
        rollouts=rollouts,
        tokens=tokens,
        learned_tokens=num_learned / count,
        mean_tokens=tokens / rollouts,
        tokens_per_s=tokens / step_s,
        sample_tokens_per_s=tokens / phases_s["sample"],
        peak_bytes=max(peaks, default=None),
        logprob_gap_mean=gap / num_learned if num_learned and compared else None,
        logprob_gap_max=max((metrics["engine/logprob_gap_max"] for metrics in compared), default=None),
    )


class _Measured(Exception):
    """All requested steps are in the metrics. Not a StopRequested, which would save the run."""


class _EndAfter:
    """A sink that ends the run after a given step."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def write(self, record: StepRecord) -> None:
        if record.step >= self._steps:
            raise _Measured

    def write_eval(self, record: EvalRecord) -> None:
        """Never called: evaluations are off."""

    def close(self) -> None:
        """Nothing to close."""
