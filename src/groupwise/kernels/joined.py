"""Linear maps of one input as one: their weights side by side in memory, each still a parameter of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Adapter:
    """The LoRA adapters of the maps: each adds up · (down · x) × scaling."""

    down: Tensor
    """[maps × rank, inputs]"""
    up: Tensor
    """[outputs, rank]"""
    scaling: float


@dataclass(frozen=True, slots=True)
class Joined:
    weight: Tensor
    bias: Tensor | None
    sizes: list[int]
    """Outputs of each map."""
    adapter: Adapter | None
    parts: dict[str, list[Any]]
    """The parameters of each map: weight, bias, and of adapters down and up; those that there are."""


def lay_side_by_side(modules: Sequence[nn.Module]) -> None:
    """Projections of one input, adjacent in memory, so that whoever samples can run them as one product."""
    for parts in _parts(modules).values():
        if all(isinstance(part, nn.Parameter) and part.is_floating_point() for part in parts):
            joined = torch.cat([part.data for part in parts])
            for part, place in zip(parts, joined.split([len(part) for part in parts]), strict=True):
                part.data = place


def join(modules: Sequence[nn.Module]) -> Joined | None:
    """The maps as one, where they are bf16 matrices, with or without adapters, adjacent in memory; else None."""
    parts = _parts(modules)
    joined = {name: _joined(tensors) for name, tensors in parts.items()}
    if not parts or any(tensor is None for tensor in joined.values()):
        return None
    return _make(modules, parts, joined)


def join_copies(modules: Sequence[nn.Module]) -> Joined:
    """The same of maps that are `is_plain` and lie anywhere in memory: their weights are copied side by side."""
    parts = _parts(modules)
    return _make(modules, parts, {name: torch.cat([part.detach() for part in each]) for name, each in parts.items()})


def is_plain(modules: Sequence[Any]) -> bool:
    """Whether these are matrices, with or without adapters, and those without dropout."""
    dropouts = [one for module in modules for one in getattr(module, "lora_dropout", {}).values()]
    return bool(_parts(modules)) and not any(isinstance(one, nn.Dropout) and one.p for one in dropouts)


def _make(modules: Sequence[Any], parts: dict[str, list[Any]], joined: dict[str, Any]) -> Joined:
    adapter = None
    if "down" in joined:
        adapter = Adapter(joined["down"], joined["up"], _scaling(modules[0]))
    return Joined(joined["weight"], joined.get("bias"), [len(part) for part in parts["weight"]], adapter, parts)


def _parts(modules: Sequence[Any]) -> dict[str, list[Any]]:
    """Weights, biases and adapters of all the maps, by what they are; nothing where one of them is of another kind."""
    linears = [getattr(module, "base_layer", module) for module in modules]
    if any(type(linear) is not nn.Linear for linear in linears):
        return {}
    parts: dict[str, list[Any]] = {"weight": [linear.weight for linear in linears]}
    if any(linear.bias is not None for linear in linears):
        parts["bias"] = [linear.bias for linear in linears]
    # An adapter that is switched off leaves the matrix that it stands beside.
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
    """One adapter of two matrices, switched on, beside a base that it is not merged into."""
    if not hasattr(module, "lora_A") or module.disable_adapters or module.merged or len(module.active_adapters) != 1:
        return False
    name = module.active_adapters[0]
    if name not in module.lora_A or name in getattr(module, "lora_variant", {}):
        return False
    return module.lora_A[name].bias is None and module.lora_B[name].bias is None


def _scaling(module: Any) -> float:
    return float(module.scaling[module.active_adapters[0]])


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    if any(part is None or part.dtype != torch.bfloat16 or not part.is_contiguous() for part in parts):
        return None
    storage, end = parts[0].untyped_storage().data_ptr(), parts[0].data_ptr()
    for part in parts:
        if part.untyped_storage().data_ptr() != storage or part.data_ptr() != end:
            return None
        end += part.numel() * part.element_size()
    first = parts[0].detach()
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())
