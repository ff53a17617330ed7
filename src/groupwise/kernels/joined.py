"""Linear layers that share an input, joined into one product: adjacent in memory, each still its own parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_DTYPES = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Adapter:
    """The LoRA adapters of the layers: each adds up · (down · x) × scaling."""

    down: Tensor
    """[layers × rank, inputs]"""
    up: Tensor
    """[outputs, rank]"""
    scaling: float


@dataclass(frozen=True, slots=True)
class Joined:
    weight: Tensor
    bias: Tensor | None
    sizes: list[int]
    """Outputs of each layer."""
    adapter: Adapter | None
    parts: dict[str, list[Any]]
    """The parameters of each layer by kind: weight, and where they exist bias, down and up."""


def lay_side_by_side(modules: Sequence[nn.Module]) -> None:
    """Make projections of one input adjacent in memory, so they can run as one product."""
    for parts in _parts(modules).values():
        if all(isinstance(part, nn.Parameter) and part.is_floating_point() for part in parts):
            joined = torch.cat([part.data for part in parts])
            for part, place in zip(parts, joined.split([len(part) for part in parts]), strict=True):
                part.data = place


def join(modules: Sequence[nn.Module]) -> Joined | None:
    """Join matrices in bf16 or fp32, with or without adapters, that are adjacent in memory; None if they are not."""
    parts = _parts(modules)
    joined = {name: _joined(tensors) for name, tensors in parts.items()}
    if not parts or any(tensor is None for tensor in joined.values()):
        return None
    return _make(modules, parts, joined)


def join_copies(modules: Sequence[nn.Module]) -> Joined:
    """Join layers that are `is_plain` and anywhere in memory, by copying their weights."""
    parts = _parts(modules)
    return _make(modules, parts, {name: torch.cat([part.detach() for part in each]) for name, each in parts.items()})


def is_plain(modules: Sequence[Any]) -> bool:
    """Whether all layers are matrices, with or without adapters, and no adapter has dropout."""
    dropouts = [one for module in modules for one in getattr(module, "lora_dropout", {}).values()]
    return bool(_parts(modules)) and not any(isinstance(one, nn.Dropout) and one.p for one in dropouts)


def _make(modules: Sequence[Any], parts: dict[str, list[Any]], joined: dict[str, Any]) -> Joined:
    adapter = None
    if "down" in joined:
        adapter = Adapter(joined["down"], joined["up"], _scaling(modules[0]))
    return Joined(joined["weight"], joined.get("bias"), [len(part) for part in parts["weight"]], adapter, parts)


def _parts(modules: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the weights, biases and adapters of all layers by kind; empty if a layer is of another type."""
    linears = [getattr(module, "base_layer", module) for module in modules]
    if any(type(linear) is not nn.Linear for linear in linears):
        return {}
    parts: dict[str, list[Any]] = {"weight": [linear.weight for linear in linears]}
    if any(linear.bias is not None for linear in linears):
        parts["bias"] = [linear.bias for linear in linears]
    # A disabled adapter leaves only the matrix.
    if any(linear is not module and not _is_off(module) for linear, module in zip(linears, modules, strict=True)):
        if not all(_has_plain_adapter(module) for module in modules) or len({_scaling(m) for m in modules}) > 1:
            return {}
        names = [module.active_adapters[0] for module in modules]
        pairs = list(zip(modules, names, strict=True))
        parts["down"] = [module.lora_A[name].weight for module, name in pairs]
        parts["up"] = [module.lora_B[name].weight for module, name in pairs]
        if len({part.shape for part in parts["down"]}) > 1:
            return {}
    return parts


def _is_off(module: Any) -> bool:
    return getattr(module, "disable_adapters", False) is True and not module.merged


def _has_plain_adapter(module: Any) -> bool:
    """Whether the module has exactly one enabled, unmerged adapter of two matrices."""
    if not hasattr(module, "lora_A") or module.disable_adapters or module.merged or len(module.active_adapters) != 1:
        return False
    name = module.active_adapters[0]
    if name not in module.lora_A or name in getattr(module, "lora_variant", {}):
        return False
    return module.lora_A[name].bias is None and module.lora_B[name].bias is None


def _scaling(module: Any) -> float:
    return float(module.scaling[module.active_adapters[0]])


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    if any(part is None or part.dtype not in _DTYPES or not part.is_contiguous() for part in parts):
        return None
    storage, end = parts[0].untyped_storage().data_ptr(), parts[0].data_ptr()
    for part in parts:
        if part.untyped_storage().data_ptr() != storage or part.data_ptr() != end:
            return None
        end += part.numel() * part.element_size()
    first = parts[0].detach()
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())
