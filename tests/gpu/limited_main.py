"""Started by test_cuda.py: trains a recipe in so many MiB of a GPU, in a process that has used none of it before."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from groupwise.config import load_recipe
from groupwise.training import pipeline
from groupwise.training.rehearsal import DoesNotFit

REFUSED = 3


def main(recipe: str, run_dir: str, mib: str) -> int:
    torch.cuda.set_per_process_memory_fraction(int(mib) * 2**20 / torch.cuda.mem_get_info()[1])
    try:
        return 0 if pipeline.train(load_recipe(Path(recipe)), Path(run_dir)) else 1
    except DoesNotFit as error:
        print(error)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
