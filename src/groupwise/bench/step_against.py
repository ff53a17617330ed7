"""The same training steps in groupwise and in TRL, phase by phase.

The work is the plain part of a recipe's first RL stage, which both can do: its model, prompts, group and batch sizes,
sampling, KL coefficient and optimizer, with the loss of GRPO and one update per batch. Completions end at
`max_new_tokens` alone. Rewards are made up, so that every group is learned from whatever the model can do.
"""

from __future__ import annotations

import math
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import groupwise
from groupwise.base.json_values import plain
from groupwise.base.text_layout import aligned
from groupwise.bench.other_library import peak_resident_bytes
from groupwise.bench.side_by_side import Other, OtherFailed, Tell, apart, candidates, told
from groupwise.bench.step_speed import StepTiming, check_steps, first_rl_stage, run_steps, summarize, with_one_stage
from groupwise.config import ConfigError, EngineConfig, ModelConfig, Recipe, RlStage, VerifierConfig
from groupwise.config.schema import LoggingConfig
from groupwise.config.stages import KlConfig
from groupwise.engines.engine import Engine
from groupwise.engines.factory import make_engine
from groupwise.models.export import save_folder
from groupwise.models.load import load_model
from groupwise.models.policy import Policy
from groupwise.runs.reader import Run
from groupwise.tasks import make_task
from groupwise.tasks.task import Split, Task
from groupwise.training.setup import RunRequest
from groupwise.types import Problem, Score, StepRecord, Verdict

TRIAL_STEPS = 2
"""Steps of each trial of settings; the second one counts."""
TRIED_GROUPS = 8
"""The larger of the batch sizes that are tried has at most as many groups; the smaller has one."""


@dataclass(frozen=True, slots=True)
class StepComparison:
    dtype: str
    """Of groupwise's weights and passes."""
    library: str
    version: str
    settings: dict[str, Any]
    """The fastest of those that were tried."""
    ours: StepTiming
    theirs: StepTiming
    trials: list[tuple[dict[str, Any], float]]
    """Settings that were tried, with the seconds of a step; none if there was no choice."""

    @property
    def ratios(self) -> dict[str, float]:
        """Seconds and peak memory of the other library / those of groupwise, where groupwise needs any."""
        pairs = {"step": (self.ours.step_s, self.theirs.step_s)}
        pairs |= {phase: (seconds, self.theirs.phases_s[phase]) for phase, seconds in self.ours.phases_s.items()}
        pairs["peak memory"] = (self.ours.peak_bytes or 0.0, self.theirs.peak_bytes or 0.0)
        return {name: theirs / ours for name, (ours, theirs) in pairs.items() if ours > 0}

    def to_json(self) -> dict[str, Any]:
        about = {"version": self.version, "settings": self.settings}
        ours = plain(self.ours) | {"version": groupwise.__version__, "settings": {"dtype": self.dtype}}
        trials = [{"settings": settings, "step_s": seconds} for settings, seconds in self.trials]
        theirs = plain(self.theirs) | about | {"trials": trials}
        return {"groupwise": ours, self.library: theirs, "ratios": self.ratios}

    def __str__(self) -> str:
        def row(name: str, ours: str, theirs: str) -> tuple[str, str, str, str]:
            ratio = self.ratios.get(name.strip())
            return name, ours, theirs, "" if ratio is None else f"{ratio:.2f}"

        rows = [("", "groupwise", self.library, f"{self.library} / groupwise")]
        rows.append(row("step", f"{self.ours.step_s:.3f} s", f"{self.theirs.step_s:.3f} s"))
        for phase, seconds in self.ours.phases_s.items():
            rows.append(row(f"  {phase}", f"{seconds:.3f} s", f"{self.theirs.phases_s[phase]:.3f} s"))
        ours_GiB, theirs_GiB = ((timing.peak_bytes or 0.0) / 2**30 for timing in (self.ours, self.theirs))
        rows.append(row("peak memory", f"{ours_GiB:.2f} GiB", f"{theirs_GiB:.2f} GiB"))
        other = f"{self.library} {self.version}, {told(self.settings)}"
        parts = [
            f"groupwise {groupwise.__version__}, dtype={self.dtype}\n{self.ours}",
            f"{other}\n{self.theirs}",
            "\n".join(aligned(rows)),
        ]
        if self.trials:
            trials = [(told(settings), f"{seconds:.3f} s") for settings, seconds in self.trials]
            parts.append("\n".join(aligned([(f"{self.library}, tried for {TRIAL_STEPS} steps", "step"), *trials])))
        return "\n\n".join(parts)


