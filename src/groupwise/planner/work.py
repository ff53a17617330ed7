"""What one step of a stage has to do, in tokens: what is planned for, and the only place that guesses lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from groupwise.config import EngineConfig, ModelConfig, Recipe, RlStage, Stage
from groupwise.planner.gpus import Gpu
from groupwise.planner.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Work:
    shape: ModelShape
    model: ModelConfig
    engine: EngineConfig
    stage: Stage
    gpu: Gpu
    prompt_tokens: int
    mean_tokens: float
    """Of a completion, as is expected."""
    max_tokens: int
    """Of the longest completion."""
    problems: int
    """In a step; of an SFT stage its demonstrations."""
    group: int
    epochs: int
    updates_per_epoch: int
    ranks: int = 1

    @property
    def value_bytes(self) -> int:
        """Of a weight that is neither quantized nor a master; bf16 unless the recipe says otherwise."""
        return 4 if self.model.dtype == "float32" else 2

    @property
    def trained(self) -> int:
        lora = self.model.lora
        return self.shape.parameters if lora is None else self.shape.adapter_parameters(lora)

    @property
    def is_straight(self) -> bool:
        """Whether layers are operations of our own (models/straight.py)."""
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
        """Of one pass over all rollouts: a prompt once for its group, and no completion's last token."""
        return self.problems * self.prompt_tokens + self.rollouts * max(0.0, self.mean_tokens - 1)

    @property
    def slots(self) -> int:
        """Rollouts that one rank decodes at once."""
        return min(self.engine.max_batch_rollouts, -(-self.rollouts // self.ranks))

    @property
    def row_tokens(self) -> int:
        """Of the cache, for one rollout: rounded up as the engine does."""
        return -(-(self.prompt_tokens - 1 + self.max_tokens) // 64) * 64

    def changed(self, *, model: dict[str, Any] | None = None, **stage: Any) -> Work:
        """With other keys of the model and of the stage."""
        return replace(self, model=replace(self.model, **(model or {})), stage=replace(self.stage, **stage))


UNKNOWN_MAX_TOKENS = 256
"""Of demonstrations, whose lengths no key bounds; and of evaluations of a recipe without RL stages."""


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
    """`mean_tokens`: by default completions are half as long as they may be."""
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
