"""The gradient of entropies on a GPU: the head's own backward pass against autograd through all logits."""

from __future__ import annotations

import pytest
import torch

from groupwise.algo.logprobs import head_logprobs, token_measures

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_gradient_of_entropies_is_that_of_all_logits(temperature: float) -> None:
    from groupwise.kernels.output_head import TritonRows

    torch.manual_seed(0)
    hidden = torch.randn(700, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = (0.3 * torch.randn(5000, 64, device="cuda", dtype=torch.bfloat16)).requires_grad_()
    ids, grads = torch.randint(5000, (700,), device="cuda"), torch.randn(2, 700, device="cuda").unbind()
    found = head_logprobs(hidden, weight, ids, temperature, 333, TritonRows())
    expected = token_measures(hidden.float() @ weight.float().t(), ids, temperature)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    for used in (slice(0, 2), slice(1, 2)):
        ours_all, theirs_all = (
            torch.autograd.grad(values[used], (hidden, weight), grads[used], retain_graph=True)
            for values in (found, expected)
        )
        for ours, theirs in zip(ours_all, theirs_all, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02 * float(theirs.abs().max()))