def compare_steps(recipe: Recipe, other: Other, *, steps: int, warmup_steps: int, tell: Tell) -> StepComparison:
    check_steps(steps, warmup_steps)
    recipe, stage, skipped = same_work(recipe, steps)
    tried = candidates(other.settings, tried_settings(stage))
    for one in tried:
        check_batch_size(stage, one)
    other.check()
    with tempfile.TemporaryDirectory(prefix="groupwise-against-") as name:
        folder = Path(name)
        tell("measuring groupwise")
        device, dtype = apart(export, recipe.model, folder / "model")
        # The template of the exported model has the options.
        model = replace(recipe.model, path=str(folder / "model"), tiny={}, chat_template_options={})
        recipe = replace(recipe, model=model)
        ours, prompts = apart(measure_steps, recipe, folder / recipe.name, steps, warmup_steps, skipped)
        trials: list[tuple[dict[str, Any], float]] = []
        settings = tried[0]
        if len(tried) > 1:
            works = [make_work(recipe, stage, prompts, TRIAL_STEPS, device, one) for one in tried]
            results = other.measure_each(works, tell)
            trials = [(work["settings"], result["steps"][-1]["step"]) for work, result in results]
            settings, _ = min(trials, key=lambda trial: trial[1])
        tell(f"measuring {other.library} with {told(settings)}, {steps} steps")
        result = other.measure(make_work(recipe, stage, prompts, steps, device, settings))
    records = [record_of(number, stage, result["steps"]) for number in range(1, steps + 1)]
    theirs = summarize(records, warmup_steps, recipe=recipe.name, skipped_stages=skipped, device=ours.device)
    theirs = replace(theirs, peak_bytes=result["peak_bytes"])
    check_equal("groupwise", ours, stage)
    check_equal(other.library, theirs, stage)
    return StepComparison(dtype, other.library, result["version"], settings, ours, theirs, trials)


def same_work(recipe: Recipe, steps: int) -> tuple[Recipe, RlStage, tuple[str, ...]]:
    """Return the recipe with the one stage that both libraries do, and the names of the stages before it."""
    index = first_rl_stage(recipe)
    if recipe.model.quantization != "none":
        raise ConfigError(
            f"model.quantization = {recipe.model.quantization!r}: quantized weights are not compared with other "
            "libraries; --set model.quantization=none, or measure groupwise alone without --against"
        )
    (given,) = with_one_stage(recipe, index, steps).stages
    assert isinstance(given, RlStage)
    stage = RlStage(
        algorithm="grpo",
        name=given.name,
        steps=given.steps,
        problems_per_step=given.problems_per_step,
        rollouts_per_problem=given.rollouts_per_problem,
        microbatch_tokens=given.microbatch_tokens,
        sampling=replace(given.sampling, stop_strings=()),
        optimizer=replace(given.optimizer, moments="fp32", offload=False),
        kl=KlConfig(coefficient=given.kl.coefficient),
    )
    changed = replace(
        with_one_stage(recipe, index, steps),
        stages=(stage,),
        task=replace(recipe.task, reward=None),
        verifier=VerifierConfig(workers=0),
        guards=None,
        logging=LoggingConfig(rollouts_every_steps=1, tokens_every_steps=0),
    )
    return changed, stage, tuple(stage.name for stage in recipe.stages[:index])


