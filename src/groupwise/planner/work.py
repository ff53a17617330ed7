"""Work of one step of a stage, in tokens. The only place that estimates lengths of prompts and completions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from groupwise.config import ConfigError, EngineConfig, ModelConfig, Recipe, RlStage, Stage
from groupwise.planner.gpus import Gpu
from groupwise.planner.shapes import ModelShape, read_part

USUAL_PROMPT_TOKENS = 128
"""Mean length of prompts, if the task is not asked."""
NUM_ENCODED = 256
"""Number of training problems that `mean_prompt_tokens` encodes."""
UNKNOWN_MAX_TOKENS = 256
"""Length of demonstrations, which no key limits, and of evaluations in recipes without RL stages."""


@dataclass(frozen=True, slots=True)
class Work:
    shape: ModelShape
    model: ModelConfig
    engine: EngineConfig
    stage: Stage
    gpu: Gpu
    prompt_tokens: int
    mean_tokens: float
    """Expected length of a completion."""
    max_tokens: int
    """Length of the longest completion."""
    problems: int
    """Problems in a step; demonstrations in an SFT stage."""
    group: int
    epochs: int
    updates_per_epoch: int
    ranks: int = 1

    @property
    def value_bytes(self) -> int:
        """Bytes of a weight that is neither quantized nor a master; bf16 unless the recipe says otherwise."""
        return 4 if self.model.dtype == "float32" else 2

    @property
    def trained(self) -> int:
        lora = self.model.lora
        return self.shape.parameters if lora is None else self.shape.adapter_parameters(lora)

    @property
    def is_straight(self) -> bool:
        """groupwise runs the layers itself (models/straight.py)."""
        return self.shape.is_straight and self.value_bytes == 2 and self.model.quantization == "none"

    @property
    def rollouts(self) -> int:
        return self.problems * self.group

    @property
    def updates(self) -> int:
        return self.epochs * self.updates_per_epoch

    @property
    def completion_tokens(self) -> float:
        return self.rollouts * self.mean_tokens

    @property
    def computed_tokens(self) -> float:
        """Tokens of one pass over all rollouts: each prompt once per group, and no last token of a completion."""
        return self.problems * self.prompt_tokens + self.rollouts * max(0.0, self.mean_tokens - 1)

    @property
    def slots(self) -> int:
        """Rollouts that one rank decodes at once."""
        return min(self.engine.max_batch_rollouts, -(-self.rollouts // self.ranks))

    @property
    def row_tokens(self) -> int:
        """Cache tokens of a rollout, rounded up as in the engine."""
        return -(-(self.prompt_tokens - 1 + self.max_tokens) // 64) * 64

    def changed(self, *, model: dict[str, Any] | None = None, **stage: Any) -> Work:
        """Return the work with other keys of the model and the stage."""
        return replace(self, model=replace(self.model, **(model or {})), stage=replace(self.stage, **stage))


def work_of(
    recipe: Recipe,
    stage: Stage,
    shape: ModelShape,
    gpu: Gpu,
    *,
    prompt_tokens: int,
    mean_tokens: float | None = None,
    ranks: int = 1,
) -> Work:
    """Return the work of a stage. `mean_tokens`: half of the maximum by default."""
    if isinstance(stage, RlStage):
        longest, per_epoch = stage.sampling.max_new_tokens, stage.updates_per_step // stage.epochs_per_batch
        problems, group, epochs = stage.problems_per_step, stage.rollouts_per_problem, stage.epochs_per_batch
    else:
        longest, per_epoch = UNKNOWN_MAX_TOKENS, 1
        problems, group, epochs = stage.demonstrations_per_step, 1, 1
    return Work(
        shape=shape,
        model=recipe.model,
        engine=recipe.engine,
        stage=stage,
        gpu=gpu,
        prompt_tokens=prompt_tokens,
        mean_tokens=min(float(longest), longest / 2 if mean_tokens is None else mean_tokens),
        max_tokens=longest,
        problems=problems,
        group=group,
        epochs=epochs,
        updates_per_epoch=per_epoch,
        ranks=ranks,
    )


def mean_prompt_tokens(recipe: Recipe) -> int:
    """Encode problems of the recipe's task with its model's tokenizer, and return their mean length."""
    from transformers import AutoTokenizer

    from groupwise.models.chat import Prompts
    from groupwise.models.load import prepare_template
    from groupwise.models.tiny import TINY_NAMES, make_tokenizer
    from groupwise.tasks.functions import task_of

    problems = task_of(recipe.task).problems("train")[:NUM_ENCODED]
    if not problems:
        raise ConfigError("--prompt-tokens task: the task has no training problems; give a number")
    path = recipe.model.path
    if path in TINY_NAMES:
        tokenizer = make_tokenizer()
    else:
        tokenizer = read_part(AutoTokenizer, path, "tokenizer", "give --prompt-tokens a number instead")
    prepare_template(tokenizer, recipe.model)
    return round(sum(len(prompt.token_ids) for prompt in Prompts(tokenizer).of(problems)) / len(problems))
