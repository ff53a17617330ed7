"""Bookkeeping of the cache's blocks, on the host: which are free, and how many rollouts read each."""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._readers = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` blocks with one reader each. The caller checks that there are enough."""
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free"
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._readers[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reader to each block."""
        for block in blocks:
            assert self._readers[block] > 0, f"block {block} is free"
            self._readers[block] += 1

    def give(self, blocks: Iterable[int]) -> None:
        """Remove a reader from each block. A block without readers is free."""
        for block in blocks:
            assert self._readers[block] > 0, f"block {block} is free already"
            self._readers[block] -= 1
            if self._readers[block] == 0:
                self._free.append(block)
