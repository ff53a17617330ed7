"""A plain copy of a sharded model to sample from: filled before sampling, its memory freed afterwards.

Engines keep references to modules and, on a GPU, addresses (in captured graphs). So a replica is made once and kept;
only the memory behind its weights is freed and allocated again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.distributed.shards import Sharded
from groupwise.models.device_memory import ReleasableMemory
from groupwise.models.placement import laid_out_alike


class HostMemory:
    """The CPU's counterpart of ReleasableMemory. Addresses may change."""

    def __init__(self) -> None:
        self._tensors: list[tuple[Tensor, int]] = []

    @property
    def num_bytes(self) -> int:
        """Memory that is allocated now."""
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
    def __init__(self, skeleton: Any, shards: Sharded, device: torch.device) -> None:
        self._shards = shards
        self._memory = ReleasableMemory(device) if device.type == "cuda" else HostMemory()
        self.model = with_other_weights(skeleton, _Arena(self._memory, skeleton).take)
        self.num_bytes = self._memory.num_bytes
        self._memory.release()

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Fill the replica with the current weights for the block. All ranks must enter, with or without work."""
        self._memory.restore()
        try:
            self._shards.fill(self.model)
            yield
        finally:
            self._memory.release()


class _Arena:
    """One allocation for all weights of a model, because devices allocate by megabytes and norms are small."""

    def __init__(self, memory: HostMemory | ReleasableMemory, model: nn.Module) -> None:
        sizes = {(storage := weight.untyped_storage())._cdata: storage.nbytes() for weight in model.parameters()}
        self._bytes = memory.tensor((sum(map(_aligned, sizes.values())),), torch.uint8)
        self._taken = 0

    def take(self, numel: int, like: Tensor) -> Tensor:
        start, size = self._taken, numel * like.element_size()
        self._taken += _aligned(size)
        return self._bytes[start : start + size].view(like.dtype)


def _aligned(num_bytes: int) -> int:
    """Round up to a multiple of 512 bytes, like torch's allocator on a GPU."""
    return -(-num_bytes // 512) * 512


def skeleton_of(model: Any) -> Any:
    """Return a copy of a model without memory for its weights."""
    return with_other_weights(model, lambda numel, like: torch.empty(numel, dtype=like.dtype, device="meta"))


def with_other_weights(model: Any, allocate: Callable[[int, Tensor], Tensor]) -> Any:
    """Return a copy with new weights, tied and adjacent like the model's. Quantized weights are shared."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    memo: dict[int, Any] = {id(weight): weight for weight in model.parameters()}
    for old, new in zip(weights, laid_out_alike(weights, allocate), strict=True):
        memo[id(old)] = nn.Parameter(new, requires_grad=False)
    return copy.deepcopy(model, memo)
