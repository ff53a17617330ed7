"""Every key of a recipe outside its stages: type, default and meaning. docs/reference is generated from this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from groupwise.config.build import Amount, Config, Count, CountOrZero, Name, Seconds, Seed, Within, require, shown
from groupwise.config.stages import RlStage, SftStage, Stage, StopStrings


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig(Config):
    rank: Annotated[int, Within("[1, 65536]", "leave the lora table out to train all weights")] = 16
    """Rank of the adapters."""
    alpha: Annotated[float, Within("(0, 1e6]", "twice the rank is usual")] = 32.0
    """The output of the adapters is scaled by alpha / rank."""
    dropout: Annotated[float, Within("[0, 1)")] = 0.0
    """Dropout on the input of the adapters in training. Above 0, the first update is slightly off-policy."""
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Linear layers that get an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Config):
    path: str
    """A hub id, a folder, a .gguf file (dequantized), or `tiny-qwen3` or `tiny-llama` (small, random weights)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: bfloat16 with fp32 master weights on a GPU. On a CPU the same if a short trial finds it faster and exact
    enough, else float32."""
    device: str = "auto"
    """Device to train on. `auto`: the GPU if there is one."""
    gradient_checkpointing: Literal[False, True, "mlp"] = False
    """Recompute activations in the backward pass to save memory. `true`: all activations of each layer, which takes
    about a third more time. `"mlp"`: only those of the feed-forward part, which are the largest share."""
    lora: LoraConfig | None = None
    """Train LoRA adapters instead of all weights."""
    quantization: Literal["none", "4bit", "8bit"] = "none"
    """Quantize all frozen linear weights but the head's: 4 bit (NF4, bitsandbytes) or 8 bit (int8). Requires lora."""
    ema_decay: Annotated[float, Within("[0, 1)", "0.99 is usual, 0 is off")] = 0.0
    """Decay per update of a moving average of the weights; 0: no average."""
    chat_template_options: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the model's chat template, such as `enable_thinking = false` for Qwen3. An exported model keeps
    them in its template."""
    tiny: Mapping[str, Annotated[int, Within("[1, 1e6]")]] = field(default_factory=dict)
    """Sizes of a tiny-… model: hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, context_tokens."""

    def check(self) -> None:
        given = self.gradient_checkpointing
        require(
            isinstance(given, bool) or given == "mlp",  # 1 equals True and would pass
            f'gradient_checkpointing = {given!r}: expected true, false or "mlp"',
        )
        require(
            self.quantization == "none" or self.lora is not None,
            f"quantization = {self.quantization!r}: quantized weights cannot be trained, only adapters on them; add "
            "a lora table, or remove quantization",
        )
        for name, value in self.chat_template_options.items():
            require(
                name.isidentifier() and isinstance(value, bool | int | float | str),
                f"chat_template_options.{name} = {shown(value)}: expected a variable of the template, and true, "
                "false, a number or a string",
            )
        require(
            not self.tiny or self.path.startswith("tiny-"),
            f"tiny = {shown(dict(self.tiny))}: sizes are for tiny-qwen3 and tiny-llama, not for {shown(self.path)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig(Config):
    name: str
    """A name from `groupwise tasks`, or `module:Class` for your own task."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task; `groupwise tasks NAME` lists them."""
    reward: str | Mapping[str, Amount] | None = None
    """Reward functions instead of the task's own verifier: `module:function`, or several with weights, as in
    `{ "my_rewards:accuracy" = 1.0, "my_rewards:brevity" = 0.2 }`. Each takes (completion, row) and returns a number or
    a Score; the first one decides what is correct. The name `task` stands for the task's own verifier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierConfig(Config):
    workers: Annotated[int, Within("[0, 256]", 'or "auto"')] | Literal["auto"] = "auto"
    """Number of processes per rank that score completions while others are sampled. `auto`: half of the cores, at
    least 2 and at most 16. 0: score in the trainer, without limits."""
    seconds: Seconds = 5.0
    """CPU time limit per completion. A completion that takes longer counts as `timed_out`, not as wrong."""
    wall_seconds: Seconds = 60.0
    """Wall-clock time limit per completion, for a verifier that waits for something."""
    memory_mb: Annotated[int, Within("[64, 1e8]")] = 4096
    """Memory limit per completion, not counting the imported modules."""
    process: str = ""
    """Also score the reasoning: `arithmetic` (the share of written calculations that are correct), or
    `module:function` for your own, which takes the steps of a completion and returns 0 … 1 or None.
    reward.process_weight sets its weight in the reward."""

    def check(self) -> None:
        require(
            self.wall_seconds >= self.seconds,
            f"wall_seconds = {self.wall_seconds}: must be at least seconds = {self.seconds}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Config):
    name: Literal["native", "reference", "vllm"] = "native"
    """What samples the rollouts. `native`: the trainer's own weights, a paged cache, continuous batching and, on a GPU,
    one CUDA graph per decode step. `reference`: the same tokens from the model's own forward pass; slow and simple.
    `vllm`: vLLM, installed or served, with its own copy of the weights, updated every step; see
    docs/how-to/vllm.md."""
    max_batch_rollouts: Annotated[int, Within("[1, 1e6]")] = 256
    """Maximum number of rollouts that decode at once. It affects memory, and completions only by rounding."""
    cache_tokens: CountOrZero = 0
    """`native`: size of the cache in tokens. 0: enough for max_batch_rollouts, if memory allows."""
    memory_share: Annotated[float, Within("[0, 1)", "0 is 0.4")] = 0.0
    """`vllm` without url: fraction of the GPU's memory (without a GPU: of all memory) for vLLM's copy of the weights
    and its cache. 0: use 0.4."""
    url: str = ""
    """`vllm`: address of a vLLM server, such as `http://127.0.0.1:8000`. Empty: run vLLM in the trainer's process."""
    weights_folder: str = ""
    """`vllm` with url: folder for the weights that the server loads; it must see the same path. Empty: a temporary
    folder on this machine."""
    timeout_s: Annotated[float, Within("[0, 1e7]")] = 0.0
    """`vllm` with url: maximum wait for one answer (a whole completion, or loading weights). 0: use 600."""

    def check(self) -> None:
        is_vllm, is_served = self.name == "vllm", self.url != ""
        require(
            re.fullmatch(r"(https?://[^/?#\s@]+(/[^?#\s]*)?)?", self.url) is not None,
            f"url = {shown(self.url)}: expected something like 'http://127.0.0.1:8000'",
        )
        readers = {
            "memory_share": (is_vllm and not is_served, 'needs name = "vllm" without url'),
            "url": (is_vllm, 'needs name = "vllm"'),
            "weights_folder": (is_vllm and is_served, 'needs name = "vllm" and url'),
            "timeout_s": (is_vllm and is_served, 'needs name = "vllm" and url'),
            "cache_tokens": (not is_vllm, 'needs name = "native"; for vLLM set memory_share'),
        }
        for key, (is_read, reader) in readers.items():
            value = getattr(self, key)
            require(is_read or not value, f"{key} = {shown(value)}: {reader}, but name = {shown(self.name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig(Config):
    every_steps: CountOrZero = 20
    """Measure held-out pass@1 every N steps and at the end of each stage. 0: stage ends only."""
    at_start: bool = True
    """Also evaluate before the first step."""
    num_problems: CountOrZero = 200
    """Number of held-out problems, from the first on. 0: all."""
    rollouts_per_problem: Annotated[int, Within("[1, 1e5]")] = 1
    """Completions per problem; pass@1 is their mean."""
    temperature: Annotated[float, Within("[0, 100]")] = 0.0
    """Sampling temperature. 0: greedy."""
    max_new_tokens: Annotated[int, Within("[0, 1e7]")] = 0
    """Maximum length of a completion. 0: the largest of the recipe's RL stages, or 256 without one."""
    stop_strings: StopStrings = ()
    """End a completion once its text contains one of these."""
    patience: CountOrZero = 0
    """End a stage after this many evaluations without a new best. 0: off."""
    use_ema: bool = False
    """Evaluate the moving average of the weights instead of the weights."""

    def check(self) -> None:
        require(
            self.temperature > 0 or self.rollouts_per_problem == 1,
            f"rollouts_per_problem = {self.rollouts_per_problem} at temperature = 0 samples the same completion "
            f"{self.rollouts_per_problem} times; set temperature above 0, or rollouts_per_problem = 1",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardsConfig(Config):
    max_perplexity_ratio: Annotated[float, Within("[1, 1e6]", "1.2 is usual", also=0)] = 1.2
    """Maximum perplexity on general text, relative to the start of the run. 0: do not measure it."""
    max_format_drop: Annotated[float, Within("[0, 1)", "0.25 is usual, 0 is off")] = 0.25
    """Maximum drop of the share of simple general requests whose format is followed. 0: do not measure it."""
    action: Literal["warn", "end_stage", "fall_back"] = "warn"
    """What happens when a limit is exceeded, besides a log entry and not becoming the best checkpoint. `end_stage`: the
    stage ends. `fall_back`: the stage ends with the weights of the run's best checkpoint."""

    def check(self) -> None:
        require(
            self.max_perplexity_ratio > 0 or self.max_format_drop > 0,
            "max_perplexity_ratio and max_format_drop are both 0: nothing is measured; remove the guards table",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig(Config):
    every_steps: Count = 10
    """Save every N steps and at the end of each stage."""
    time_share: Annotated[float, Within("(0, 1]", "1 is off")] = 0.05
    """Maximum fraction of run time spent on these saves; slow ones become less frequent. 1: no limit. Saves that take
    only seconds are always made, as are those of stage ends, best evaluations and `every_update`."""
    every_update: bool = False
    """Also save after each optimizer update within a step, for very long steps."""
    keep_last: Count = 2
    """Number of checkpoints to keep, besides the best by held-out pass@1."""
    keep_best: bool = True
    """Save and keep the checkpoint with the best held-out pass@1. `false` saves time and disk: when all weights are
    trained, a checkpoint has 12 bytes per weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig(Config):
    sinks: tuple[str, ...] = ()
    """Other places for the metrics: tensorboard, wandb, trackio."""
    rollouts_every_steps: CountOrZero = 1
    """Keep the rollouts of every Nth step. 0: keep none."""
    tokens_every_steps: CountOrZero = 10
    """Also keep what the step did to each token (probability ratio, KL, entropy) for every Nth step whose rollouts are
    kept. It takes one more forward pass over them. 0: keep none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Config):
    """One experiment: everything that a run reads."""

    name: Name
    """Start of the run directory's name: at most 48 letters, digits, `.`, `_`, `-`."""
    description: str = ""
    """One sentence, shown by `groupwise recipes`."""
    seed: Seed = 0
    """Seed of everything random: initial weights, order of problems, sampling."""
    max_nonfinite_updates: Count = 5
    """Updates with a loss or gradient of NaN or inf are skipped; the run stops after this many in a row."""
    model: ModelConfig
    """The model to train."""
    task: TaskConfig
    """Where problems come from and how completions are scored."""
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    """Scoring: processes, limits, and a score of the reasoning."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """What samples the rollouts."""
    stages: tuple[Stage, ...]
    """Stages of training, in order; each starts from the weights of the one before."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluation on held-out problems during training."""
    guards: GuardsConfig | None = None
    """Measure general abilities at each evaluation, and act when they degrade."""
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    """When to save and what to keep."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """Metrics sinks, and which rollouts to keep."""

    def check(self) -> None:
        require(
            not self.evaluation.use_ema or self.model.ema_decay > 0,
            "evaluation.use_ema = true needs an average, but model.ema_decay = 0 keeps none; set it to 0.99",
        )
        require(
            self.guards is None or self.evaluation.at_start,
            "guards compare with the start of the run, but evaluation.at_start = false does not measure it; set it to "
            "true, or remove the guards table",
        )
        require(
            self.checkpoints.keep_best or self.guards is None or self.guards.action != "fall_back",
            'guards.action = "fall_back" needs the best checkpoint, but checkpoints.keep_best = false keeps '
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
                'verifier.process, for example to "arithmetic"',
            )
            if isinstance(stage, RlStage) and self.engine.name == "vllm" and self.has_truncated_sampling:
                require(
                    stage.sampling.temperature == 1,
                    f"stages.{index}.sampling.temperature = {stage.sampling.temperature}: must be 1 in a recipe with "
                    "top_k, top_p or min_p, because vLLM then reports logprobs at temperature 1 only; set it to 1, or "
                    'engine.name = "native"',
                )
            if isinstance(stage, SftStage) and stage.source == "rollouts":
                require(
                    any(isinstance(earlier, RlStage) for earlier in self.stages[:index]),
                    f'stages.{index}.source = "rollouts": no earlier stage samples any; put an RL stage first',
                )
                require(
                    self.logging.rollouts_every_steps == 1,
                    f'stages.{index}.source = "rollouts" reads the rollouts of earlier stages, but '
                    f"logging.rollouts_every_steps = {self.logging.rollouts_every_steps} drops some; set it to 1",
                )

    @property
    def has_truncated_sampling(self) -> bool:
        return any(isinstance(stage, RlStage) and stage.sampling.is_truncated for stage in self.stages)

    @property
    def total_steps(self) -> int:
        return sum(stage.steps for stage in self.stages)
