"""The gate of a stage: before its first update, the engine's logprobs are compared with the trainer's own.

A model whose cached decoding is not its forward pass would train on rollouts of another distribution, and nothing else
would show it. Contract: `check_engine` refuses such a stage, or warns where the engine computes with other kernels
(vLLM). It changes no state and draws no random numbers. Later steps are watched by the doctor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from groupwise.config import ConfigError, RlStage
from groupwise.data.batch import Example
from groupwise.models.agreement import SHARED_ROUNDING, gap_between, rounding_gap
from groupwise.training.training import Training

logger = logging.getLogger(__name__)

NUM_ROLLOUTS = 16
"""Rollouts that are compared, spread over the step's groups. A state that is lost shows in nearly every token."""


class EngineDisagrees(ConfigError):
    """The engine samples from another distribution than the one that is trained."""


def check_engine(training: Training, stage: RlStage, examples: Sequence[Example]) -> None:
    """Refuse a stage, at its first step, whose engine's logprobs are not the trainer's."""
    with_tokens = [example for example in examples if example.completion_ids]
    if training.position.stage_step > 0 or not with_tokens:
        return
    compared = with_tokens[:: -(-len(with_tokens) // NUM_ROLLOUTS)]
    policy, temperature = training.policy, stage.sampling.temperature
    ours = torch.cat([row for row, _ in policy.measure(compared, temperature, stage.microbatch_tokens)])
    theirs = torch.cat([example.rollout_logprobs for example in compared if example.rollout_logprobs is not None])
    gap, bound = gap_between(ours, theirs), rounding_gap(policy.dtype, policy.device, temperature)
    if policy.rounds_like_native and training.recipe.engine.name == "native":
        bound = SHARED_ROUNDING
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
