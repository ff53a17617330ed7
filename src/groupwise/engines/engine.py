"""The protocol of an engine, and what all engines share: stop strings, text, groups from rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from groupwise.types import Finish, Group, Prompt, Rollout, SamplingParams


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


def completion_text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def has_stop(tokenizer: Any, token_ids: Sequence[int], stop_strings: Sequence[str]) -> bool:
    """Whether the newest token completes a stop string. Earlier tokens were checked before."""
    if not stop_strings:
        return False
    # A token may be less than a character, so look back further than the string is long.
    tail = token_ids[-(max(map(len, stop_strings)) * 4 + 8) :]
    text = tokenizer.decode(tail, skip_special_tokens=True)
    return any(stop in text for stop in stop_strings)


def first_stop(
    tokenizer: Any, token_ids: Sequence[int], stop_strings: Sequence[str], num_checked: int = 0
) -> int | None:
    """Return the number of tokens up to the end of the first stop string; None if there is none."""
    ends = range(num_checked + 1, len(token_ids) + 1)
    return next((end for end in ends if has_stop(tokenizer, token_ids[:end], stop_strings)), None)


class Assembly:
    """Collects rollouts in any order and returns each group once it is complete."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._parts: list[dict[int, Rollout]] = [{} for _ in requests]

    def add(self, request: int, number: int, rollout: Rollout) -> Iterator[tuple[int, Group]]:
        """Add rollout `number` of a request. Yield (the request, its group) if that completes it."""
        part = self._parts[request]
        part[number] = rollout
        if len(part) == len(self._requests[request].seeds):
            yield request, Group(self._requests[request].prompt, tuple(part[place] for place in range(len(part))))


def undrawn_groups(
    requests: Sequence[Request], sampling: SamplingParams, policy_version: int
) -> Iterator[tuple[int, Group]]:
    """Yield the groups that need no sampling: those without rollouts, and all if max_new_tokens is 0."""
    empty = Rollout((), (), "", Finish.LENGTH, policy_version)
    for index, request in enumerate(requests):
        if not request.seeds or sampling.max_new_tokens == 0:
            yield index, Group(request.prompt, (empty,) * len(request.seeds))
