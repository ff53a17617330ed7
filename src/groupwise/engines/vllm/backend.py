"""What the engine asks of vLLM, wherever it runs: take over the trainer's weights, and draw completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

TESTED_VERSION = "0.32"


class VllmError(RuntimeError):
    """vLLM cannot be used, or did not do what was asked. The message says what to change."""


class Weights(Protocol):
    """The trainer's weights, as seen by an engine that has a copy of its own."""

    def stamp(self) -> object:
        """Differs from an earlier one if any weight was written in between."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """Under the names of a Hugging Face folder, adapters merged in. They may share memory with the trainer."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """One completion that is asked for."""

    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """One completion as vLLM gives it, not yet checked."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    """In vLLM's words: stop, length, abort, error, repetition."""


class Backend(Protocol):
    @property
    def context_tokens(self) -> int:
        """The longest prompt and completion together."""
        ...

    def publish(self, tensors: Mapping[str, Tensor]) -> None:
        """Draw from these weights from here on, and forget what was computed with others."""
        ...

    def draw(self, draws: Sequence[Draw], settings: Mapping[str, Any]) -> Iterator[tuple[int, Drawn]]:
        """(index of the draw, its completion) as they finish, each once. `settings` are vLLM's sampling parameters.

        Whoever stops listening half way leaves nothing running.
        """
        ...

    def close(self) -> None: ...
