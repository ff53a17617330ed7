"""The output head with logits in fp32: the products are summed in fp32 anyway, and bf16 rounds to 1/16 or worse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def has_plain_head(model: Any) -> bool:
    """Whether the head is one bf16 matrix and nothing else: no bias, adapter, quantization or soft cap."""
    head = model.get_output_embeddings()
    config = model.config.get_text_config()
    is_scaled = any(
        getattr(config, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
    )
    is_matrix = type(head) is nn.Linear and head.bias is None and head.weight.dtype == torch.bfloat16
    return is_matrix and head.weight.is_cuda and not is_scaled


class _Fp32Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        grad = grad.to(hidden.dtype)
        grad_hidden = grad @ weight if ctx.needs_input_grad[0] else None
        return grad_hidden, grad.t() @ hidden if ctx.needs_input_grad[1] else None


def fp32_logits(hidden: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """[N, V] in fp32 from hidden states [N, D] and the head's weight [V, D], both bf16. Into `out` without gradient."""
    if out is not None:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32, out=out)
    logits: Tensor = _Fp32Logits.apply(hidden, weight)
    return logits
