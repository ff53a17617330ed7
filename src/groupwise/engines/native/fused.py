"""Faster forms of what stands between the matrix products: norms, rotary embedding, gated activation.

`fused(model)` swaps them in for a while. A form is used only where it gives what the model's own code gives on a random
input, bit for bit or within one unit of the last place: a model that we do not know keeps its own code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.engines.native import kernels


@contextmanager
def fused(model: Any) -> Iterator[None]:
    """Inside, a forward pass with one token per row is faster. For inference only: there is no backward pass."""
    swapped: list[tuple[Any, str, Any]] = []
    try:
        for module in model.modules():
            forward = _fast_norm(module) or _fast_mlp(module)
            if forward is not None:
                swapped.append((module, "forward", None))
                module.forward = forward
        for place in _rotary_places(model):
            swapped.append((place, "apply_rotary_pos_emb", place.apply_rotary_pos_emb))
            place.apply_rotary_pos_emb = partial(_fast_rotary, place.apply_rotary_pos_emb)
        yield
    finally:
        for holder, name, original in swapped:
            if original is None:
                delattr(holder, name)
            else:
                setattr(holder, name, original)


_norm_forms: dict[type, bool | None] = {}
"""Class → whether its weight is an offset from 1; None where our kernel does not do what it does."""
_mlp_forms: dict[type, bool] = {}


def _fast_norm(module: Any) -> Callable[[Tensor], Tensor] | None:
    cls = type(module)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if not cls.__name__.endswith("RMSNorm") or eps is None or weight is None or weight.dim() != 1:
        return None
    if cls not in _norm_forms:
        x = torch.randn(4, weight.shape[0], device=weight.device, dtype=weight.dtype)
        _norm_forms[cls] = next(
            (form for form in (False, True) if _is_same(kernels.rms_norm(x, weight, eps, form), module(x))), None
        )
    one_plus = _norm_forms[cls]
    return None if one_plus is None else lambda x: kernels.rms_norm(x, weight, eps, one_plus)


def _fast_mlp(module: Any) -> Callable[[Tensor], Tensor] | None:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = getattr(module, "act_fn", None)
    if None in parts or not (isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"):
        return None
    gate, up, down = parts

    def forward(x: Tensor) -> Tensor:
        result: Tensor = down(kernels.silu_mul(gate(x), up(x)))  # type: ignore[misc]
        return result

    cls = type(module)
    if cls not in _mlp_forms:
        weight = next(gate.parameters())  # type: ignore[union-attr]
        size = getattr(gate, "in_features", weight.shape[-1])
        x = torch.randn(4, 1, size, device=weight.device, dtype=_float_type(module))
        _mlp_forms[cls] = _is_same(forward(x), module(x))
    return forward if _mlp_forms[cls] else None


def _rotary_places(model: Any) -> list[Any]:
    names = {type(module).__module__ for module in model.modules() if hasattr(module, "layer_idx")}
    return [sys.modules[name] for name in sorted(names) if hasattr(sys.modules[name], "apply_rotary_pos_emb")]


def _fast_rotary(
    original: Callable[..., tuple[Tensor, Tensor]],
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *rest: Any,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    is_one_token = q.dim() == 4 and q.shape[2] == 1 and q.stride(3) == k.stride(3) == 1
    if rest or named or not is_one_token or cos.shape != (q.shape[0], 1, q.shape[3]) or cos.dtype != q.dtype:
        return original(q, k, cos, sin, *rest, **named)
    return kernels.rotate(q, k, cos, sin)


def _float_type(module: Any) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.dtype.is_floating_point), torch.bfloat16)


def _is_same(ours: Tensor, theirs: Tensor) -> bool:
    return ours.dtype == theirs.dtype and torch.allclose(ours.float(), theirs.float(), rtol=8e-3, atol=1e-6)
