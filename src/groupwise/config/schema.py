"""Every key of a recipe but those of its stages: type, default and meaning. docs/reference is generated from this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from groupwise.config.build import require
from groupwise.config.stages import RlStage, SftStage, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    rank: int = 16
    """Rank of the adapters; 0 is not LoRA at all, so leave the table out instead."""
    alpha: float = 32.0
    """The adapters' output is scaled by alpha / rank."""
    dropout: float = 0.0
    """Dropout on the adapters' input while training. Above 0 it makes the first update off-policy by a little."""
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Which linear layers get an adapter."""

    def __post_init__(self) -> None:
        require(
            self.rank >= 1, f"rank = {self.rank}: must be at least 1; leave the lora table out to train all weights"
        )
        require(0 <= self.dropout < 1, f"dropout = {self.dropout}: must be in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    path: str
    """`tiny-qwen3` or `tiny-llama` (made here, random weights), a hub id, a folder, or a .gguf file (dequantized)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: bfloat16 with fp32 masters on a GPU, float32 on a CPU."""
    device: str = "auto"
    """`auto`: the GPU if there is one."""
    gradient_checkpointing: Literal[False, True, "mlp"] = False
    """Recompute activations in the backward pass. `true`: of whole layers, for the least memory and about a third more
    time. `"mlp"`: of their feed-forward parts alone, which have the most of them, in less time."""
    lora: LoraConfig | None = None
    """Train adapters instead of all weights."""
    quantization: Literal["none", "4bit", "8bit"] = "none"
    """Keep the frozen weights of linear layers but the head in 4 bit (NF4, by bitsandbytes) or 8 bit (int8); with lora
    alone."""
    ema_decay: float = 0.0
    """Keep a moving average of the weights with this decay per update; 0 keeps none."""
    chat_template_options: Mapping[str, Any] = field(default_factory=dict)
    """Values for names that the model's chat template reads, as in `enable_thinking = false` for Qwen3. An exported
    model has them in its template."""
    tiny: Mapping[str, int] = field(default_factory=dict)
    """Sizes of a `tiny-…` model: hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads,
    context_tokens."""

    def __post_init__(self) -> None:
        given = self.gradient_checkpointing
        require(
            isinstance(given, bool) or given == "mlp",  # 1 is True, and would pass for it
            f'gradient_checkpointing = {given!r}: expected true, false or "mlp"',
        )
        require(
            self.quantization == "none" or self.lora is not None,
            f"quantization = {self.quantization!r}: quantized weights cannot be trained, only adapters beside them; "
            "add a lora table, or leave quantization out",
        )
        for name, value in self.chat_template_options.items():
            require(
                name.isidentifier() and isinstance(value, bool | int | float | str),
                f"chat_template_options.{name} = {value!r}: expected a name of the template, and true, false, a number "
                "or text",
            )
        require(0 <= self.ema_decay < 1, f"ema_decay = {self.ema_decay}: must be in [0, 1); 0.99 is usual, 0 is off")
        require(
            not self.tiny or self.path.startswith("tiny-"),
            f"tiny = {dict(self.tiny)}: sizes are for path = tiny-qwen3 or tiny-llama, and path is {self.path!r}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    name: str
    """A task of `groupwise tasks`, or `module:Class` for your own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The task's own keys; `groupwise tasks NAME` lists them."""
    reward: str | Mapping[str, float] | None = None
    """Reward functions instead of the task's own verifier: `module:function`, or several with weights, as in
    `{ "my_rewards:accuracy" = 1.0, "my_rewards:brevity" = 0.2 }`. Each takes (completion, row) and returns a number or
    a Score; the first one decides what is correct. The name `task` stands for the task's own verifier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierConfig:
    workers: int | Literal["auto"] = "auto"
    """Processes that score completions while others are sampled, for each rank; `auto`: half of the cores, from 2 to
    16. 0 scores in the trainer, without any limit."""
    seconds: float = 5.0
    """CPU time for one completion. What takes longer is `timed_out`: our failure, not a wrong answer."""
    wall_seconds: float = 60.0
    """The same on the clock, for a verifier that waits for something."""
    memory_mb: int = 4096
    """Memory that scoring one completion may take, beyond what the imported modules take."""
    process: str = ""
    """Scores the reasoning as well: `arithmetic` (the share of written calculations that are true), or
    `module:function` for your own, from the steps of a completion to 0 … 1 or None. reward.process_weight blends it
    in."""

    def __post_init__(self) -> None:
        is_known = self.workers == "auto" or 0 <= self.workers <= 256
        require(is_known, f'workers = {self.workers}: must be from 0 to 256, or "auto"')
        require(self.seconds > 0, f"seconds = {self.seconds}: must be above 0")
        require(
            self.wall_seconds >= self.seconds,
            f"wall_seconds = {self.wall_seconds}: must be at least seconds = {self.seconds}",
        )
        require(self.memory_mb >= 64, f"memory_mb = {self.memory_mb}: must be at least 64")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    name: Literal["native", "reference", "vllm"] = "native"
    """`native`: the trainer's own weights, a cache of blocks, continuous batching and, on a GPU, one CUDA graph per
    decode step. `reference`: the same tokens from the model's own forward; slow and obvious. `vllm`: vLLM, where it is
    installed or served, with a copy of the weights that is kept up to date; see docs/how-to/vllm.md."""
    max_batch_rollouts: int = 256
    """How many rollouts decode at once. Memory only: but for rounding, completions do not depend on it."""
    cache_tokens: int = 0
    """`native`: how many tokens the cache holds; 0 is enough for max_batch_rollouts, as far as memory goes."""
    memory_share: float = 0.0
    """`vllm` without url: the share of the GPU's memory (without a GPU: of all memory) that vLLM may take, for its copy
    of the weights and its cache; 0 takes 0.4."""
    url: str = ""
    """`vllm`: a vLLM server, as in `http://127.0.0.1:8000`; empty runs vLLM in the trainer's process."""
    weights_folder: str = ""
    """`vllm` with url: where weights are put for the server, which must see the same path; empty is a temporary folder
    of this machine."""
    timeout_s: float = 0.0
    """`vllm` with url: the longest wait for one answer: a whole completion, or loading weights; 0 takes 600."""

    def __post_init__(self) -> None:
        require(self.max_batch_rollouts >= 1, f"max_batch_rollouts = {self.max_batch_rollouts}: must be at least 1")
        require(self.cache_tokens >= 0, f"cache_tokens = {self.cache_tokens}: must not be negative; 0 is by need")
        require(0 <= self.memory_share < 1, f"memory_share = {self.memory_share}: must be in [0, 1); 0 takes 0.4")
        require(self.timeout_s >= 0, f"timeout_s = {self.timeout_s}: must not be negative; 0 takes 600")
        is_vllm, is_served = self.name == "vllm", self.url != ""
        require(
            re.fullmatch(r"(https?://[^/?#\s@]+(/[^?#\s]*)?)?", self.url) is not None,
            f"url = {self.url!r}: expected something like 'http://127.0.0.1:8000'",
        )
        readers = {
            "memory_share": (is_vllm and not is_served, 'is for name = "vllm" without url'),
            "url": (is_vllm, 'is for name = "vllm"'),
            "weights_folder": (is_vllm and is_served, 'is for name = "vllm" with url'),
            "timeout_s": (is_vllm and is_served, 'is for name = "vllm" with url'),
            "cache_tokens": (not is_vllm, 'is for name = "native"; vLLM takes memory_share'),
        }
        for key, (is_read, reader) in readers.items():
            value = getattr(self, key)
            require(is_read or not value, f"{key} = {value!r}: {reader}, and name is {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    every_steps: int = 20
    """Held-out pass@1 every so many steps, and at the end of each stage; 0 is only then."""
    at_start: bool = True
    """Also before the first step."""
    num_problems: int = 200
    """The first so many held-out problems; 0 is all."""
    rollouts_per_problem: int = 1
    """Completions per problem; pass@1 is their mean."""
    temperature: float = 0.0
    """0 is greedy."""
    max_new_tokens: int = 0
    """0 takes the largest of the recipe's RL stages, or 256."""
    stop_strings: tuple[str, ...] = ()
    """End a completion once its text contains one of these."""
    patience: int = 0
    """End a stage after this many evaluations without a new best; 0 is off."""
    use_ema: bool = False
    """Evaluate the moving average of the weights instead of the weights."""

    def __post_init__(self) -> None:
        for key in ("every_steps", "num_problems", "max_new_tokens", "patience"):
            require(getattr(self, key) >= 0, f"{key} = {getattr(self, key)}: must not be negative")
        require(
            self.rollouts_per_problem >= 1, f"rollouts_per_problem = {self.rollouts_per_problem}: must be at least 1"
        )
        require(
            self.temperature > 0 or self.rollouts_per_problem == 1,
            f"rollouts_per_problem = {self.rollouts_per_problem} at temperature = 0 samples the same completion "
            f"{self.rollouts_per_problem} times; set temperature above 0 or take 1",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardsConfig:
    max_perplexity_ratio: float = 1.2
    """Perplexity on general text may grow to so many times what it was at the start of the run; 0 does not measure
    it."""
    max_format_drop: float = 0.25
    """The share of simple general requests whose form is followed may fall by so much; 0 does not measure it."""
    action: Literal["warn", "end_stage", "fall_back"] = "warn"
    """What a broken guard does, besides being logged and never becoming the best checkpoint. `end_stage`: the stage
    ends there. `fall_back`: it ends with the weights of the run's best checkpoint."""

    def __post_init__(self) -> None:
        require(
            self.max_perplexity_ratio == 0 or self.max_perplexity_ratio >= 1,
            f"max_perplexity_ratio = {self.max_perplexity_ratio}: must be at least 1, as in 1.2, or 0 for off",
        )
        require(
            0 <= self.max_format_drop < 1,
            f"max_format_drop = {self.max_format_drop}: must be in [0, 1), as in 0.25; 0 is off",
        )
        require(
            self.max_perplexity_ratio > 0 or self.max_format_drop > 0,
            "max_perplexity_ratio and max_format_drop are both 0: nothing is guarded; leave the guards table out",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    every_steps: int = 10
    """Save every so many steps, and at the end of each stage."""
    time_share: float = 0.05
    """Where these saves take long they are made less often: at most so much of the time goes into them; 1 is off. Saves
    of a few seconds are always made, and those of the end of a stage, the best evaluation and `every_update`."""
    every_update: bool = False
    """Also save after each optimizer update, inside a batch: for very long steps."""
    keep_last: int = 2
    """How many to keep; the best by held-out pass@1 is kept besides."""
    keep_best: bool = True
    """Save wherever held-out pass@1 is higher than before, and keep that. Off, it saves the time and the disk: with all
    weights trained, a checkpoint has 12 bytes a weight."""

    def __post_init__(self) -> None:
        require(self.every_steps >= 1, f"every_steps = {self.every_steps}: must be at least 1")
        require(self.keep_last >= 1, f"keep_last = {self.keep_last}: must be at least 1")
        require(0 < self.time_share <= 1, f"time_share = {self.time_share}: must be above 0 and at most 1; 1 is off")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    sinks: tuple[str, ...] = ()
    """Where metrics go besides the run directory: tensorboard, wandb, trackio."""
    rollouts_every_steps: int = 1
    """Keep the rollouts of every so many steps; 0 keeps none."""
    tokens_every_steps: int = 10
    """Of every so many steps whose rollouts are kept, also keep what the step did to each token (probability ratio, KL,
    entropy): one more pass over the step's rollouts; 0 keeps none."""

    def __post_init__(self) -> None:
        for key in ("rollouts_every_steps", "tokens_every_steps"):
            require(getattr(self, key) >= 0, f"{key} = {getattr(self, key)}: must be ≥ 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One experiment. Everything that runs reads this one object."""

    name: str
    """Names the run directory: letters, digits, `.`, `_`, `-`, at most 48."""
    description: str = ""
    """A sentence for `groupwise recipes`."""
    seed: int = 0
    """Moves everything that is random: initial weights, order of problems, sampling."""
    max_nonfinite_updates: int = 5
    """Updates in a row whose loss or gradient is NaN or inf are skipped, and after so many the run stops."""
    model: ModelConfig
    """The policy."""
    task: TaskConfig
    """Where problems come from and how completions are scored."""
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    """How completions are scored: processes, limits, process score."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """What draws the rollouts."""
    stages: tuple[Stage, ...]
    """Run one after the other, each from the last one's weights."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Held-out pass@1 while training."""
    guards: GuardsConfig | None = None
    """Watch with each evaluation what the model can do besides the task, and act when it degrades."""
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    """When to save, what to keep."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """Sinks and rollouts."""

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"seed = {self.seed}: must not be negative")
        require(self.max_nonfinite_updates >= 1, f"max_nonfinite_updates = {self.max_nonfinite_updates}: must be ≥ 1")
        require(
            not self.evaluation.use_ema or self.model.ema_decay > 0,
            "evaluation.use_ema = true, but model.ema_decay = 0 keeps no average; set it to 0.99, say",
        )
        require(
            self.guards is None or self.evaluation.at_start,
            "guards compare with the start of the run, but evaluation.at_start = false does not look at it; set it to "
            "true, or leave the guards table out",
        )
        require(
            self.checkpoints.keep_best or self.guards is None or self.guards.action != "fall_back",
            'guards.action = "fall_back" goes back to the best checkpoint, but checkpoints.keep_best = false keeps '
            "none; set it to true",
        )
        for index, stage in enumerate(self.stages):
            require(
                self.checkpoints.keep_best or stage.start_from == "final",
                f'stages.{index}.start_from = "best", but checkpoints.keep_best = false keeps no best checkpoint; '
                "set it to true",
            )
            require(
                isinstance(stage, SftStage) or stage.reward.process_weight == 0 or self.verifier.process != "",
                f"stages.{index}.reward.process_weight is above 0, but nothing scores the reasoning; set "
                'verifier.process = "arithmetic", say',
            )
            if isinstance(stage, SftStage) and stage.source == "rollouts":
                require(
                    any(isinstance(earlier, RlStage) for earlier in self.stages[:index]),
                    f'stages.{index}.source = "rollouts": no stage before it samples any; put an RL stage first',
                )
                require(
                    self.logging.rollouts_every_steps == 1,
                    f'stages.{index}.source = "rollouts" reads the rollouts of earlier stages, but '
                    f"logging.rollouts_every_steps = {self.logging.rollouts_every_steps} drops some; set it to 1",
                )

    @property
    def total_steps(self) -> int:
        return sum(stage.steps for stage in self.stages)
