"""The ranks of a run, as `torchrun` starts them. All ranks make the same decisions, and each computes a share.

All ranks run the same loop on the same data, so sampler, advantages, denominators and metrics are equal everywhere
without communication. Heavy work is split and gathered with the methods here, which all ranks call in the same order.
For how the weights are split, see shards.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed
from torch import Tensor

from groupwise.base.text_layout import first_line
from groupwise.distributed.launch import FIX, launch_number, launched_ranks

T = TypeVar("T")
SECONDS_TO_LET_GO = 0.25


class RankLost(RuntimeError):
    """Another rank ended unexpectedly. Its own output says why."""


@contextmanager
def together(*, is_bare: bool = True) -> Iterator[None]:
    """Wrap work that needs all ranks, and raise RankLost if one is gone.

    A bare call to the communication library fails for that reason only. Where other code runs too (a forward pass that
    communicates), only errors of the library count.
    """
    try:
        yield
    except RuntimeError as error:
        # NCCL's errors have their own type; gloo's are recognized by the source file in their message.
        if not (is_bare or isinstance(error, torch.distributed.DistError) or "gloo" in str(error)):
            raise
        raise RankLost(
            f"another rank is gone ({first_line(error)}); its own output says why. The newest checkpoint is "
            "intact: restart the ranks with --resume"
        ) from error


class World:
    """The interface to all ranks, and a world of one rank, which needs no communication."""

    rank = 0
    size = 1
    is_alone = True
    """True without a launcher: nothing is sharded. A single rank that a launcher started is not alone."""

    def share(self, items: Sequence[T]) -> list[T]:
        """Return this rank's part of a list that all ranks have."""
        return list(items)

    def in_step(self, items: Sequence[T]) -> Iterator[tuple[T, bool]]:
        """Yield this rank's part, padded to the longest: (item, whether it counts). Padding must have no effect.

        Items are taken from the list one by one.
        """
        return ((item, True) for item in items)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in order."""
        return [value]

    def add(self, tensor: Tensor) -> None:
        """Sum a tensor over the ranks, in place. (FSDP sums gradients during the backward pass.)"""

    def close(self) -> None:
        """Leave the other ranks."""


class Ranks(World):
    is_alone = False

    def __init__(self) -> None:
        """Join the ranks that `torchrun` describes in the environment."""
        if torch.cuda.is_available():
            torch.cuda.set_device(launch_number("LOCAL_RANK", 0, f"[0, {torch.cuda.device_count() - 1}]"))
        try:
            torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        except torch.distributed.DistError as error:
            raise RankLost(f"the ranks did not find each other ({first_line(error)}); {FIX}") from error
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()

    def share(self, items: Sequence[T]) -> list[T]:
        # Every size-th item, which spreads items sorted by length evenly.
        return list(items[self.rank :: self.size])

    def in_step(self, items: Sequence[T]) -> Iterator[tuple[T, bool]]:
        mine = items[self.rank :: self.size]
        for index in range(-(-len(items) // self.size)):
            counts = index < len(mine)
            # The last item is the smallest if they are sorted.
            yield mine[index] if counts else items[-1], counts

    def gather(self, value: T) -> list[T]:
        values: list[T | None] = [None] * self.size
        with together():
            torch.distributed.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def add(self, tensor: Tensor) -> None:
        with together():
            torch.distributed.all_reduce(tensor)

    def close(self) -> None:
        torch.distributed.destroy_process_group()
        # Gloo's threads outlive this, because torch's caches of sharded tensors keep the group alive. A thread that
        # still frees the last message's tensors needs Python, and aborts the process if Python is shutting down.
        time.sleep(SECONDS_TO_LET_GO)


def join_world() -> World:
    """Return the ranks that this process belongs to; a world of one without `torchrun`.

    A single rank that `torchrun` started still shards its weights, into one part: it runs the code of many ranks.
    """
    _, size = launched_ranks()
    return Ranks() if size > 1 or torch.distributed.is_torchelastic_launched() else World()
