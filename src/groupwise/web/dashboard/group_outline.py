"""Fast reading of a line of rollouts: only what a list of groups shows, as a `GroupOutline`.

Most of a line is numbers that a list does not show (token ids, logprobs). A line written by `groupwise.runs` is read
piece by piece: strings and small objects by the JSON parser, arrays of numbers by searching their end. Each piece must
be exactly in its place, so a key that only occurs inside a text or a problem's meta is never mistaken for one. Any
other line is parsed as a whole and gives the same outline.

The arrays of numbers are not checked here: damage in them shows when the group is opened.
"""

from __future__ import annotations

import json
import math
import re
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.base.outside import json_value
from groupwise.runs.files import parse_object
from groupwise.runs.records import MAX_MEASURED
from groupwise.runs.typed import typed

PROMPT_CHARACTERS = 200
FAILED_VERDICTS = frozenset({"error", "timed_out"})

_decode_at = json.JSONDecoder().raw_decode
_HEAD = re.compile(r'\{"step":-?\d+,"stage":(?=")')
_PROBLEM, _PROMPT_IDS, _ROLLOUTS = ',"problem":', ',"prompt_token_ids":[', '],"rollouts":['
_TEXT = '{"text":"'
_AFTER_TEXT = re.compile(r',"finish":"([a-z_]+)","policy_version":-?\d+,"token_ids":\[')
_READ_BEFORE = frozenset({"step", "stage", "problem", "prompt_token_ids", "rollouts"})
"""Keys before the scores. If a key occurs twice, the last one counts."""
_LOGPROBS, _SCORES = '],"rollout_logprobs":[', '],"scores":['


@dataclass(frozen=True, slots=True)
class GroupOutline:
    """The part of a group that lists, filters and sorting need."""

    stage: str
    problem_id: str
    prompt: str
    """The first characters of the last message."""
    answer: str
    problem_texts: tuple[str, ...]
    """Messages, answer and id in lower case, for the search."""
    rewards: tuple[float, ...]
    verdicts: tuple[str, ...]
    finishes: tuple[str, ...]
    num_tokens: tuple[int, ...]
    has_signal: bool
    mean_reward: float | None
    """Mean over the scored rollouts, like the spread; None if none was scored."""
    spread: float | None
    """Largest minus smallest reward."""
    text_spans: array[int] | None
    """Byte positions of the completions in the line: start and end of each JSON string, with its quotes. None: the line
    must be parsed to find them."""


class _OtherShape(Exception):
    """The line is not as groupwise writes it."""


def outline_of(line: bytes) -> GroupOutline | None:
    """Return the outline of a line; None if it is damaged."""
    if line.isascii():
        try:
            return _read_in_pieces(line.decode("ascii"))
        except (_OtherShape, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            pass
    return outline_by_parsing(line)


def outline_by_parsing(line: bytes) -> GroupOutline | None:
    """Return the outline of a line with any order and spacing, slowly."""
    table = parse_object(line)
    if table is None:
        return None
    try:
        rollouts = table["rollouts"]
        finishes = [str(rollout["finish"]) for rollout in rollouts]
        num_tokens = [len(rollout["token_ids"]) for rollout in rollouts]
        if not all(isinstance(rollout["text"], str) for rollout in rollouts):
            return None
        return _outline(table["stage"], table["problem"], finishes, num_tokens, table, None)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def completions_of(line: bytes, outline: GroupOutline) -> Iterator[str]:
    """Yield the texts of a line's rollouts in order."""
    if outline.text_spans is None:
        table = parse_object(line) or {"rollouts": ()}
        yield from (rollout["text"] for rollout in table["rollouts"])
        return
    spans = iter(outline.text_spans)
    for start, end in zip(spans, spans, strict=True):
        piece = line[start:end]
        # A string without escapes needs no parser.
        yield json_value(piece) if b"\\" in piece else piece[1:-1].decode("ascii")


def _read_in_pieces(text: str) -> GroupOutline:
    head = _HEAD.match(text)
    if head is None:
        raise _OtherShape
    stage, position = _decode_at(text, head.end())
    problem, position = _decode_at(text, _behind(text, position, _PROBLEM))
    position = text.index("]", _behind(text, position, _PROMPT_IDS))
    position = _behind(text, position, _ROLLOUTS)
    finishes, num_tokens, spans = [], [], array("I" if len(text) < 2**32 else "Q")
    while text.startswith(_TEXT, position):
        start = position + len(_TEXT) - 1
        _, end = _decode_at(text, start)
        spans.extend((start, end))
        after = _AFTER_TEXT.match(text, end)
        if after is None:
            raise _OtherShape
        first = after.end()
        last = text.index("]", first)
        finishes.append(sys.intern(after[1]))
        num_tokens.append(text.count(",", first, last) + 1 if last > first else 0)
        position = text.index("]", _behind(text, last, _LOGPROBS))
        position = _behind(text, position, "]}")
        if not text.startswith(",", position):
            break
        position += 1
    position = _behind(text, position, _SCORES)
    # The rest of the line is small: an object without its beginning.
    table = json_value('{"scores":[' + text[position:])
    if not _READ_BEFORE.isdisjoint(table):
        raise _OtherShape
    return _outline(stage, problem, finishes, num_tokens, table, spans)


def _behind(text: str, position: int, expected: str) -> int:
    if not text.startswith(expected, position):
        raise _OtherShape
    return position + len(expected)


def _outline(
    stage: str,
    problem: Mapping[str, Any],
    finishes: Sequence[str],
    num_tokens: Sequence[int],
    rest: Mapping[str, Any],
    spans: array[int] | None,
) -> GroupOutline:
    messages = [str(message["content"]) for message in problem["messages"]]
    identity, answer = str(problem["id"]), str(problem["answer"])
    rewards = typed(tuple[float, ...], rest["rewards"], "rewards")
    verdicts = tuple(sys.intern(str(score["verdict"])) for score in rest["scores"])
    known = scored_rewards(rewards, verdicts)
    return GroupOutline(
        stage=sys.intern(str(stage)),
        problem_id=identity,
        prompt=messages[-1][:PROMPT_CHARACTERS] if messages else "",
        answer=answer,
        problem_texts=tuple(text.lower() for text in (*messages, answer, identity)),
        rewards=rewards,
        verdicts=verdicts,
        finishes=tuple(finishes),
        num_tokens=tuple(num_tokens),
        has_signal=bool(rest["has_signal"]),
        mean_reward=math.fsum(known) / len(known) if known else None,
        spread=max(known) - min(known) if known else None,
        text_spans=spans,
    )


def scored_rewards(rewards: Sequence[float], verdicts: Sequence[str]) -> list[float]:
    """Return the rewards without those of rollouts that could not be scored."""
    pairs = zip(rewards, verdicts, strict=False)
    return [reward for reward, verdict in pairs if verdict not in FAILED_VERDICTS and abs(reward) <= MAX_MEASURED]
