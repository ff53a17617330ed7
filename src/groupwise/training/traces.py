"""What a step did to each token: one pass over its rollouts after the updates, compared with before.

The ratio is of the policy after the whole step to the policy before it, so it speaks even where a step is one update
and the ratio inside the loss is 1 by definition. Reads the policy, changes nothing, draws no random numbers.
"""

from __future__ import annotations

from torch import Tensor

from groupwise.algo.losses import kl_estimate
from groupwise.data.batch import Example
from groupwise.data.step_batch import StepBatch
from groupwise.models.chat import Pieces
from groupwise.models.policy import Policy
from groupwise.types import GroupTrace, TokenTrace

DECIMALS = 5
"""What a colour and a tooltip show; more would double the file."""


def trace_tokens(policy: Policy, batch: StepBatch, temperature: float, max_tokens: int) -> list[GroupTrace]:
    """One per group of the batch, in order. All ranks call it, and all get it."""
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
    # With a single update the trainer's own logprobs before it were not computed; the engine's are the same policy's.
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
