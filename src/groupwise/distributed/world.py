"""The ranks of a run, as `torchrun` starts them. Everybody decides, each computes a share.

All ranks run the same loop on the same data, so that sampler, advantages, denominators and metrics are the same
everywhere without being sent. What is heavy is shared out and brought together again, by the verbs here. Each is
called by all ranks in the same order. A world of one is plain functions. How the weights are split: see shards.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
import torch.distributed
from torch import Tensor

T = TypeVar("T")
SECONDS_TO_LET_GO = 0.25


class RankLost(RuntimeError):
    """Another rank ended before its time. What it wrote to its own output says why."""


@contextmanager
def together(*, is_bare: bool = True) -> Iterator[None]:
    """Around what needs all ranks. A bare call to the library underneath fails for one reason: a rank is gone.

    Where other code runs as well (a forward pass with messages inside), only errors of that library are taken for it.
    """
    try:
        yield
    except RuntimeError as error:
        # NCCL's errors have a type of their own; gloo's are known by the source file that they name.
        if not (is_bare or isinstance(error, torch.distributed.DistError) or "gloo" in str(error)):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RankLost(
            f"another rank is gone ({reason}); its own output says why. The newest checkpoint is good: start the ranks "
            "again with --resume"
        ) from error


class World(Protocol):
    rank: int
    size: int
    is_alone: bool
    """No ranks to talk to, and nothing is sharded. (A launcher may start a single rank, which is not that.)"""

    def share(self, items: Sequence[T]) -> list[T]:
        """This rank's part of a list that all ranks have."""
        ...

    def in_step(self, items: Sequence[T]) -> Iterator[tuple[T, bool]]:
        """This rank's part, as long as anybody's: (item, whether it counts). What fills up is to have no effect.

        Each item is taken from the list when its turn comes.
        """
        ...

    def gather(self, value: T) -> list[T]:
        """What each rank has, by rank."""
        ...

    def add(self, tensor: Tensor) -> None:
        """Its sum over the ranks, in place. (Gradients are summed by FSDP on their way back.)"""
        ...

    def close(self) -> None: ...


class Alone:
    rank, size, is_alone = 0, 1, True

    def share(self, items: Sequence[T]) -> list[T]:
        return list(items)

    def in_step(self, items: Sequence[T]) -> Iterator[tuple[T, bool]]:
        return ((item, True) for item in items)

    def gather(self, value: T) -> list[T]:
        return [value]

    def add(self, tensor: Tensor) -> None:
        pass

    def close(self) -> None:
        pass


class Ranks:
    is_alone = False

    def __init__(self) -> None:
        """Join the ranks that `torchrun` describes in the environment."""
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()

    def share(self, items: Sequence[T]) -> list[T]:
        # One by one in turn: what is sorted by length is spread evenly.
        return list(items[self.rank :: self.size])

    def in_step(self, items: Sequence[T]) -> Iterator[tuple[T, bool]]:
        mine = items[self.rank :: self.size]
        for index in range(-(-len(items) // self.size)):
            counts = index < len(mine)
            # The last is the smallest, where they are sorted.
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
        # Gloo's threads outlive this: torch's caches of sharded tensors hold the group. One that has yet to let go of
        # the last message's tensors needs Python for it, and aborts the process where Python is already shutting down.
        time.sleep(SECONDS_TO_LET_GO)


def join_world() -> World:
    """The ranks that this process was started among; alone without `torchrun`.

    A single rank that `torchrun` started shards its weights, into one part: all the code of many ranks on one GPU.
    """
    is_launched = torch.distributed.is_torchelastic_launched() or int(os.environ.get("WORLD_SIZE", "1")) > 1
    return Ranks() if is_launched else Alone()
