"""What an engine is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from groupwise.types import Group, Prompt, SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and as many rollouts as there are seeds. A rollout depends on its prompt, seed and weights alone."""

    prompt: Prompt
    seeds: tuple[int, ...]


class Engine(Protocol):
    peak_bytes: int
    """The most GPU memory that was in use while it drew, in its last call; 0 where that is not known."""

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        """Yield (index of the request, its group) as groups complete, in any order, each once."""
        ...
