"""Frozen linear layers in 4 or 8 bit, to train adapters beside them (QLoRA, https://arxiv.org/abs/2305.14314).

    4bit    NF4 in blocks of 64, whose scales are in 8 bit themselves ("double quantization"); packed by bitsandbytes
    8bit    int8 with one scale per output, like the weights of LLM.int8 (https://arxiv.org/abs/2208.07339)

Contract: a product makes the dense weight, multiplies like any linear layer and frees the dense weight. The backward
pass makes it again. So sampling and training compute the same, CUDA graphs work, and `dense` is exactly the weight that
the layer computes with.

The layers of bitsandbytes do not guarantee that. Their 4-bit product uses another kernel for few rows, and a bf16 one
on some CPUs. Their 8-bit product also rounds the inputs to 8 bit and searches them for outliers, which a CUDA graph
cannot do.

Quantized weights are never trained or saved: checkpoints contain adapters, and an export contains dense weights.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from groupwise.config.build import ConfigError

Quantization = Literal["4bit", "8bit"]


class QuantizedLinear(nn.Linear):
    """A linear layer as peft and transformers see it, whose `weight` is packed and frozen."""

    def __init__(self, linear: nn.Linear, kind: Quantization, device: torch.device, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would make a dense weight
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.kind = kind
        self.dtype = dtype
        """Of inputs, outputs and the dense weight."""
        self.training = linear.training
        weight = linear.weight.detach().to(device=device, dtype=dtype)
        packed, scales = _pack_nf4(weight) if kind == "4bit" else _pack_int8(weight)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.scales: Any = scales
        """Not a buffer, so it stays in float32 when the model is moved to another dtype."""
        bias = None if linear.bias is None else linear.bias.detach().to(device=device, dtype=dtype)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))

    def dense(self) -> Tensor:
        """Return [out_features, in_features]: the weight that this layer computes with."""
        if self.kind == "8bit":
            # In one pass: multiplied in float32 and rounded once.
            return torch.mul(self.weight, self.scales[:, None], out=torch.empty_like(self.weight, dtype=self.dtype))
        from bitsandbytes.functional import dequantize_4bit

        flat: Tensor = dequantize_4bit(self.weight, self.scales)
        return flat.view(self.out_features, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Product.apply(x, self)
        return result

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.kind}"


class _Product(torch.autograd.Function):
    """x · Wᵀ + b. Nothing is saved for the backward pass: the gradient of the input only needs W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        rows = x.reshape(-1, layer.in_features)
        result = nn.functional.linear(_with_enough_rows(rows), layer.dense(), layer.bias)
        return result[: len(rows)].view(*x.shape[:-1], layer.out_features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.dense(), None


def quantize(model: Any, kind: Quantization, device: torch.device, dtype: torch.dtype) -> None:
    """Replace all linear layers of a model except its head with quantized ones on `device`.

    Layers are replaced one by one, so at most one dense layer is on the device at a time. Nothing else is moved.
    """
    head = model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if type(module) is nn.Linear and module is not head]
    if not names:
        raise ConfigError(
            f"model.quantization = {kind!r}: {type(model).__name__} has no linear layers to quantize; remove the key"
        )
    for name in names:
        model.set_submodule(name, QuantizedLinear(model.get_submodule(name), kind, device, dtype))


def _pack_nf4(weight: Tensor) -> tuple[Tensor, Any]:
    try:
        from bitsandbytes.functional import quantize_4bit
    except ImportError as error:
        raise ConfigError(
            "model.quantization = '4bit': needs bitsandbytes, which is not installed; pip install groupwise[quantized] "
            "(model.quantization = '8bit' needs no package)"
        ) from error
    # Flat, because blocks cross rows: if a row ends inside a block, the AVX-512 code of bitsandbytes 0.50 unpacks with
    # the wrong scales.
    packed, scales = quantize_4bit(weight.flatten(), quant_type="nf4", compress_statistics=True)
    return packed, scales


def _pack_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(dim=1).float() / 127
    return torch.round(weight / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).to(torch.int8), scales


def _with_enough_rows(rows: Tensor) -> Tensor:
    """Pad rows with zeros where the library would be slow on few of them (see kernels/products.py)."""
    if not rows.is_cuda or rows.dtype != torch.bfloat16:
        return rows
    from groupwise.kernels.products import LONG_SUM, MIN_ROWS

    missing = MIN_ROWS - rows.shape[0] if rows.shape[1] >= LONG_SUM else 0
    return nn.functional.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
