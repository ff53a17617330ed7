"""Completions for an evaluation: their requests, and scored groups as they complete.

The random stream of a completion depends on the seed, the problem and the completion's number alone: not on the order,
on what else is sampled, or on interruptions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from groupwise.base.seeds import seed_of
from groupwise.engines.engine import Engine, Request
from groupwise.scoring.scorer import Scorer, ScoringBatch
from groupwise.types import Group, Prompt, SamplingParams, Score, ScoredGroup

GROUPS_AHEAD = 4
"""Groups that may wait for their scores while others are sampled. A kill loses them, and they are sampled again."""


def make_requests(prompts: Sequence[Prompt], n: int, seed: int, stream: str = "eval") -> list[Request]:
    """Return a request for `n` completions of each prompt. `stream` separates evaluations that share a seed."""
    return [
        Request(prompt, tuple(seed_of(seed, stream, prompt.problem.id, number) for number in range(n)))
        for prompt in prompts
    ]


def draw_scored(
    engine: Engine, scorer: Scorer, requests: Sequence[Request], sampling: SamplingParams
) -> Iterator[ScoredGroup]:
    """Yield scored groups in the order in which the engine completes them."""
    waiting: deque[tuple[Group, ScoringBatch]] = deque()
    for _, group in engine.generate(requests, sampling, 0):
        batch = ScoringBatch(scorer)
        batch.add(group)
        waiting.append((group, batch))
        if len(waiting) > GROUPS_AHEAD:
            yield _take(waiting)
    while waiting:
        yield _take(waiting)


def _take(waiting: deque[tuple[Group, ScoringBatch]]) -> ScoredGroup:
    group, batch = waiting.popleft()
    return scored_group(group, batch.scores()[0])


def scored_group(group: Group, scores: tuple[Score, ...]) -> ScoredGroup:
    """Return a group with the scores' own rewards and no advantages."""
    rewards = tuple(score.reward for score in scores)
    return ScoredGroup(group, scores, rewards, (0.0,) * len(scores), len(set(rewards)) > 1)
