"""The protocol of an engine, and what all engines share: groups from rollouts, their text, stop strings."""

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


class Assembly:
    """One call of `generate`: its requests, and the rollouts sampled so far, which it assembles into groups."""

    def __init__(
        self, requests: Sequence[Request], sampling: SamplingParams, tokenizer: Any, policy_version: int
    ) -> None:
        self.requests = requests
        self.sampling = sampling
        self._endings: dict[int, bool] = {}
        self._tokenizer = tokenizer
        self._policy_version = policy_version
        self._parts: list[dict[int, Rollout]] = [{} for _ in requests]
        sizes = [len(request.seeds) if sampling.max_new_tokens else 0 for request in requests]
        self.wanted = [(index, number) for index, size in enumerate(sizes) for number in range(size)]
        """(request, number in its group) of each rollout to sample."""

    def undrawn(self) -> Iterator[tuple[int, Group]]:
        """Yield the groups that need no sampling: those without rollouts, and all if max_new_tokens is 0."""
        empty = Rollout((), (), "", Finish.LENGTH, self._policy_version)
        for index, request in enumerate(self.requests):
            if not request.seeds or self.sampling.max_new_tokens == 0:
                yield index, Group(request.prompt, (empty,) * len(request.seeds))

    def add(
        self, request: int, number: int, token_ids: Sequence[int], logprobs: Sequence[float], finish: Finish
    ) -> Iterator[tuple[int, Group]]:
        """Add rollout `number` of a request. Yield (the request, its group) if that completes it."""
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        part = self._parts[request]
        part[number] = Rollout(tuple(token_ids), tuple(logprobs), text, finish, self._policy_version)
        if len(part) == len(self.requests[request].seeds):
            yield request, Group(self.requests[request].prompt, tuple(part[place] for place in range(len(part))))

    def has_stop(self, token_ids: Sequence[int]) -> bool:
        """Whether the newest token completes a stop string. Earlier tokens were checked before."""
        stops = self.sampling.stop_strings
        if not stops or not token_ids or not self._may_end(token_ids[-1]):
            return False
        # A token may be less than a character, so look back further than the string is long.
        tail = token_ids[-(max(map(len, stops)) * 4 + 8) :]
        text = self._tokenizer.decode(tail, skip_special_tokens=True)
        return any(stop in text for stop in stops)

    def _may_end(self, token: int) -> bool:
        """Whether a stop string can end in this token: its own text has the last character, or is not plain."""
        if token not in self._endings:
            text = self._tokenizer.decode([token], skip_special_tokens=True)
            is_plain = bool(text) and text.isascii()
            self._endings[token] = not is_plain or any(stop[-1] in text for stop in self.sampling.stop_strings)
        return self._endings[token]

    def first_stop(self, token_ids: Sequence[int], num_checked: int = 0) -> int | None:
        """Return the number of tokens up to the end of the first stop string; None if there is none."""
        ends = range(num_checked + 1, len(token_ids) + 1)
        return next((end for end in ends if self.has_stop(token_ids[:end])), None)
