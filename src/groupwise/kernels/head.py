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


def fp32_logits(hidden: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """[N, V] in fp32 from hidden states [N, D] and the head's weight [V, D], both bf16. No gradient."""
    return torch.mm(hidden, weight.t(), out_dtype=torch.float32, out=out)
