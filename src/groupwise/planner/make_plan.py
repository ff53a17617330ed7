"""Plans a recipe on a GPU: whether it fits, the largest sizes that do, the time it takes, and what to change.

A stage must fit with the largest microbatch that it can make, which a run tries before its first step, and with the
expected one, which is smaller, but whose passes may be recorded and then hold memory all the time. Times are for
completions of the expected length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from groupwise.config import ConfigError, LoraConfig, Recipe, RlStage, SftStage
from groupwise.planner.gpus import CONTEXT_GIB, MEASURED, Gpu
from groupwise.planner.shapes import ModelShape
from groupwise.planner.stage_memory import (
    StageMemory,
    checkpoint_bytes,
    longest_pack,
    most_tokens,
    plan_memory,
    usual_pack,
)
from groupwise.planner.timing import Speed, sample_s, step_s
from groupwise.planner.work import UNKNOWN_MAX_TOKENS, USUAL_PROMPT_TOKENS, Work, work_of
from groupwise.runs.files import plain

UNKNOWN_HELD_OUT = 200
"""Assumed size of an evaluation of all problems; only the task knows the number."""

NO_LIMIT = 2**24
"""More tokens than any microbatch has."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    name: str
    steps: int
    most: StageMemory
    """Memory with the longest possible microbatch, or with the expected one if that takes more."""
    longest_pack: int
    usual: StageMemory
    """Memory with completions of the expected length."""
    usual_pack: int
    largest_microbatch_tokens: int
    """Largest that fits, with all else unchanged; 0 if none does."""
    largest_group: int
    """Largest group that fits, all of it decoding at once; 0 if the stage samples nothing."""
    most_pack_tokens: int
    """Maximum tokens of a pack if any microbatch_tokens fits, because larger packs are not recorded; else 0."""
    changes: tuple[str, ...]
    """The cheapest changes that make it fit; () if it fits, or if no known change helps."""
    phases_s: Mapping[str, float]
    """Seconds of a step; with the changes, if there are any."""
    rollouts: int
    tokens: float
    """Tokens of all completions of a step."""
    mean_tokens: float
    max_draws: int
    """How often a step samples its rollouts if no group has signal: refill rounds, groups that grow."""
    scaling: Mapping[str, float]
    """Key → time of a step with twice its value / time of a step."""

    @property
    def fits(self) -> bool:
        return self.most.fits

    @property
    def step_s(self) -> float:
        return sum(self.phases_s.values())

    @property
    def longest_step_s(self) -> float:
        """Seconds of a step that resamples as often as it may. A step with signal in all groups samples once."""
        return self.step_s + (self.max_draws - 1) * self.phases_s.get("sample", 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    recipe: str
    gpu: Gpu
    ranks: int
    shape: ModelShape
    prompt_tokens: int
    stages: tuple[StagePlan, ...]
    evaluation_s: float
    """Seconds of all evaluations."""
    checkpoint_bytes: float
    """Size of the largest checkpoint."""
    disk_bytes: float
    """Size of all checkpoints that are kept and the one being written."""
    notes: tuple[str, ...]
    """Assumptions of this plan that were not measured."""

    @property
    def fits(self) -> bool:
        return all(stage.fits for stage in self.stages)

    @property
    def run_s(self) -> float:
        return sum(stage.steps * stage.step_s for stage in self.stages) + self.evaluation_s

    @property
    def longest_run_s(self) -> float:
        return sum(stage.steps * stage.longest_step_s for stage in self.stages) + self.evaluation_s

    @property
    def run_tokens(self) -> float:
        return sum(stage.steps * stage.tokens for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        table: dict[str, Any] = plain(self)
        for stage, entry in zip(self.stages, table["stages"], strict=True):
            entry |= {"fits": stage.fits, "step_s": stage.step_s, "longest_step_s": stage.longest_step_s}
            for name, memory in (("most", stage.most), ("usual", stage.usual)):
                entry[name] |= {"peak_phase": memory.peak_phase, "peak_bytes": memory.peak, "fits": memory.fits}
        table["shape"]["parameters"] = self.shape.parameters
        totals = {"run_s": self.run_s, "longest_run_s": self.longest_run_s, "run_tokens": self.run_tokens}
        return table | {"fits": self.fits} | totals


def make_plan(
    recipe: Recipe,
    shape: ModelShape,
    gpu: Gpu,
    *,
    prompt_tokens: int | None = None,
    mean_tokens: float | None = None,
    ranks: int = 1,
    speed: Speed | None = None,
) -> Plan:
    """Plan a recipe. `prompt_tokens`: USUAL_PROMPT_TOKENS by default. `speed`: measured speed of this GPU, if known."""
    if prompt_tokens is None:
        prompt_tokens = USUAL_PROMPT_TOKENS
    for name, value in (("prompt-tokens", prompt_tokens), ("mean-tokens", mean_tokens), ("ranks", ranks)):
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value:g}: must be at least 1")
    works = [
        work_of(recipe, stage, shape, gpu, prompt_tokens=prompt_tokens, mean_tokens=mean_tokens, ranks=ranks)
        for stage in recipe.stages
    ]
    known = speed or Speed()
    checkpoint = max(map(checkpoint_bytes, works))
    kept = recipe.checkpoints.keep_last + recipe.checkpoints.keep_best
    return Plan(
        recipe=recipe.name,
        gpu=gpu,
        ranks=ranks,
        shape=shape,
        prompt_tokens=prompt_tokens,
        stages=tuple(plan_stage(work, known) for work in works),
        evaluation_s=known.decode * evaluation_s(recipe, works),
        checkpoint_bytes=checkpoint,
        disk_bytes=(kept + 1) * checkpoint,
        notes=tuple(notes_on(works, is_calibrated=speed is not None)),
    )


def plan_stage(work: Work, speed: Speed) -> StagePlan:
    most = most_memory(work)
    usual = plan_memory(work, usual_pack(work))
    changes = () if most.fits else changes_that_fit(work)
    timed = _with(work, changes)
    phases_s = step_s(timed, _at_once(timed), speed)
    return StagePlan(
        name=work.stage.name,
        steps=work.stage.steps,
        most=most,
        longest_pack=longest_pack(work),
        usual=usual,
        usual_pack=usual_pack(work),
        largest_microbatch_tokens=largest_microbatch_tokens(work),
        largest_group=largest_group(work),
        most_pack_tokens=most_pack_tokens(work),
        changes=tuple(name for name, _ in changes),
        phases_s=phases_s,
        rollouts=work.rollouts,
        tokens=work.completion_tokens,
        mean_tokens=work.mean_tokens,
        max_draws=max_draws(work.stage),
        scaling=scaling(timed, speed, sum(phases_s.values())),
    )


def max_draws(stage: RlStage | SftStage) -> int:
    if not isinstance(stage, RlStage):
        return 1
    return (1 + stage.refill_rounds) * max(1, stage.max_rollouts_per_problem // stage.rollouts_per_problem)


# ---- what fits ----


def most_memory(work: Work) -> StageMemory:
    either = [plan_memory(work, tokens) for tokens in (longest_pack(work), usual_pack(work))]
    return max(either, key=lambda memory: (not memory.fits, memory.peak))


def fits(work: Work) -> bool:
    return most_memory(work).fits


def largest(fit: Callable[[int], bool], most: int) -> int:
    """Find the largest number from 1 to about `most` that fits, by bisection; 0 if none does."""
    if not fit(1):
        return 0
    low, high = 1, 2
    while high <= most and fit(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def largest_microbatch_tokens(work: Work) -> int:
    """Return the largest microbatch that fits, in whole sequences of maximum length, within what is recorded."""
    length = work.prompt_tokens + work.max_tokens
    most = max(1, most_tokens(work.changed(microbatch_tokens=NO_LIMIT)) // length)
    return length * min(most, largest(lambda rows: fits(work.changed(microbatch_tokens=rows * length)), most))


def most_pack_tokens(work: Work) -> int:
    unlimited = work.changed(microbatch_tokens=NO_LIMIT)
    return most_tokens(unlimited) if fits(unlimited) else 0


def largest_group(work: Work) -> int:
    if not isinstance(work.stage, RlStage):
        return 0

    def fit(group: int) -> bool:
        rollouts = max(work.engine.max_batch_rollouts, group)
        return fits(replace(work, group=group, engine=replace(work.engine, max_batch_rollouts=rollouts)))

    return largest(fit, 2**16)


Change = tuple[str, Callable[[Work], Work]]
"""A change in the notation of a recipe, and its effect on the work."""


def possible_changes(work: Work) -> list[Change]:
    """List changes from the cheapest to the most expensive. The last ones train something else."""
    length = work.prompt_tokens + work.max_tokens
    changes: list[Change] = []
    tokens = work.stage.microbatch_tokens // 2
    while tokens >= length:
        changes.append((f"microbatch_tokens = {tokens}", partial(Work.changed, microbatch_tokens=tokens)))
        tokens //= 2
    stage, which = work.stage, work.model.gradient_checkpointing
    if which is False:
        changes.append(('model.gradient_checkpointing = "mlp"', _with_model(gradient_checkpointing="mlp")))
    if which is not True:
        changes.append(("model.gradient_checkpointing = true", _with_model(gradient_checkpointing=True)))
    if stage.optimizer.moments == "fp32":
        changes.append(('optimizer.moments = "8bit"', _with_optimizer(moments="8bit")))
    if isinstance(stage, RlStage) and stage.uses_reference and not stage.offloads_reference:
        kl = replace(stage.kl, offload_reference=True)
        changes.append(("kl.offload_reference = true", partial(Work.changed, kl=kl)))
    if not stage.optimizer.offload:
        changes.append(("optimizer.offload = true", _with_optimizer(offload=True)))
    if work.model.lora is None:
        changes.append(("model.lora = { rank = 16 }", _with_model(lora=LoraConfig())))
    if work.model.quantization == "none":
        adapters = work.model.lora or LoraConfig()
        changes.append(('model.quantization = "4bit" with lora', _with_model(quantization="4bit", lora=adapters)))
    return changes


def _with_model(**keys: Any) -> Callable[[Work], Work]:
    return lambda work: work.changed(model=keys)


def _with_optimizer(**keys: Any) -> Callable[[Work], Work]:
    return lambda work: work.changed(optimizer=replace(work.stage.optimizer, **keys))


def changes_that_fit(work: Work) -> Sequence[Change]:
    """Add changes until it fits, then drop those that are not needed, the most expensive first."""
    chosen: list[Change] = []
    for change in possible_changes(work):
        chosen.append(change)
        if fits(_with(work, chosen)):
            break
    else:
        return ()
    for change in chosen[-2::-1]:
        fewer = [other for other in chosen if other is not change]
        if fits(_with(work, fewer)):
            chosen = fewer
    return chosen


def _with(work: Work, changes: Sequence[Change]) -> Work:
    for _, change in changes:
        work = change(work)
    return work


# ---- time ----


def _at_once(work: Work) -> int:
    """Return the rollouts at once. If nothing fits, assume that all do, as on a larger GPU."""
    return plan_memory(work, usual_pack(work)).rollouts_at_once or work.slots


def scaling(work: Work, speed: Speed, base_s: float) -> dict[str, float]:
    doubled = {
        "rollouts_per_problem": replace(work, group=2 * work.group),
        "problems_per_step": replace(work, problems=2 * work.problems, updates_per_epoch=2 * work.updates_per_epoch),
        "epochs_per_batch": replace(work, epochs=2 * work.epochs),
    }
    if not isinstance(work.stage, RlStage):
        doubled = {"demonstrations_per_step": replace(work, problems=2 * work.problems)}
    elif work.updates_per_epoch == 1:
        doubled["problems_per_step"] = replace(work, problems=2 * work.problems)
    return {name: sum(step_s(other, _at_once(other), speed).values()) / base_s for name, other in doubled.items()}


def evaluation_s(recipe: Recipe, works: Sequence[Work]) -> float:
    """Return the time of all evaluations: at the start, every N steps and at the end of each stage."""
    settings = recipe.evaluation
    every = [stage.steps // settings.every_steps if settings.every_steps else 0 for stage in recipe.stages]
    # The evaluation at the end of a stage is not repeated.
    ends = [settings.every_steps == 0 or stage.steps % settings.every_steps > 0 for stage in recipe.stages]
    count = settings.at_start + sum(every) + sum(ends)
    longest = settings.max_new_tokens or max(
        (work.max_tokens for work in works if isinstance(work.stage, RlStage)), default=UNKNOWN_MAX_TOKENS
    )
    rollouts = (settings.num_problems or UNKNOWN_HELD_OUT) * settings.rollouts_per_problem
    share = works[-1].mean_tokens / works[-1].max_tokens
    work = replace(works[-1], max_tokens=longest, mean_tokens=share * longest, group=settings.rollouts_per_problem)
    return count * sample_s(work, min(recipe.engine.max_batch_rollouts, rollouts), rollouts)


def notes_on(works: Sequence[Work], *, is_calibrated: bool) -> list[str]:
    first = works[0]
    found = {
        f"times were measured on an {MEASURED.name} and are scaled to this GPU; --measure calibrates the GPU here": (
            first.gpu.name != MEASURED.name and not is_calibrated
        ),
        f"other programs use {first.gpu.taken_gib:.1f} GiB of this GPU; the plan uses the rest": (
            first.gpu.taken_gib > CONTEXT_GIB
        ),
        f"{first.shape.kind} runs its own layers, which were not measured": not first.shape.is_straight,
        "float32 runs the model's own layers, which were not measured": first.value_bytes == 4,
        "quantized weights were not measured": first.model.quantization != "none",
        "several ranks were not measured; time for communication is not included": first.ranks > 1,
        f"times are for the native engine, but engine.name is {first.engine.name!r}": first.engine.name != "native",
        "optimizer.offload: the time of a step on the host was not measured": any(
            work.stage.optimizer.offload for work in works
        ),
    }
    return [note for note, holds in found.items() if holds]
