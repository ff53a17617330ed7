"""A sharded model: each rank holds a slice of every weight, and a layer is whole only while it computes.

FSDP2 (`torch.distributed.fsdp.fully_shard`) does the work. A weight of n rows is split into slices of ⌈n / ranks⌉ rows,
the last ones shorter or empty. Gradients are slices too, summed over ranks and not averaged: the loss is divided by one
denominator for all of them. The optimizer computes with slices as plain tensors, from `local`.

A world of one uses `Unsharded`, which leaves the model and all tensors unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from groupwise.distributed.world import World, together

T = TypeVar("T")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's slice of a sharded tensor, in the same memory; any other tensor unchanged."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


class Unsharded:
    """A model that is not sharded. Its docstrings describe the interface, which `Sharded` shares."""

    can_forget = True
    """Whether another pass can run after an interrupted one."""

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a forward pass through parts of the model. Inside, embedding, norm and head are whole."""
        return function(*arguments)

    def run_own(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a pass that calls the model's own forward, once."""
        return function(*arguments)

    def whole(self, name: str, part: Tensor) -> Tensor:
        """Gather a tensor that is split like weight `name` on rank 0, in host memory. Other ranks get nothing.

        All ranks call this in the same order.
        """
        return part

    def part(self, name: str, whole: Tensor) -> Tensor:
        """Return this rank's slice of a whole tensor that is split like weight `name`."""
        return whole

    def forget(self) -> None:
        """Reset after an interrupted pass, on all ranks, so the next pass is unaffected."""


class Sharded:
    can_forget = hasattr(FSDPModule, "reset_iter_state")
    """FSDP of torch 2.11 would treat the next pass as the rest of the interrupted one."""

    def __init__(self, model: nn.Module, layers: Iterable[nn.Module], world: World, device: torch.device) -> None:
        """Shard the model in place. Weights that are not floating-point (quantized) stay whole."""
        self._world = world
        self._ignored = {weight for weight in model.parameters() if not weight.is_floating_point()}
        mesh = init_device_mesh(device.type, (world.size,))
        for module in (*layers, model):
            sharded = fully_shard(
                module,
                mesh=mesh,
                mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32),
                ignored_params=self._ignored,
            )
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        self._model: Any = model
        # FSDP gathers weights around a module's forward, and our passes are not the root's forward.
        model.run_whole = MethodType(_call, model)  # type: ignore[assignment]
        register_fsdp_forward_method(model, "run_whole")
        self._num_rows = {
            name: weight.shape[0] for name, weight in model.named_parameters() if isinstance(weight, DTensor)
        }

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return self.run_own(self._model.run_whole, function, *arguments)

    def run_own(self, function: Callable[..., T], *arguments: Any) -> T:
        with together(is_bare=False):
            result = function(*arguments)
            if not torch.is_grad_enabled():
                # Without a backward pass, the root's gathered weights would stay and miss the next update.
                self._model.reshard()
        return result

    def whole(self, name: str, part: Tensor) -> Tensor:
        if name not in self._num_rows or part.dim() == 0:  # not split: a step count, a quantized weight
            return part
        num_rows = self._num_rows[name]
        # All messages have the same size: shorter slices are padded.
        filled = part.new_zeros(-(-num_rows // self._world.size), *part.shape[1:])
        filled[: len(part)] = part
        is_first = self._world.rank == 0
        slices = [torch.empty_like(filled) for _ in range(self._world.size)] if is_first else None
        with together():
            torch.distributed.gather(filled, slices, dst=0)
        return torch.cat(slices)[:num_rows].cpu() if slices else torch.empty(0)

    def part(self, name: str, whole: Tensor) -> Tensor:
        if name not in self._num_rows or whole.dim() == 0:
            return whole
        size = -(-self._num_rows[name] // self._world.size)
        return whole[size * self._world.rank : size * (self._world.rank + 1)]

    def forget(self) -> None:
        if self.can_forget:
            self._model.reset_iter_state()
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @torch.no_grad()
    def fill(self, replica: nn.Module) -> None:
        """Copy all weights, whole, into a plain model of the same form, layer by layer, on all ranks."""
        places = dict(replica.named_parameters())
        units = [(path, module) for path, module in self._model.named_modules() if isinstance(module, FSDPModule)]
        path: str
        module: Any
        for path, module in units:
            with together(is_bare=False):
                module.unshard()
            for name, weight in module.named_parameters(prefix=path):
                # Weights of other modules are still sharded; ignored ones are shared with the replica.
                if not isinstance(weight, DTensor) and places[name] is not weight:
                    places[name].copy_(weight)
            module.reshard()


def _call(self: nn.Module, function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)
