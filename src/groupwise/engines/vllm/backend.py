"""The interface to vLLM, wherever it runs: load the trainer's weights and sample completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

TESTED_VERSION = "0.32"


class VllmError(RuntimeError):
    """vLLM cannot be used or failed. The message says what to change."""


class Weights(Protocol):
    """The trainer's weights, for an engine that has its own copy."""

    def stamp(self) -> object:
        """Return a value that changes when any weight was written."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the weights under the names of a Hugging Face folder, adapters merged.

        They may share the trainer's memory.
        """
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """One requested completion."""

    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """One completion from vLLM, not yet checked."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    """vLLM's finish reason: stop, length, abort, error, repetition."""


class Backend(Protocol):
    @property
    def context_tokens(self) -> int:
        """Maximum length of prompt and completion together."""
        ...

    def publish(self, tensors: Mapping[str, Tensor]) -> None:
        """Use these weights from now on, and drop caches that older weights computed."""
        ...

    def draw(self, draws: Sequence[Draw], settings: Mapping[str, Any]) -> Iterator[tuple[int, Drawn]]:
        """Yield (index of the draw, its completion) as they finish. `settings` are vLLM's sampling parameters.

        Closing the iterator early cancels what is still running.
        """
        ...

    def close(self) -> None: ...
