"""Where tensors lie: beside each other as others do, in host memory, in each other's place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from groupwise.config import ConfigError
from groupwise.models.memory_limits import EXCHANGE_BYTES


def laid_out_alike(tensors: Iterable[Tensor], allocate: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
    """A tensor for each, of its shape; those that lie in one memory again in one, in the same order and distance.

    `allocate(elements, one of the tensors)` makes that memory.
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
    """What this process may have of a GPU's memory."""
    share = torch.cuda.get_per_process_memory_fraction(device)
    return int(share * torch.cuda.get_device_properties(device).total_memory)


def limit_memory(gib: float) -> None:
    """From here on this process takes no more of its GPU than that; the rest can be another's."""
    if not torch.cuda.is_available():
        raise ConfigError(f"--memory-gib {gib:g}: there is no GPU here whose memory could be limited")
    device = torch.device("cuda", torch.cuda.current_device())
    total = torch.cuda.get_device_properties(device).total_memory / 2**30
    if not 0 < gib <= total:
        raise ConfigError(f"--memory-gib {gib:g}: the GPU has {total:.1f} GiB; choose something up to that")
    torch.cuda.set_per_process_memory_fraction(gib / total, device)


def memory_limit_gib(device: torch.device) -> float | None:
    """What `limit_memory` left this process; None where it may have all."""
    share = torch.cuda.get_per_process_memory_fraction(device) if device.type == "cuda" else 1.0
    if share >= 1:
        return None
    return round(share * torch.cuda.get_device_properties(device).total_memory / 2**30, 6)


def to_host(tensor: Tensor) -> Tensor:
    """A copy in host memory, which the GPU can read and write without a detour."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available())
    return copy.copy_(tensor)


def beside(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor where the other one is; a copy only if it is elsewhere."""
    if tensor.device == other.device:
        return tensor
    return to_host(tensor) if other.device.type == "cpu" else tensor.to(other.device)


@torch.no_grad()
def exchange(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    """Let tensors of the same name change their contents, wherever they lie."""
    for names in bundles(some):
        ones, their = [some[name] for name in names], [others[name] for name in names]
        aside = [torch.empty_like(one) for one in ones]
        for targets, sources in ((aside, ones), (ones, their), (their, aside)):
            torch._foreach_copy_(targets, sources)


def bundles(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Names, some megabytes of tensors at a time: few launches, little memory; at least one."""
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
