"""Frozen linear layers in 4 or 8 bit, for adapters to be trained beside them (QLoRA, https://arxiv.org/abs/2305.14314).

    4bit    NF4 in blocks of 64, whose scales are in 8 bit in turn ("double quantization"); packed by bitsandbytes
    8bit    int8 with one scale per output, as the weights of LLM.int8 (https://arxiv.org/abs/2208.07339)

Contract: a product makes the dense weight, multiplies as any linear layer does and lets go of it; the backward pass
makes it again. So whoever samples and whoever learns compute the same, a CUDA graph can hold it, and `dense` is exactly
what the layer computes with.

The layers of bitsandbytes do not keep that. Its 4-bit product is another kernel for few rows, and on some CPUs one in
bf16. Its 8-bit product rounds the inputs to 8 bit as well, and has to look at them for outliers, which a graph cannot
wait for and large models cannot do without.

Nothing here trains or saves a quantized weight: checkpoints hold adapters, and an export holds dense weights.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from groupwise.config.build import ConfigError

Quantization = Literal["4bit", "8bit"]


class QuantizedLinear(nn.Linear):
    """A linear layer to peft and to transformers; but `weight` is packed, and nothing in it is trained."""

    def __init__(self, linear: nn.Linear, kind: Quantization, device: torch.device, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would make a dense weight
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.kind = kind
        self.dtype = dtype
        """Of the inputs, the outputs and the dense weight."""
        self.training = linear.training
        weight = linear.weight.detach().to(device=device, dtype=dtype)
        packed, scales = _pack_nf4(weight) if kind == "4bit" else _pack_int8(weight)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.scales: Any = scales
        """No buffer: it stays in float32 when the model is moved to another dtype."""
        bias = None if linear.bias is None else linear.bias.detach().to(device=device, dtype=dtype)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))

    def dense(self) -> Tensor:
        """[out_features, in_features]: the weight that this layer computes with."""
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
    """x · Wᵀ + b. Nothing is kept for the backward pass: the gradient of the input needs W alone."""

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
    """Put quantized layers on `device` in place of all linear layers of a model but its head.

    One after the other, so that no more than one dense layer is on the device at a time. All else stays where it is.
    """
    if kind == "4bit":
        _check_bitsandbytes()
    head = model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if type(module) is nn.Linear and module is not head]
    if not names:
        raise ConfigError(
            f"model.quantization = {kind!r}: {type(model).__name__} has no linear layers to quantize; leave it out"
        )
    for name in names:
        model.set_submodule(name, QuantizedLinear(model.get_submodule(name), kind, device, dtype))


def _check_bitsandbytes() -> None:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "model.quantization = '4bit': needs bitsandbytes, which is not installed; pip install groupwise[quantized] "
            "(model.quantization = '8bit' needs nothing)"
        ) from error


def _pack_nf4(weight: Tensor) -> tuple[Tensor, Any]:
    from bitsandbytes.functional import quantize_4bit

    # Flat, since blocks run across rows: in a matrix whose rows end inside a block, the AVX-512 code of 0.50 takes the
    # wrong scales when it unpacks.
    packed, scales = quantize_4bit(weight.flatten(), quant_type="nf4", compress_statistics=True)
    return packed, scales


def _pack_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(dim=1).float() / 127
    return torch.round(weight / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).to(torch.int8), scales


def _with_enough_rows(rows: Tensor) -> Tensor:
    """With zeros below, where the library would be slow on few of them: see kernels/products.py."""
    if not rows.is_cuda or rows.dtype != torch.bfloat16:
        return rows
    from groupwise.kernels.products import LONG_SUM, MIN_ROWS

    missing = MIN_ROWS - rows.shape[0] if rows.shape[1] >= LONG_SUM else 0
    return nn.functional.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
