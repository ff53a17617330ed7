"""The schedule: which rollouts decode now, in which slot, on which cache blocks.

This is bookkeeping on the host, without torch: the planner reads the constants.

A rollout enters with all the blocks that it can ever need, so nothing is preempted later. The prompt of a group is
prefilled once, except for its last token. All rollouts share its full blocks; the last, partial block is copied for
each rollout, which continues writing in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from groupwise.engines.engine import Request

BLOCK_TOKENS = 16
PREFILL_TOKENS = 2048
"""Prompt tokens that go through the model at once; a longer prompt is split."""
CACHE_SHARE = 0.8
"""Fraction of the free memory for the cache."""


class BlockPool:
    """The cache's blocks: which are free, and how many rollouts read each."""

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


@dataclass(slots=True)
class Prefix:
    """The prefilled part of a prompt, while rollouts of its group are still waiting."""

    token_ids: Sequence[int]
    blocks: list[int]
    num_full: int
    """Number of full blocks, which are shared and not copied."""
    num_waiting: int
    states: Any = None
    """What the runner keeps of the prompt besides the blocks."""


@dataclass(slots=True)
class Decoding:
    """A rollout that is being sampled."""

    request: int
    number: int
    """Its number in the group."""
    seed: int
    last_prompt_token: int
    position: int
    """Position of the last prompt token, where the first step begins."""
    blocks: list[int] = field(default_factory=list)
    """Blocks in order, shared ones first."""
    slot: int = -1
    num_steps: int = 0
    """Steps that ran or are queued."""
    num_checked: int = 0
    """Tokens that were already searched for stop strings."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Work to do before rollouts can enter."""

    prefixes: list[Prefix]
    """Prompts to prefill."""
    rollouts: list[Decoding]
    continued: list[Prefix]
    """The prefix that each rollout continues."""
    copies: list[tuple[int, int]]
    """(from, to): blocks to copy after the prefill."""


class Schedule:
    def __init__(self, requests: Sequence[Request], *, pool: BlockPool, num_slots: int, max_new_tokens: int) -> None:
        self._pool = pool
        self._num_slots = num_slots
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._max_new_tokens = max_new_tokens
        self._prefixes: dict[int, Prefix] = {}
        self._used_up: list[Prefix] = []
        """Prefixes whose rollouts have all entered."""
        self._requests = requests
        self._waiting: deque[Decoding] = deque()
        for index, request in enumerate(requests):
            prompt = request.prompt.token_ids
            for number, seed in enumerate(request.seeds):
                self._waiting.append(Decoding(index, number, seed, prompt[-1], len(prompt) - 1))
        self.active: dict[int, Decoding] = {}
        """The decoding rollouts, by slot."""

    @property
    def is_finished(self) -> bool:
        return not self.active and not self._waiting

    def has_room(self, share: float) -> bool:
        """Whether this share of the slots is free, or enough for all that wait, or all slots."""
        wanted = min(share * self._num_slots, len(self._waiting))
        return not self.active or len(self._free_slots) >= max(1, wanted)

    def enter(self) -> Scheduled:
        """Let in as many rollouts as there are slots and blocks for, in the order of the requests."""
        # Freed now and not when the last rollout entered, which still had to read the blocks.
        for prefix in self._used_up:
            self._pool.give(prefix.blocks)
        self._used_up.clear()
        entry = Scheduled([], [], [], [])
        while self._waiting and self._free_slots:
            rollout = self._waiting[0]
            known = self._prefixes.get(rollout.request)
            num_new = blocks_for(rollout.position + self._max_new_tokens) - rollout.position // BLOCK_TOKENS
            num_prefix = 0 if known else blocks_for(rollout.position)
            if num_new + num_prefix > self._pool.num_free:
                break
            self._waiting.popleft()
            prefix = known or self._begin_prefix(rollout, num_prefix)
            if prefix.token_ids and not known:
                entry.prefixes.append(prefix)
            own = self._pool.take(num_new)
            shared = prefix.blocks[: prefix.num_full]
            self._pool.share(shared)
            rollout.blocks = shared + own
            if prefix.num_full < len(prefix.blocks):
                entry.copies.append((prefix.blocks[-1], own[0]))
            prefix.num_waiting -= 1
            if prefix.num_waiting == 0:
                self._used_up.append(self._prefixes.pop(rollout.request))
            rollout.slot = self._free_slots.pop()
            entry.rollouts.append(rollout)
            entry.continued.append(prefix)
            self.active[rollout.slot] = rollout
        return entry

    def going(self) -> list[Decoding]:
        """Return the rollouts that may need another step. The others have reached their limit, seen or not."""
        return [rollout for rollout in self.active.values() if rollout.num_steps < self._max_new_tokens]

    def leave(self, slot: int) -> None:
        self._pool.give(self.active.pop(slot).blocks)
        self._free_slots.append(slot)

    def _begin_prefix(self, rollout: Decoding, num_blocks: int) -> Prefix:
        request = self._requests[rollout.request]
        tokens = request.prompt.token_ids[:-1]
        prefix = Prefix(tokens, self._pool.take(num_blocks), len(tokens) // BLOCK_TOKENS, len(request.seeds))
        self._prefixes[rollout.request] = prefix
        return prefix


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_TOKENS)
