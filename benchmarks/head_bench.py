"""Memory and time of logprobs from hidden states, forward and backward, against all logits at once. Needs a GPU.

    python benchmarks/head_bench.py

Counted is what is allocated on top of hidden states, head, and the head's gradient, which any way of doing it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from groupwise.algo.logprobs import head_logprobs, token_entropy, token_logprobs
from groupwise.kernels.output_head import TritonRows

TOKENS, SIZE = 8192, 1536
Logprobs = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def chunked(hidden: Tensor, weight: Tensor, ids: Tensor, grad_sum: Tensor | None) -> tuple[Tensor, Tensor]:
    return head_logprobs(hidden, weight, ids, 1.0, rows=TritonRows(), grad_sum_VD=grad_sum)


def whole(hidden: Tensor, weight: Tensor, ids: Tensor, grad_sum: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.t()
    return token_logprobs(logits, ids, 1.0), token_entropy(logits.detach(), 1.0)


def measure(logprobs: Logprobs, vocab: int) -> tuple[float, float]:
    """(GiB on top, seconds)."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, SIZE, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(vocab, SIZE, device="cuda") * 0.02).bfloat16().requires_grad_()
    weight.grad = torch.zeros_like(weight)
    grad_sum = torch.zeros(vocab, SIZE, device="cuda") if logprobs is chunked else None
    ids = torch.randint(vocab, (TOKENS,), device="cuda")
    seconds = peak = 0.0
    for _ in range(3):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        logprobs(hidden, weight, ids, grad_sum)[0].sum().backward()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    return peak, seconds


def main() -> None:
    torch.backends.cuda.preferred_blas_library("cublaslt")  # as in training
    print(f"{TOKENS:,} tokens, hidden size {SIZE}, {torch.cuda.get_device_name()}")
    print(f"{'vocabulary':>10} {'chunked':>20} {'all at once':>20}")
    for vocab in (32_000, 151_936):
        cells = [f"{gib:8.2f} GiB {1000 * s:5.1f} ms" for gib, s in (measure(chunked, vocab), measure(whole, vocab))]
        print(f"{vocab:>10,} {cells[0]:>20} {cells[1]:>20}")


if __name__ == "__main__":
    main()
