"""An engine on a model that is filled with the current weights before sampling and emptied afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from groupwise.engines.engine import Engine, Request
from groupwise.types import Group, SamplingParams


class RefilledEngine:
    def __init__(self, engine: Engine, filled: Callable[[], AbstractContextManager[None]], num_bytes: int) -> None:
        """`filled`: inside, the model has its weights, which take `num_bytes` that torch does not count."""
        self.peak_bytes = 0
        self._engine = engine
        self._filled = filled
        self._num_bytes = num_bytes

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        # Even without requests: other ranks may have some, and all ranks must take part in filling.
        with self._filled():
            yield from self._engine.generate(requests, sampling, policy_version)
        self.peak_bytes = self._engine.peak_bytes + self._num_bytes if self._engine.peak_bytes else 0
