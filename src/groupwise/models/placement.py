"""Placement of tensors: memory layouts, limits of GPU memory, copies in host memory, swapped contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from groupwise.config import ConfigError
from groupwise.models.memory_limits import EXCHANGE_BYTES


def laid_out_alike(tensors: Iterable[Tensor], allocate: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
    """Return a tensor of the same shape for each. Tensors that share a storage share one again, in the same layout.

    `allocate(elements, one of the tensors)` makes a storage.
    """
    buffers: dict[int, Tensor] = {}
    made = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = storage._cdata  # an address would not do: memory on the meta device has none
        if key not in buffers:
            buffers[key] = allocate(storage.nbytes() // tensor.element_size(), tensor)
        buffer = buffers[key]
        offset = buffer.storage_offset() + tensor.storage_offset()
        made.append(buffer.as_strided(tensor.shape, tensor.stride(), offset))
    return made


def device_bytes(device: torch.device) -> int:
    """Return how much of a GPU's memory this process may use."""
    share = torch.cuda.get_per_process_memory_fraction(device)
    return int(share * torch.cuda.get_device_properties(device).total_memory)


def limit_memory(gib: float) -> None:
    """Limit the GPU memory of this process from now on, so that others can use the rest."""
    if not torch.cuda.is_available():
        raise ConfigError(f"--memory-gib {gib:g}: there is no GPU")
    device = torch.device("cuda", torch.cuda.current_device())
    total = torch.cuda.get_device_properties(device).total_memory / 2**30
    if not 0 < gib <= total:
        raise ConfigError(f"--memory-gib {gib:g}: the GPU has {total:.1f} GiB; choose at most that")
    torch.cuda.set_per_process_memory_fraction(gib / total, device)


def memory_limit_gib(device: torch.device) -> float | None:
    """Return the limit that `limit_memory` set; None without one."""
    share = torch.cuda.get_per_process_memory_fraction(device) if device.type == "cuda" else 1.0
    if share >= 1:
        return None
    return round(share * torch.cuda.get_device_properties(device).total_memory / 2**30, 6)


def to_host(tensor: Tensor) -> Tensor:
    """Return a copy in pinned host memory, which the GPU can read and write directly."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available())
    return copy.copy_(tensor)


def beside(tensor: Tensor, other: Tensor) -> Tensor:
    """Return the tensor on the other one's device, copied only if necessary."""
    if tensor.device == other.device:
        return tensor
    return to_host(tensor) if other.device.type == "cpu" else tensor.to(other.device)


@torch.no_grad()
def exchange(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    """Swap the contents of tensors of the same name, on any devices."""
    for names in bundles(some):
        ones, their = [some[name] for name in names], [others[name] for name in names]
        aside = [torch.empty_like(one) for one in ones]
        for targets, sources in ((aside, ones), (ones, their), (their, aside)):
            torch._foreach_copy_(targets, sources)


def bundles(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Yield names of tensors that together have at most EXCHANGE_BYTES; at least one name each."""
    bundle: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if bundle and size + tensor.nbytes > EXCHANGE_BYTES:
            yield bundle
            bundle, size = [], 0
        bundle.append(name)
        size += tensor.nbytes
    if bundle:
        yield bundle
