"""Blocks and slots: nothing is given twice, nothing is lost, whatever enters and leaves in whatever order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.engines.engine import Request
from groupwise.engines.native.schedule import BLOCK_TOKENS, BlockPool, Schedule
from groupwise.types import Problem, Prompt


def test_a_block_is_free_when_its_last_reader_is_gone() -> None:
    pool = BlockPool(3)
    taken = pool.take(2)
    pool.share(taken)
    pool.give(taken)
    assert pool.num_free == 1
    pool.give(taken)
    assert pool.num_free == 3


def test_mistakes_are_caught() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 free"):
        pool.take(3)
    with pytest.raises(AssertionError, match="is free"):
        pool.share([0])
    with pytest.raises(AssertionError, match="is free already"):
        pool.give([0])


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 56), st.integers(1, 5)), min_size=1, max_size=8),
    num_slots=st.integers(1, 6),
    new_tokens=st.integers(1, 36),
    spare=st.integers(0, 20),
    seed=st.integers(0, 1000),
)
def test_nobody_writes_where_another_reads(
    shapes: list[tuple[int, int]], num_slots: int, new_tokens: int, spare: int, seed: int
) -> None:
    dice = random.Random(seed)
    requests = [
        Request(Prompt(Problem(str(n), (), ""), tuple(range(length))), tuple(range(size)))
        for n, (length, size) in enumerate(shapes)
    ]
    largest = max(
        -(-(length - 1) // BLOCK_TOKENS) + -(-(length - 1 + new_tokens) // BLOCK_TOKENS) for length, _ in shapes
    )
    pool = BlockPool(largest + spare)
    schedule = Schedule(requests, pool=pool, num_slots=num_slots, max_new_tokens=new_tokens)
    entered = []
    while not schedule.is_finished:
        entry = schedule.enter()
        entered += [(rollout.request, rollout.number) for rollout in entry.rollouts]
        assert schedule.active, "somebody can always enter when nobody is there"
        assert len(schedule.active) <= num_slots
        prefilled = [block for prefix in entry.prefixes for block in prefix.blocks]
        written: list[int] = []
        for slot, rollout in schedule.active.items():
            assert rollout.slot == slot
            num_shared = rollout.position // BLOCK_TOKENS
            assert len(rollout.blocks) == -(-(rollout.position + new_tokens) // BLOCK_TOKENS)
            written += rollout.blocks[num_shared:]
        shared = {b for rollout in schedule.active.values() for b in rollout.blocks[: rollout.position // BLOCK_TOKENS]}
        assert len(set(written)) == len(written)
        assert not shared & set(written)
        assert len(set(prefilled)) == len(prefilled)
        # What is prefilled now is nobody's own block, or it would be overwritten before it is copied.
        assert not set(prefilled) & set(written)
        for source, target in entry.copies:
            assert source in {b for prefix in entry.prefixes for b in prefix.blocks} | set(range(pool.num_blocks))
            assert target in written
        leaving = [slot for slot in schedule.active if dice.random() < 0.5] or [next(iter(schedule.active))]
        for slot in leaving:
            schedule.leave(slot)
            assert slot not in schedule.active
    schedule.enter()
    assert pool.num_free == pool.num_blocks
    assert entered == [(n, number) for n, (_, size) in enumerate(shapes) for number in range(size)]
