"""The gate of a stage: before its first update, the engine's logprobs are compared with the trainer's own.

A model whose cached decoding is not its forward pass would train on rollouts of another distribution, and nothing else
would show it. Contract: `check_engine` refuses such a stage, or warns where the engine computes with other kernels
(vLLM). It changes no state and draws no random numbers. Later steps are watched by the doctor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from groupwise.config import ConfigError, RlStage
from groupwise.data.batch import Example
from groupwise.training.training import Training

logger = logging.getLogger(__name__)

NUM_ROLLOUTS = 16
"""Rollouts that are compared, spread over the step's groups. A state that is lost shows in nearly every token."""


class EngineDisagrees(ConfigError):
    """The engine samples from another distribution than the one that is trained."""


class Gap(NamedTuple):
    """Differences between two rows of logprobs, in nats per token."""

    mean: float
    largest: float

    def is_within(self, bound: Gap) -> bool:
        return self.mean <= bound.mean and self.largest <= bound.largest

    def __str__(self) -> str:
        return f"{self.mean:.2g} nats per token on average and {self.largest:.2g} at most"


BOUNDS = {
    (torch.float32, "cpu"): Gap(5e-5, 5e-4),
    (torch.float32, "cuda"): Gap(0.01, 0.3),
    (torch.bfloat16, "cpu"): Gap(0.1, 3.0),
    (torch.bfloat16, "cuda"): Gap(0.1, 3.0),
}
"""Largest differences that rounding explains, at temperature 1.

fp32: 1e-7 on average with tiny models, 6e-6 to 9e-6 (3e-5 at most) with SmolLM2-135M and Qwen2.5-0.5B. On a GPU the
native engine has made 1.4e-4 on average with 12 small layers, probably because its attention multiplies in TF32, which
rounds an eighth as much as bf16. bf16: where kernels are not shared, the mean has been 0.04 (SmolLM2-135M, reference
engine), and single unlikely tokens may differ by a nat or more.
"""


def check_engine(training: Training, stage: RlStage, examples: Sequence[Example]) -> None:
    """Refuse a stage, at its first step, whose engine's logprobs are not the trainer's."""
    with_tokens = [example for example in examples if example.completion_ids]
    if training.position.stage_step > 0 or not with_tokens:
        return
    compared = with_tokens[:: -(-len(with_tokens) // NUM_ROLLOUTS)]
    policy, temperature = training.policy, stage.sampling.temperature
    ours = torch.cat([row for row, _ in policy.measure(compared, temperature, stage.microbatch_tokens)])
    theirs = torch.cat([example.rollout_logprobs for example in compared if example.rollout_logprobs is not None])
    gaps = (ours - theirs).abs()
    gap = Gap(float(gaps.mean()), float(gaps.max()))
    # Rounding errors of logits are divided by the temperature like the logits.
    bound = Gap(*(limit / min(temperature, 1.0) for limit in BOUNDS[policy.dtype, policy.device.type]))
    if gap.is_within(bound):
        return
    seen = (
        f"stage {stage.name}: the logprobs of the {training.recipe.engine.name} engine differ from the trainer's by "
        f"{gap} in {len(compared)} rollouts, where {str(policy.dtype).removeprefix('torch.')} explains {bound}"
    )
    if training.recipe.engine.name == "vllm":
        is_corrected = stage.loss.importance != "none"
        fix = "the importance weights correct some of it" if is_corrected else 'set loss.importance = "truncated"'
        logger.warning("%s; %s", seen, fix)
        return
    raise EngineDisagrees(f"{seen}. {_cause(training)}")


def _cause(training: Training) -> str:
    model = type(training.policy.model).__name__
    fixes = ["choose another model"]
    if training.policy.dtype != torch.float32:
        fixes.insert(0, 'set model.dtype = "float32", in case it is rounding')
    if training.recipe.engine.name == "native":
        fixes.insert(0, 'set engine.name = "reference", which decodes with the model\'s own cache')
    return (
        "The rollouts come from another distribution than the one that would be trained. The likely cause: decoding "
        f"{model} with a cache gives other results than its whole forward pass. To continue, {'; or '.join(fixes)}"
    )
