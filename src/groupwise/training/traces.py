"""The effect of a step on each token: one pass over its rollouts after the updates, compared with before.

The ratio compares the policies after and before the whole step, so it is informative even if a step is one update,
where the ratio in the loss is 1 by definition. The policy is not changed, and no random numbers are used.
"""

from __future__ import annotations

from torch import Tensor

from groupwise.algo.losses import kl_estimate
from groupwise.data.batch import Example, StepBatch
from groupwise.models.chat import Pieces
from groupwise.models.policy import Policy
from groupwise.types import GroupTrace, TokenTrace

DECIMALS = 5
"""Precision for a colour and a tooltip; more would double the file."""


def trace_tokens(policy: Policy, batch: StepBatch, temperature: float, max_tokens: int) -> list[GroupTrace]:
    """Return a trace per group of the batch, in order. All ranks call this and get the result."""
    measured = policy.measure(batch.examples, temperature, max_tokens)
    pieces = Pieces(policy.tokenizer)
    rows = {
        (example.problem_index, example.rollout_index): _trace(example, logprobs, entropies, pieces)
        for example, (logprobs, entropies) in zip(batch.examples, measured, strict=True)
    }
    return [
        GroupTrace(
            problem_id=scored.group.prompt.problem.id,
            rollouts=tuple(rows.get((index, number)) for number in range(len(scored.scores))),
        )
        for index, scored in enumerate(batch.groups)
    ]


def _trace(example: Example, now: Tensor, entropies: Tensor, pieces: Pieces) -> TokenTrace:
    # With a single update the trainer's old logprobs are not computed. The engine's are of the same policy.
    before = example.rollout_logprobs if example.old_logprobs is None else example.old_logprobs
    assert before is not None
    divergence = None if example.ref_logprobs is None else kl_estimate("k3", now, example.ref_logprobs)
    return TokenTrace(
        pieces=pieces.of(example.completion_ids),
        logprobs=_rounded(before),
        ratios=_rounded((now - before).exp()),
        divergences=None if divergence is None else _rounded(divergence),
        entropies=_rounded(entropies),
    )


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(values.double().round(decimals=DECIMALS).tolist())
