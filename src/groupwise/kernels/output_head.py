"""The output head with logits in fp32. Products are summed in fp32 anyway, and bf16 rounds to 1/16 or worse.

Shapes: N rows, D hidden size, V vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.kernels.products import split_sums

VOCAB_TILE = 4096


def fp32_logits(hidden: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Return [N, V] in fp32 from hidden states [N, D] and the head's weight [V, D], both bf16. No gradient."""
    return torch.mm(hidden, weight.t(), out_dtype=torch.float32, out=out)


@triton.jit
def _measure(logits_ptr, id_ptr, logprob_ptr, total_ptr, entropy_ptr, inverse_temperature, vocab, V: tl.constexpr):
    """Measure one row: log Σ exp x, and Σ p x for the entropy, with a running peak."""
    row = tl.program_id(0).to(tl.int64)
    v = tl.arange(0, V)
    peak = tl.full((V,), -1e30, tl.float32)
    total = tl.zeros((V,), tl.float32)
    moment = tl.zeros((V,), tl.float32)
    # Each lane has its own peak; they are joined once at the end.
    for start in range(0, vocab, V):
        x = tl.load(logits_ptr + row * vocab + start + v, mask=start + v < vocab, other=-float("inf"))
        x = x * inverse_temperature
        new_peak = tl.maximum(peak, x)
        shrink, weight = tl.exp(peak - new_peak), tl.exp(x - new_peak)
        total = total * shrink + weight
        moment = moment * shrink + tl.where(weight > 0, weight * x, 0.0)
        peak = new_peak
    top = tl.max(peak, 0)
    shrink = tl.exp(peak - top)
    all_total = tl.sum(total * shrink, 0)
    log_total = top + tl.log(all_total)
    chosen = tl.load(logits_ptr + row * vocab + tl.load(id_ptr + row)) * inverse_temperature
    tl.store(logprob_ptr + row, chosen - log_total)
    tl.store(total_ptr + row, log_total)
    tl.store(entropy_ptr + row, log_total - tl.sum(moment * shrink, 0) / all_total)


@triton.jit
def _slope(logits_ptr, id_ptr, total_ptr, grad_ptr, out_ptr, inverse_temperature, vocab, V: tl.constexpr):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = tile * V + tl.arange(0, V)
    mask = v < vocab
    x = tl.load(logits_ptr + row * vocab + v, mask=mask, other=-float("inf")) * inverse_temperature
    p = tl.exp(x - tl.load(total_ptr + row))
    scale = tl.load(grad_ptr + row) * inverse_temperature
    slope = tl.where(v == tl.load(id_ptr + row), scale - scale * p, -scale * p)
    tl.store(out_ptr + row * vocab + v, slope.to(out_ptr.dtype.element_ty), mask=mask)


class TritonRows:
    """`algo.logprobs.Rows` with one pass over the logits per method."""

    def measure(self, logits: Tensor, token_ids: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        rows, vocab = logits.shape
        logprobs, totals, entropies = torch.empty(3, rows, device=logits.device).unbind()
        _measure[(rows,)](
            logits, token_ids, logprobs, totals, entropies, 1 / temperature, vocab, V=VOCAB_TILE, num_warps=8
        )
        return logprobs, totals, entropies

    def slope(
        self, logits: Tensor, token_ids: Tensor, totals: Tensor, grad: Tensor, temperature: float, dtype: torch.dtype
    ) -> Tensor:
        rows, vocab = logits.shape
        out = torch.empty(rows, vocab, device=logits.device, dtype=dtype)
        _slope[(rows, triton.cdiv(vocab, VOCAB_TILE))](
            logits, token_ids, totals, grad.contiguous(), out, 1 / temperature, vocab, V=VOCAB_TILE, num_warps=8
        )
        return out

    def split_sums(self) -> AbstractContextManager[None]:
        return split_sums()
