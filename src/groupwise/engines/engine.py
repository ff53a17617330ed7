"""The protocol of an engine, and what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from groupwise.types import Group, Prompt, SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt with one seed per rollout. A rollout depends on its prompt, its seed and the weights alone."""

    prompt: Prompt
    seeds: tuple[int, ...]


class Engine(Protocol):
    peak_bytes: int
    """Peak GPU memory during the last call of `generate`; 0 if unknown."""

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        """Yield (index of the request, its group) as groups complete, in any order."""
        ...
