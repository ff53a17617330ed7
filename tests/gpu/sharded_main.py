"""Started by test_sharded.py as one rank on one GPU, sharded all the same: trains a recipe and says what it held."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from groupwise.config import load_recipe
from groupwise.distributed.world import join_world
from groupwise.models.replica import Replica
from groupwise.training.pipeline import carry_out
from groupwise.training.setup import RunRequest


def watch_replica(seen: list[tuple[int, int]]) -> None:
    """Note by how much the device's free memory grows when the replica is handed back."""
    original = Replica.filled

    def filled(self: Replica) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def watched() -> Any:
            with original(self):
                yield
                torch.cuda.empty_cache()
                inside = torch.cuda.mem_get_info()[0]
            seen.append((self.num_bytes, torch.cuda.mem_get_info()[0] - inside))

        return watched()

    Replica.filled = filled  # type: ignore[method-assign]


def main(recipe: Path, run_dir: Path, out: Path) -> None:
    world = join_world()
    assert not world.is_alone
    seen: list[tuple[int, int]] = []
    watch_replica(seen)
    assert carry_out(RunRequest(load_recipe(recipe), run_dir, world=world))
    out.write_text(json.dumps(seen))
    world.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
