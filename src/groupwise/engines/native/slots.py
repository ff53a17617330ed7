"""The state of the decoding rollouts, as tensors that a captured graph reads and writes in place.

A rollout occupies a *slot* from when it enters until it leaves. A step runs over *rows*: `order` says which slot each
row works on, so only `order` changes when rollouts leave or enter. One extra slot is always idle, for the unused rows
of a graph of fixed size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Slots:
    def __init__(self, num_slots: int, max_blocks: int, max_new_tokens: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self._state = torch.zeros(6, num_slots + 1, dtype=torch.int64, device=device)
        self.tokens = self._state[0]
        """[S] newest token, whose key and value are not in the cache yet."""
        self.positions = self._state[1]
        """[S] position of that token in the sequence."""
        self.limits = self._state[2]
        """[S] maximum number of sampled tokens."""
        self.seeds = self._state[3]
        self.progress = self._state[4:]
        """[2, S] counts and is_done, which the host reads."""
        self.counts = self._state[4]
        """[S] tokens sampled so far."""
        self.is_done = self._state[5]
        """[S] 0 while decoding, 1 after a stop token, 2 at the limit."""
        self.is_done.fill_(1)
        self.tables = torch.zeros(num_slots + 1, max_blocks, dtype=torch.int32, device=device)
        """[S, blocks] cache blocks of the slot, in order."""
        self.out_tokens = torch.zeros(num_slots + 1, max_new_tokens, dtype=torch.int64, device=device)
        self.out_logprobs = torch.zeros(num_slots + 1, max_new_tokens, dtype=torch.float32, device=device)
        self.order = torch.full((num_slots,), num_slots, dtype=torch.int64, device=device)
        """[R] slot of each row."""

    def put(
        self,
        slots: Sequence[int],
        tokens: Sequence[int],
        positions: Sequence[int],
        seeds: Sequence[int],
        limit: int,
        tables: Sequence[Sequence[int]],
    ) -> None:
        """Put new rollouts into these slots."""
        count, width = len(slots), self.tables.shape[1]
        state = [tokens, positions, [limit] * count, seeds, [0] * count, [0] * count]
        where = self._send(slots)
        self._state[:, where] = self._send(state)
        self.tables[where] = self._send([[*blocks, *[0] * (width - len(blocks))] for blocks in tables], torch.int32)

    def arrange(self, slots: Sequence[int]) -> None:
        """Assign rows 0 … len-1 to these slots and the other rows to the idle slot."""
        idle = [self.num_slots] * (self.num_slots - len(slots))
        self.order.copy_(self._send([*slots, *idle]), non_blocking=True)

    def _send(self, values: Sequence[object], dtype: torch.dtype = torch.int64) -> Tensor:
        is_cuda = self.order.is_cuda
        # Pinned, so the copy queues behind the steps without blocking the host.
        return torch.tensor(values, dtype=dtype, pin_memory=is_cuda).to(self.order.device, non_blocking=is_cuda)
