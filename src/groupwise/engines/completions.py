"""What all engines do alike: the text of a completion, where a stop string ends it, and what needs no drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from groupwise.engines.engine import Request
from groupwise.types import Finish, Group, Rollout, SamplingParams


def completion_text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def has_stop(tokenizer: Any, token_ids: Sequence[int], stop_strings: Sequence[str]) -> bool:
    """Whether the newest token completes a stop string. (That no earlier one did has been asked before.)"""
    if not stop_strings:
        return False
    # A token may hold less than a character, so look back a little further than the string is long.
    tail = token_ids[-(max(map(len, stop_strings)) * 4 + 8) :]
    text = tokenizer.decode(tail, skip_special_tokens=True)
    return any(stop in text for stop in stop_strings)


def first_stop(
    tokenizer: Any, token_ids: Sequence[int], stop_strings: Sequence[str], num_checked: int = 0
) -> int | None:
    """How many tokens there are once a stop string is complete, None where there is none; some were checked before."""
    ends = range(num_checked + 1, len(token_ids) + 1)
    return next((end for end in ends if has_stop(tokenizer, token_ids[:end], stop_strings)), None)


def undrawn_groups(
    requests: Sequence[Request], sampling: SamplingParams, policy_version: int
) -> Iterator[tuple[int, Group]]:
    """The groups that are complete without drawing: those of no rollouts, and with max_new_tokens = 0 all."""
    empty = Rollout((), (), "", Finish.LENGTH, policy_version)
    for index, request in enumerate(requests):
        if not request.seeds or sampling.max_new_tokens == 0:
            yield index, Group(request.prompt, (empty,) * len(request.seeds))
