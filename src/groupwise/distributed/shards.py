"""A model in shards: each rank holds a slice of every weight, and a layer is whole only while it computes.

FSDP2 (`torch.distributed.fsdp.fully_shard`) does the work. A weight of n rows lies in slices of ⌈n / ranks⌉ rows, the
last ones shorter or empty. Gradients come back as slices too, summed over ranks and not averaged: the loss is divided
by one denominator for all of them. Whoever computes with slices (the optimizer) takes plain tensors, by `local`.

A world of one has `Unsharded`, which leaves the model and all tensors as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from groupwise.distributed.world import World, together

T = TypeVar("T")


def local(tensor: Tensor) -> Tensor:
    """This rank's slice of a sharded tensor, in the same memory; any other tensor itself."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


class Shards(Protocol):
    can_forget: bool
    """Whether a pass may follow one that was broken off."""

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """A forward pass through parts of the model. Inside, what is not in a layer is whole: embedding, norm, head."""
        ...

    def run_own(self, function: Callable[..., T], *arguments: Any) -> T:
        """A pass in which the model's own forward is called, once."""
        ...

    def whole(self, name: str, part: Tensor) -> Tensor:
        """From the slices of a tensor that is split like weight `name`. On rank 0 in host memory; others get nothing.

        All ranks call it, in one order.
        """
        ...

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's slice of a whole tensor, likewise."""
        ...

    def forget(self) -> None:
        """After a pass that was broken off, on all ranks: the next one starts as if it had not been."""
        ...


class Unsharded:
    can_forget = True

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    def run_own(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    def whole(self, name: str, part: Tensor) -> Tensor:
        return part

    def part(self, name: str, whole: Tensor) -> Tensor:
        return whole

    def forget(self) -> None:
        pass


class Sharded:
    can_forget = hasattr(FSDPModule, "reset_iter_state")
    """FSDP of torch 2.11 would take the next pass for the rest of the one that was broken off."""

    def __init__(self, model: nn.Module, layers: Iterable[nn.Module], world: World, device: torch.device) -> None:
        """Shards the model in place. Weights that are no floating-point numbers (quantized) stay whole."""
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
        # FSDP makes weights whole around the forward of a module, and our passes are not the forward of the root.
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
                # A backward pass would let go of the root's weights. Kept, they would miss the next update.
                self._model.reshard()
        return result

    def whole(self, name: str, part: Tensor) -> Tensor:
        if name not in self._num_rows or part.dim() == 0:  # not a slice: a step count, a quantized weight
            return part
        num_rows = self._num_rows[name]
        # Messages are of one size: shorter slices are filled up.
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
        """Copy all weights, whole, into a plain model of the same form: one layer after the other, on all ranks."""
        places = dict(replica.named_parameters())
        units = [(path, module) for path, module in self._model.named_modules() if isinstance(module, FSDPModule)]
        path: str
        module: Any
        for path, module in units:
            with together(is_bare=False):
                module.unshard()
            for name, weight in module.named_parameters(prefix=path):
                # Those of other modules are still in slices; ignored ones are shared with the replica.
                if not isinstance(weight, DTensor) and places[name] is not weight:
                    places[name].copy_(weight)
            module.reshard()


def _call(self: nn.Module, function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)