def export(config: ModelConfig, folder: Path) -> tuple[str, str]:
    """Write the model as a Hugging Face folder; return its device and dtype."""
    loaded = load_model(config, seed=0)
    save_folder(loaded, folder)
    return loaded.device.type, str(loaded.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class MadeUpRewards:
    """A task with rewards that differ within each group: a checksum of the completion."""

    task: Task
    verifier: ClassVar[str] = "made-up/1"

    def problems(self, split: Split) -> Sequence[Problem]:
        return self.task.problems(split)

    def score(self, problem: Problem, completion: str) -> Score:
        reward = zlib.crc32(completion.encode(errors="replace")) / 2**32
        return Score(reward, Verdict.WRONG, {"made_up": reward}, self.verifier)


def make_endless(config: EngineConfig, policy: Policy, *, is_truncated: bool) -> Engine:
    """Make an engine for which no token ends a completion."""
    policy.stop_token_ids = ()
    return make_engine(config, policy, is_truncated=is_truncated)


def measure_steps(
    recipe: Recipe, run_dir: Path, steps: int, warmup_steps: int, skipped: tuple[str, ...]
) -> tuple[StepTiming, list[list[int]]]:
    """Return the time of groupwise's steps, and the token ids of their prompts in order."""
    task = MadeUpRewards(make_task(recipe.task.name, recipe.task.options))
    request = RunRequest(recipe, run_dir, task=task, make_engine=make_endless)
    timing = run_steps(request, steps, warmup_steps, skipped)
    if timing.peak_bytes is None:
        timing = replace(timing, peak_bytes=float(peak_resident_bytes()))
    groups = [scored.group for step in range(1, steps + 1) for scored in Run(run_dir).rollouts(step)]
    return timing, [list(group.prompt.token_ids) for group in groups]


def tried_settings(stage: RlStage) -> list[dict[str, Any]]:
    """Return the settings of TRL to try: dtypes of the weights, and completions in a microbatch."""
    size, problems = stage.rollouts_per_problem, stage.problems_per_step
    most = max(count for count in range(1, TRIED_GROUPS + 1) if problems % count == 0)
    return [
        {"dtype": one, "per_device_train_batch_size": groups * size}
        for one in ("float32", "bfloat16")
        for groups in sorted({1, most})
    ]


def check_batch_size(stage: RlStage, settings: Mapping[str, Any]) -> None:
    size, rollouts = settings["per_device_train_batch_size"], stage.problems_per_step * stage.rollouts_per_problem
    if not isinstance(size, int) or size < 1 or rollouts % size:
        raise ConfigError(
            f"--against-set per_device_train_batch_size={size}: must divide the {rollouts} completions of a step, "
            f"problems_per_step = {stage.problems_per_step} × rollouts_per_problem = {stage.rollouts_per_problem}"
        )


def make_work(
    recipe: Recipe,
    stage: RlStage,
    prompts: Sequence[Sequence[int]],
    steps: int,
    device: str,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the work for TRL. `arguments` are those of GRPOConfig; the dtype is for the model."""
    sampling, optimizer, lora = stage.sampling, stage.optimizer, recipe.model.lora
    rollouts = stage.problems_per_step * stage.rollouts_per_problem
    arguments = {
        "max_steps": steps,
        "num_generations": stage.rollouts_per_problem,
        "gradient_accumulation_steps": rollouts // settings["per_device_train_batch_size"],
        "max_completion_length": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p or None,
        "loss_type": "grpo",
        "beta": stage.kl.coefficient,
        "learning_rate": optimizer.learning_rate,
        "lr_scheduler_type": optimizer.schedule,
        "warmup_steps": optimizer.warmup_steps,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_epsilon": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm if math.isfinite(optimizer.max_grad_norm) else 0.0,
        "gradient_checkpointing": bool(recipe.model.gradient_checkpointing),
        "shuffle_dataset": False,
        "use_cpu": device == "cpu",
        # TRL's default on a GPU: float32 weights, and autocast.
        "bf16": device == "cuda" and settings["dtype"] == "float32",
    }
    adapters = lora and {
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(lora.target_modules),
    }
    return {
        "model": recipe.model.path,
        "lora": adapters,
        "prompts": prompts,
        "arguments": {**arguments, **settings},
        "settings": dict(settings),
    }


def record_of(number: int, stage: RlStage, steps: Sequence[Mapping[str, float]]) -> StepRecord:
    """Return a step of TRL with the metrics that groupwise writes."""
    step = steps[number - 1]
    times = {f"time/{phase}_s": step[phase] for phase in ("step", "sample", "score", "logprobs", "update")}
    counts = {
        "tokens/total": sum(one["tokens"] for one in steps[:number]),
        "rollouts/count": float(stage.problems_per_step * stage.rollouts_per_problem),
        "update/count": 1.0,
        "update/tokens": step["tokens"],
    }
    return StepRecord(number, stage.name, number, times | counts)


def check_equal(library: str, timing: StepTiming, stage: RlStage) -> None:
    """Refuse a result for which less was sampled or learned from than was asked for."""
    tokens = stage.problems_per_step * stage.rollouts_per_problem * stage.sampling.max_new_tokens
    for counted, what in ((timing.tokens, "sampled"), (timing.learned_tokens, "learned from")):
        if counted != tokens:
            raise OtherFailed(
                f"{library} {what} {counted:,.0f} tokens per step instead of {tokens:,}, so the two sides cannot be "
                "compared; if completions of a group are equal, raise sampling.temperature"
            )
