"""What several processes lose by sharing a GPU: each replays a graph of small kernels, as a run that samples does.

    python benchmarks/share_gpu.py             # one alone, then four at once
    nvidia-cuda-mps-control -d                 # the same with NVIDIA's MPS, where their kernels run side by side
    python benchmarks/share_gpu.py
    echo quit | nvidia-cuda-mps-control

Needs a GPU. What is printed is the slowest process of each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from typing import Any

import torch
from torch import Tensor

ROWS, WIDTH, LAYERS = 256, 1024, 100
"""Layers of a graph: a product and two small kernels each, too little to fill a large GPU."""
REPLAYS = 400


def replay(ready: Any, seconds: Any) -> None:
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5

    def work() -> Tensor:
        y = x
        for _ in range(LAYERS):
            y = torch.relu(y @ weight) + x
        return y

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    torch.cuda.synchronize()
    ready.wait()
    start = time.perf_counter()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    seconds.put(time.perf_counter() - start)


def slowest_s(processes: int) -> float:
    context = multiprocessing.get_context("spawn")
    ready, seconds = context.Barrier(processes), context.Queue()
    started = [context.Process(target=replay, args=(ready, seconds)) for _ in range(processes)]
    for process in started:
        process.start()
    slowest = max(seconds.get(timeout=300) for _ in started)
    for process in started:
        process.join()
    return float(slowest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("share_gpu: there is no GPU here to share")
    for processes in (1, options.processes):
        print(f"{processes} at once: {slowest_s(processes):.2f} s for {REPLAYS} graphs each")


if __name__ == "__main__":
    main()
