"""How long tensors take from the GPU to a checkpoint: each by `.cpu()`, and through two pinned buffers.

    python benchmarks/copy_to_cpu.py

Needs a GPU, and twice the size in the memory of the machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from groupwise.models.checkpoint_store import _on_cpu

NUMBERS = 18_000_000
"""Elements of a tensor of 72 MB in fp32."""


def seconds(copy: Callable[[], list[Tensor]]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    copy()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=60, help="of 72 MB; default 60")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("copy_to_cpu: there is no GPU here to copy from")
    tensors = [torch.randn(NUMBERS, device="cuda") for _ in range(options.tensors)]
    size = 4 * NUMBERS * options.tensors / 1e9
    for name, copy in (
        ("by .cpu()", lambda: [tensor.cpu() for tensor in tensors]),
        ("through pinned buffers", lambda: _on_cpu(tensors)),
    ):
        first, second = seconds(copy), seconds(copy)
        print(f"{size:.2f} GB {name}: {first:.2f} s, and again {second:.2f} s")


if __name__ == "__main__":
    main()
