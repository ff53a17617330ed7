"""Started on several ranks by test_ranks.py: each sends a last message and ends at once."""

from __future__ import annotations

import sys

import torch

from groupwise.distributed.world import join_world

KEPT = []
"""What torch's caches of sharded tensors do: the group, and gloo's threads, outlive it."""


def main() -> None:
    # Python is not taken from the thread that ends: who still needs it then meets an interpreter that shuts down.
    sys.setswitchinterval(100)
    world = join_world()
    KEPT.append(torch.distributed.group.WORLD._get_backend(torch.device("cpu")))  # type: ignore[union-attr]
    for number in range(50):
        assert world.gather(number) == [number] * world.size
    world.close()


if __name__ == "__main__":
    main()
