"""The ranks of a run, as `torchrun` starts them. Everybody decides, each computes a share.

All ranks run the same loop on the same data, so that sampler, advantages, denominators and metrics are the same
everywhere without being sent. What is heavy is shared out and brought together again, by the four verbs here. Each is
called by all ranks in the same order. A world of one is plain functions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
import torch.distributed
from torch import Tensor

T = TypeVar("T")

BUCKET_ELEMENTS = 1 << 25
"""Tensors are added up in buckets of so many elements: few messages, little extra memory."""


class RankLost(RuntimeError):
    """Another rank ended before its time. What it wrote to its own output says why."""


@contextmanager
def _together() -> Iterator[None]:
    """Around a call that needs all ranks: its errors are of one kind, and come from the library underneath."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RankLost(
            f"another rank is gone ({reason}); its own output says why. The newest checkpoint is good: start the ranks "
            "again with --resume"
        ) from error


class World(Protocol):
    rank: int
    size: int

    def share(self, items: Sequence[T]) -> list[T]:
        """This rank's part of a list that all ranks have."""
        ...

    def gather(self, value: T) -> list[T]:
        """What each rank has, by rank."""
        ...

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Sums over the ranks, in place."""
        ...

    def close(self) -> None: ...


class Alone:
    rank, size = 0, 1

    def share(self, items: Sequence[T]) -> list[T]:
        return list(items)

    def gather(self, value: T) -> list[T]:
        return [value]

    def add(self, tensors: Sequence[Tensor]) -> None:
        pass

    def close(self) -> None:
        pass


class Ranks:
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

    def gather(self, value: T) -> list[T]:
        values: list[T | None] = [None] * self.size
        with _together():
            torch.distributed.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def add(self, tensors: Sequence[Tensor]) -> None:
        bucket: list[Tensor] = []
        for tensor in tensors:
            bucket.append(tensor)
            if sum(part.numel() for part in bucket) >= BUCKET_ELEMENTS:
                self._add_bucket(bucket)
                bucket = []
        if bucket:
            self._add_bucket(bucket)

    def _add_bucket(self, bucket: Sequence[Tensor]) -> None:
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        with _together():
            torch.distributed.all_reduce(flat)
        for tensor, total in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def close(self) -> None:
        torch.distributed.destroy_process_group()


def join_world() -> World:
    """The ranks that this process was started among; alone without `torchrun`."""
    return Ranks() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Alone()
