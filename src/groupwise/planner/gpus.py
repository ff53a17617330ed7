"""GPUs by name: memory, bandwidth and speed. Bandwidth and TFLOP/s are the vendors' numbers (bf16, dense)."""

from __future__ import annotations

from dataclasses import dataclass

from groupwise.config import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_gib: float
    """Memory that the driver reports, which is less than advertised."""
    bandwidth_gb_s: float
    tflops: float
    taken_gib: float = 0.0
    """Memory that other programs use at the moment."""

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 2**30)

    @property
    def free_bytes(self) -> int:
        return int((self.memory_gib - self.taken_gib) * 2**30)

    @property
    def bytes_per_s(self) -> float:
        return self.bandwidth_gb_s * 1e9

    @property
    def flops_per_s(self) -> float:
        return self.tflops * 1e12


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("3090", 23.6, 936, 71),
        Gpu("4090", 23.5, 1008, 165),
        Gpu("5090", 31.4, 1792, 210),
        Gpu("a10", 22.0, 600, 125),
        Gpu("l4", 22.0, 300, 121),
        Gpu("l40s", 44.4, 864, 362),
        Gpu("a100-40", 39.4, 1555, 312),
        Gpu("a100-80", 79.2, 2039, 312),
        Gpu("h100", 79.1, 3350, 989),
        Gpu("h200", 139.8, 4800, 989),
        Gpu("b200", 178.0, 8000, 2250),
    )
}
CONTEXT_GIB = 0.75
"""Memory of the CUDA context, captured graphs and library buffers, which `memory/peak_bytes` does not include."""
MEASURED = GPUS["h200"]
"""The GPU on which the constants of this package were measured."""


def find_gpu(name: str) -> Gpu:
    if name not in GPUS:
        raise ConfigError(f"--gpu {name!r}: unknown; {nearest(name, GPUS)} Or use 'this', for the GPU of this machine")
    return GPUS[name]


def gpu_of_device(device_name: str, memory_gib: float | None = None) -> Gpu:
    """Return the GPU with this driver name, such as "NVIDIA A100-SXM4-80GB"."""
    words = device_name.lower().replace("-", " ").split()
    # Two A100 models differ in memory, which the driver reports.
    size = "80" if any(word.startswith("80g") for word in words) or (memory_gib or 0) > 60 else "40"
    for word in words:
        name = f"a100-{size}" if word == "a100" else word
        if name in GPUS:
            return GPUS[name]
    raise ConfigError(f"--gpu this: {device_name!r} is unknown; name a similar one: {', '.join(GPUS)}")


def this_gpu() -> tuple[Gpu, str]:
    """Return the GPU of this machine, with its actual total and used memory, and its driver name."""
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"--gpu: torch sees no GPU here; name one: {', '.join(GPUS)}")
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    memory_gib = found.total_memory / 2**30
    known = gpu_of_device(found.name, memory_gib)
    free, total = torch.cuda.mem_get_info()
    # The query itself created a context.
    taken_gib = max(0.0, (total - free) / 2**30 - CONTEXT_GIB)
    return Gpu(known.name, memory_gib, known.bandwidth_gb_s, known.tflops, taken_gib), found.name
