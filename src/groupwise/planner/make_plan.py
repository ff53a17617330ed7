"""A recipe on a GPU: does it fit, what is the largest that does, how long does it take, what to change.

Whether a stage fits is asked of the largest microbatch that it can make, which a run rehearses before its first step,
and of the one that is expected: smaller, but its passes may be recorded, and then they hold memory all the time. Time
is that of completions of the expected length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from groupwise.planner.work import UNKNOWN_MAX_TOKENS, Work, work_of

UNKNOWN_HELD_OUT = 200
"""Problems of an evaluation of all of them: how many there are is the task's to know."""

NO_LIMIT = 2**24
"""Tokens that no microbatch has."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    name: str
    steps: int
    most: StageMemory
    """With the longest microbatch that the stage can make, or with the expected one if that takes more."""
    longest_pack: int
    usual: StageMemory
    """With completions of the expected length."""
    usual_pack: int
    largest_microbatch_tokens: int
    """That fits with all else as it is; 0 where none does."""
    largest_group: int
    """Likewise, all of it decoding at once; 0 of a stage that samples nothing."""
    most_pack_tokens: int
    """Where any microbatch_tokens fits, since passes over larger packs than this cannot be recorded; else 0."""
    changes: tuple[str, ...]
    """What makes it fit, the cheapest that do; empty where it fits, or nothing here helps."""
    phases_s: Mapping[str, float]
    """Of a step; with the changes, where it does not fit as it is."""
    rollouts: int
    tokens: float
    """Of the completions of a step."""
    mean_tokens: float
    max_draws: int
    """How often a step draws as many rollouts if no group has signal: rounds of refilling, groups that grow."""
    scaling: Mapping[str, float]
    """What twice of something makes of a step's time."""

    @property
    def fits(self) -> bool:
        return self.most.fits

    @property
    def step_s(self) -> float:
        return sum(self.phases_s.values())

    @property
    def longest_step_s(self) -> float:
        """With all that may be drawn anew. Too much for a step that learns from all its groups, which draws once."""
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
    """Of all evaluations of the run."""
    checkpoint_bytes: float
    """Of the largest checkpoint."""
    disk_bytes: float
    """For all that are kept and the one that is being written."""
    notes: tuple[str, ...]
    """Where the plan stands on less than measurements."""

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
        stages = [
            asdict(stage)
            | {"fits": stage.fits, "step_s": stage.step_s, "longest_step_s": stage.longest_step_s}
            | {"most": _memory_json(stage.most), "usual": _memory_json(stage.usual)}
            for stage in self.stages
        ]
        totals = {"fits": self.fits, "run_tokens": self.run_tokens}
        totals |= {"run_s": self.run_s, "longest_run_s": self.longest_run_s}
        model = asdict(self.shape) | {"parameters": self.shape.parameters}
        return asdict(self) | {"stages": stages, "shape": model} | totals


def _memory_json(memory: StageMemory) -> dict[str, Any]:
    return asdict(memory) | {"peak_phase": memory.peak_phase, "peak_bytes": memory.peak, "fits": memory.fits}


def make_plan(
    recipe: Recipe,
    shape: ModelShape,
    gpu: Gpu,
    *,
    prompt_tokens: int,
    mean_tokens: float | None = None,
    ranks: int = 1,
    speed: Speed | None = None,
) -> Plan:
    """`speed`: of this very GPU, where it was measured."""
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
    """The largest number from 1 to about `most` that fits, by bisection: what is smaller fits too. 0: none does."""
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
    """In whole sequences of the longest kind; where passes are recorded, of what packs can have."""
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
"""The keys as a recipe has them, and what they do."""


def possible_changes(work: Work) -> list[Change]:
    """From the cheapest in time and trouble to the dearest; the last ones train something else."""
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
        changes.append(('model.quantization = "4bit" with lora', _in_four_bit))
    return changes


def _with_model(**keys: Any) -> Callable[[Work], Work]:
    return lambda work: work.changed(model=keys)


def _with_optimizer(**keys: Any) -> Callable[[Work], Work]:
    return lambda work: work.changed(optimizer=replace(work.stage.optimizer, **keys))


def _in_four_bit(work: Work) -> Work:
    return work.changed(model={"quantization": "4bit", "lora": work.model.lora or LoraConfig()})


def changes_that_fit(work: Work) -> Sequence[Change]:
    """One after the other until it fits; then those that were not needed are dropped, the dearest first."""
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
    """Where nothing fits, as if all did: the time is then one that shorter completions or a larger GPU would have."""
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
    """Held-out completions, at the start, every so many steps and at the end of each stage."""
    settings = recipe.evaluation
    every = [stage.steps // settings.every_steps if settings.every_steps else 0 for stage in recipe.stages]
    # At the end of a stage one is made anyhow, and not twice.
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
        f"times were measured on an {MEASURED.name} and are scaled to this GPU; --measure calibrates the one at hand": (
            first.gpu.name != MEASURED.name and not is_calibrated
        ),
        f"other programs have {first.gpu.taken_gib:.1f} GiB of this GPU; what is left is planned with": (
            first.gpu.taken_gib > CONTEXT_GIB
        ),
        f"{first.shape.kind} runs its own layers, which nothing here was measured with": not first.shape.is_straight,
        "float32 runs the model's own layers, which nothing here was measured with": first.value_bytes == 4,
        "quantized weights were not measured": first.model.quantization != "none",
        "several ranks were not measured; what they tell each other takes time that is not counted": first.ranks > 1,
        f"time is that of the native engine, and engine.name is {first.engine.name!r}": first.engine.name != "native",
        "optimizer.offload: the time of a step on the host was not measured": any(
            work.stage.optimizer.offload for work in works
        ),
    }
    return [note for note, holds in found.items() if holds]
