"""Chooses the tokens of a step that the surrogate and the pull count, from the policy before the step's first update.

All tokens of the step are compared at once, so a choice depends on neither microbatches nor updates. The choices
themselves are `algo/selection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from groupwise.algo.selection import covariances, drawn_between, largest
from groupwise.base.seeds import seed_of
from groupwise.config import RlStage
from groupwise.data.batch import Example
from groupwise.models.policy import Policy


def choose_tokens(stage: RlStage, policy: Policy, examples: Sequence[Example], key: Sequence[object]) -> list[Example]:
    """Return the examples with their choices, if `stage.entropy` asks for any; `key` seeds what is drawn."""
    config, learned, pulled = stage.entropy, None, None
    if not examples:
        return []
    if config.top_share < 1:
        measured = policy.measure(examples, stage.sampling.temperature, stage.microbatch_tokens)
        learned = largest(torch.cat([entropies for _, entropies in measured]), config.top_share)
    if config.needs_covariance:
        values = covariances(
            torch.cat([example.old_logprobs for example in examples if example.old_logprobs is not None]),
            torch.cat([example.advantages for example in examples if example.advantages is not None]),
        )
        if config.covariance_share > 0:
            bounds = (config.covariance_low, config.covariance_high, config.covariance_share)
            kept = ~drawn_between(values, *bounds, seed_of(*key, "covariance"))
            learned = kept if learned is None else learned & kept
        if config.pull_share < 1:
            pulled = largest(values, config.pull_share)
    return [
        replace(example, learned_tokens=own_learned, pulled_tokens=own_pulled)
        for example, own_learned, own_pulled in zip(
            examples, _split(learned, examples), _split(pulled, examples), strict=True
        )
    ]


def _split(chosen: Tensor | None, examples: Sequence[Example]) -> Sequence[Tensor | None]:
    if chosen is None:
        return [None] * len(examples)
    return chosen.float().split([len(example.completion_ids) for example in examples])
