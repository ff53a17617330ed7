"""A plain copy of a sharded model for whoever samples: filled before rollouts are drawn, its memory handed back after.

Engines hold on to modules, and on a GPU to addresses (captured graphs). So a replica is made once and stays; what comes
and goes is the memory behind its weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from groupwise.distributed.shards import Sharded
from groupwise.models.placement import laid_out_alike


class ReplicaMemory(Protocol):
    """Tensors whose memory is handed back and taken again, at the same addresses where that matters."""

    @property
    def num_bytes(self) -> int: ...

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """With anything in it."""
        ...

    def release(self) -> None: ...

    def restore(self) -> None: ...


class HostMemory:
    """On the CPU nobody has captured an address."""

    def __init__(self) -> None:
        self._tensors: list[tuple[Tensor, int]] = []

    @property
    def num_bytes(self) -> int:
        """Held now."""
        return sum(tensor.untyped_storage().nbytes() for tensor, _ in self._tensors)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made = torch.empty(shape, dtype=dtype)
        self._tensors.append((made, made.untyped_storage().nbytes()))
        return made

    def release(self) -> None:
        for tensor, _ in self._tensors:
            tensor.untyped_storage().resize_(0)

    def restore(self) -> None:
        for tensor, num_bytes in self._tensors:
            tensor.untyped_storage().resize_(num_bytes)


class Replica:
    def __init__(self, skeleton: Any, shards: Sharded, memory: ReplicaMemory) -> None:
        self.model = with_other_weights(skeleton, _Arena(memory, skeleton).take)
        self._shards = shards
        self._memory = memory
        self.num_bytes = memory.num_bytes
        memory.release()

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Inside, the replica has the weights of the moment. All ranks enter, whether or not they have work."""
        self._memory.restore()
        try:
            self._shards.fill(self.model)
            yield
        finally:
            self._memory.release()


class _Arena:
    """One piece of memory for all weights of a model: a device hands memory out by megabytes, and norms are small."""

    def __init__(self, memory: ReplicaMemory, model: nn.Module) -> None:
        sizes = {(storage := weight.untyped_storage())._cdata: storage.nbytes() for weight in model.parameters()}
        self._bytes = memory.tensor((sum(map(_aligned, sizes.values())),), torch.uint8)
        self._taken = 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        start, size = self._taken, math.prod(shape) * dtype.itemsize
        self._taken += _aligned(size)
        return self._bytes[start : start + size].view(dtype).view(shape)


def _aligned(num_bytes: int) -> int:
    """As torch's own allocator does it on a GPU."""
    return -(-num_bytes // 512) * 512


def skeleton_of(model: Any) -> Any:
    """The modules and buffers of a model, without memory for its weights."""
    return with_other_weights(model, lambda shape, dtype: torch.empty(shape, dtype=dtype, device="meta"))


def with_other_weights(model: Any, allocate: Callable[[tuple[int, ...], torch.dtype], Tensor]) -> Any:
    """A copy with new weights, tied and adjacent where the model's are. Quantized weights, which nobody moves, stay."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    placed = laid_out_alike(weights, lambda numel, weight: allocate((numel,), weight.dtype))
    memo: dict[int, Any] = {id(weight): weight for weight in model.parameters()}
    memo |= {id(old): nn.Parameter(new, requires_grad=False) for old, new in zip(weights, placed, strict=True)}
    return copy.deepcopy(model, memo)
