"""Completions for an evaluation, one scored group after the other as they are ready.

The dice of a completion depend on the seed, the problem and its number alone: not on the order, on what else is drawn,
or on whether the evaluation was interrupted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from groupwise.base.seeds import seed_of
from groupwise.engines.engine import Engine, Request
from groupwise.scoring.scorer import Scorer, ScoringBatch
from groupwise.types import Group, Prompt, SamplingParams, Score, ScoredGroup

GROUPS_AHEAD = 4
"""So many groups may wait for their scores while others are drawn; what waits is lost to a kill, and drawn again."""


def make_requests(prompts: Sequence[Prompt], n: int, seed: int) -> list[Request]:
    return [
        Request(prompt, tuple(seed_of(seed, "eval", prompt.problem.id, number) for number in range(n)))
        for prompt in prompts
    ]


def draw_scored(
    engine: Engine, scorer: Scorer, requests: Sequence[Request], sampling: SamplingParams
) -> Iterator[ScoredGroup]:
    """In the order in which the engine completes them."""
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
    """With the scores' own rewards, and nothing to learn from them."""
    rewards = tuple(score.reward for score in scores)
    return ScoredGroup(group, scores, rewards, (0.0,) * len(scores), len(set(rewards)) > 1)
