"""From hidden states to the logprob of the token that was drawn, and the entropy of what it was drawn from.

The logits of all tokens at once would be the largest thing of a whole step: tokens × vocabulary in fp32. So they are
made chunk by chunk, and again in the backward pass; memory does not grow with either.

Shapes: N tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_BYTES = 256 << 20
"""Of the fp32 logits of a chunk."""


def token_logprobs(logits_NV: Tensor, token_ids_N: Tensor, temperature: float) -> Tensor:
    """log π(token) at the sampling temperature, in fp32 whatever the logits are."""
    scaled = logits_NV.float() / temperature
    chosen = scaled.gather(1, token_ids_N[:, None])[:, 0]
    return chosen - scaled.logsumexp(dim=-1)


@torch.no_grad()
def token_entropy(logits_NV: Tensor, temperature: float) -> Tensor:
    """Entropy in nats."""
    log_p = (logits_NV.float() / temperature).log_softmax(dim=-1)
    return -(log_p.exp() * log_p).nan_to_num(0.0).sum(dim=-1)


def head_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, token_ids_N: Tensor, temperature: float, chunk_tokens: int = 0
) -> tuple[Tensor, Tensor]:
    """(logprobs with gradient, entropies without) under a head that is one matrix."""
    chunk_tokens = chunk_tokens or _chunk_tokens(weight_VD.shape[0])
    logprobs, entropies = _HeadLogprobs.apply(hidden_ND, weight_VD, token_ids_N, temperature, chunk_tokens)
    return logprobs, entropies


def chunked_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    token_ids_N: Tensor,
    temperature: float,
    vocab: int,
    chunk_tokens: int = 0,
) -> tuple[Tensor, Tensor]:
    """The same under any head, hidden states → logits: autograd makes its chunks again."""

    def score(hidden: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden)
        return token_logprobs(logits, token_ids, temperature), token_entropy(logits.detach(), temperature)

    size = chunk_tokens or _chunk_tokens(vocab)
    chunks = zip(hidden_ND.split(size), token_ids_N.split(size), strict=True)
    pairs = [checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks]
    return torch.cat([logprobs for logprobs, _ in pairs]), torch.cat([entropies for _, entropies in pairs])


def _chunk_tokens(vocab: int) -> int:
    """A multiple of 64, for the products."""
    return max(64, CHUNK_BYTES // (4 * vocab) // 64 * 64)


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """In fp32: the products are summed in it anyway, and bf16 would round to 1/16 or worse."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return (hidden @ weight.t()).float()


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, token_ids: Tensor, temperature: float, chunk_tokens: int
    ) -> tuple[Tensor, Tensor]:
        logprobs, totals, entropies = torch.empty(3, hidden.shape[0], device=hidden.device).unbind()
        for start in range(0, hidden.shape[0], chunk_tokens):
            part = slice(start, start + chunk_tokens)
            x = _logits(hidden[part], weight).div_(temperature)
            totals[part] = x.logsumexp(dim=-1)
            logprobs[part] = x.gather(1, token_ids[part, None])[:, 0] - totals[part]
            log_p = x.sub_(totals[part, None])
            # A token that cannot be drawn has log p = -inf, and p log p = 0.
            entropies[part] = -(log_p.exp().mul_(log_p)).nan_to_num_(0.0).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, token_ids, totals)
        ctx.form = (temperature, chunk_tokens)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, token_ids, totals = ctx.saved_tensors
        temperature, chunk_tokens = ctx.form
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight: Tensor | None = None
        for start in range(0, hidden.shape[0], chunk_tokens):
            part = slice(start, start + chunk_tokens)
            # d logprob / d logits = (one-hot - p) / temperature
            scale = grad[part, None] / temperature
            p = _logits(hidden[part], weight).div_(temperature).sub_(totals[part, None]).exp_()
            slope = p.mul_(-scale).scatter_add_(1, token_ids[part, None], scale).to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(slope, weight, out=grad_hidden[part])
            if needs_weight:
                # Chunks add up in fp32: in bf16 the sum would lose what the later ones add.
                change = _logits(slope.t(), hidden[part].t())
                grad_weight = change if grad_weight is None else grad_weight.add_(change)
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None
