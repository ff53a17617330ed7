"""Logprobs of sampled tokens and entropies of their distributions, from hidden states. Both have gradients.

The logits of all tokens at once would be the largest tensor of a step: tokens × vocabulary in fp32. So they are
computed chunk by chunk, and again in the backward pass. Memory grows with neither tokens nor vocabulary.

Shapes: N tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_BYTES = 256 << 20
"""Size of the fp32 logits of a chunk."""
CPU_CHUNK_BYTES = 48 << 20
"""The same on a CPU."""


def token_logprobs(logits_NV: Tensor, token_ids_N: Tensor, temperature: float) -> Tensor:
    return token_measures(logits_NV, token_ids_N, temperature)[0]


def token_measures(logits_NV: Tensor, token_ids_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log π(token) at the sampling temperature and the entropy in nats, [N] each, always in fp32."""
    scaled = logits_NV.float() / temperature
    chosen = scaled.gather(1, token_ids_N[:, None])[:, 0]
    return chosen - scaled.logsumexp(dim=-1), _Entropy.apply(scaled)


class Rows(Protocol):
    """Operations on each row of a chunk of logits. kernels/output_head.py does each in one pass."""

    def measure(self, logits_NV: Tensor, token_ids_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return (logprobs, log-sum-exps, entropies), [N] each. The logits may be overwritten."""
        ...

    def slope(
        self, logits_NV: Tensor, token_ids_N: Tensor, totals_N: Tensor, grad_N: Tensor, temperature: float,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        """Return the gradient of the logits [N, V] from that of the logprobs."""
        ...

    def split_sums(self) -> AbstractContextManager[None]:
        """Inside, products may split their sums: gradients need not agree with the engine bit for bit."""
        ...


class TorchRows:
    def measure(self, logits_NV: Tensor, token_ids_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        x = logits_NV.div_(temperature)
        totals = x.logsumexp(dim=-1)
        logprobs = x.gather(1, token_ids_N[:, None])[:, 0] - totals
        log_p = x.sub_(totals[:, None])
        # A token that cannot be sampled has log p = -inf, and p log p = 0.
        return logprobs, totals, -(log_p.exp().mul_(log_p)).nan_to_num_(0.0).sum(dim=-1)

    def slope(
        self, logits_NV: Tensor, token_ids_N: Tensor, totals_N: Tensor, grad_N: Tensor, temperature: float,
        dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        # d logprob / d logits = (one-hot - p) / temperature
        scale = grad_N[:, None] / temperature
        p = logits_NV.div_(temperature).sub_(totals_N[:, None]).exp_()
        return p.mul_(-scale).scatter_add_(1, token_ids_N[:, None], scale).to(dtype)

    def split_sums(self) -> AbstractContextManager[None]:
        return nullcontext()


def head_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    token_ids_N: Tensor,
    temperature: float,
    chunk_tokens: int = 0,
    rows: Rows | None = None,
    grad_sum_VD: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (logprobs, entropies) under a head that is one matrix.

    With `grad_sum_VD` the backward pass adds the weight's gradient to it, in fp32, and hands autograd none.
    """
    size = chunk_tokens or chunk_tokens_of(weight_VD.shape[0])
    form = (temperature, size, rows or TorchRows(), grad_sum_VD)
    logprobs, entropies = _HeadLogprobs.apply(hidden_ND, weight_VD, token_ids_N, form)
    return logprobs, entropies


def chunked_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    token_ids_N: Tensor,
    temperature: float,
    vocab: int,
    chunk_tokens: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return the same under any head, hidden states → logits. Autograd recomputes its chunks."""

    def score(hidden: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        return token_measures(head(hidden), token_ids, temperature)

    size = chunk_tokens or chunk_tokens_of(vocab)
    chunks = zip(hidden_ND.split(size), token_ids_N.split(size), strict=True)
    pairs = [checkpoint(score, *chunk, use_reentrant=False) for chunk in chunks]
    return torch.cat([logprobs for logprobs, _ in pairs]), torch.cat([entropies for _, entropies in pairs])


def chunk_tokens_of(vocab: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the tokens of a chunk: a multiple of 64, for fast products."""
    return max(64, chunk_bytes // (4 * vocab) // 64 * 64)


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return logits in fp32: products are summed in fp32 anyway, and bf16 would round to 1/16 or worse."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return (hidden @ weight.t()).float()


class _Entropy(torch.autograd.Function):
    """Keeps the logits alone, which the logprobs keep anyway: where no loss asks, a gradient costs nothing."""

    @staticmethod
    def forward(ctx: Any, scaled: Tensor) -> Tensor:
        log_p = scaled.log_softmax(dim=-1)
        entropies = -(log_p.exp() * log_p).nan_to_num(0.0).sum(dim=-1)
        ctx.save_for_backward(scaled, entropies)
        return entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        scaled, entropies = ctx.saved_tensors
        return _entropy_slope(scaled.log_softmax(dim=-1), entropies, grad)


def _entropy_slope(log_p: Tensor, entropies: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of logits / temperature from that of the entropies: dH / dx = -p (log p + H)."""
    # A token that cannot be sampled has p = 0 and log p = -inf.
    return log_p.exp().mul_((log_p + entropies[:, None]).clamp_(min=-1e30)).mul_(-grad[:, None])


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, token_ids: Tensor, form: Any) -> tuple[Tensor, Tensor]:
        temperature, size, rows, _ = form
        wide = weight.to(hidden.dtype)
        chunks = [
            rows.measure(_logits(hidden[start : start + size], wide), token_ids[start : start + size], temperature)
            for start in range(0, max(1, hidden.shape[0]), size)
        ]
        logprobs, totals, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        ctx.save_for_backward(hidden, weight, token_ids, totals, entropies)
        ctx.form = form
        # The gradient of entropies is None, not zeros, where the loss has none of them.
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, entropy_grad: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, token_ids, totals, entropies = ctx.saved_tensors
        grad = torch.zeros_like(totals) if grad is None else grad
        temperature, size, rows, grad_weight = ctx.form
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        has_sum = grad_weight is not None
        # On a CPU the states are in fp32 where the matrix is in bf16, whose type is wide enough for gradients.
        wide = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden, dtype=weight.dtype) if needs_hidden else None
        for start in range(0, hidden.shape[0], size):
            part = slice(start, start + size)
            logits = _logits(hidden[part], wide)
            bonus = None
            if entropy_grad is not None:
                log_p = logits.div(temperature).sub_(totals[part, None])
                bonus = _entropy_slope(log_p, entropies[part], entropy_grad[part] / temperature)
                del log_p
            slope = rows.slope(logits, token_ids[part], totals[part], grad[part], temperature, weight.dtype)
            del logits
            if bonus is not None:
                slope += bonus
            with rows.split_sums():
                if grad_hidden is not None:
                    torch.mm(slope, weight, out=grad_hidden[part])
                if needs_weight:
                    # Chunks are summed in fp32: a bf16 sum would lose what later chunks add.
                    grad_weight = _add_product(grad_weight, slope, hidden[part].to(weight.dtype))
        handed = grad_weight.to(weight.dtype) if needs_weight and not has_sum else None
        return None if grad_hidden is None else grad_hidden.to(hidden.dtype), handed, None, None


def _add_product(total: Tensor | None, slope: Tensor, hidden: Tensor) -> Tensor:
    if total is None:
        return _logits(slope.t(), hidden.t())
    if hidden.is_cuda and hidden.dtype != torch.float32:
        return torch.addmm(total, slope.t(), hidden, out_dtype=torch.float32, out=total)
    return total.add_(slope.t() @ hidden)
