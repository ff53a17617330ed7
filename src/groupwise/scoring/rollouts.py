"""Sampling with scoring alongside, as used by training and evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence

from groupwise.distributed.world import World
from groupwise.engines.engine import Engine, Request
from groupwise.scoring.scorer import Scorer, ScoringBatch
from groupwise.types import Group, SamplingParams, Score


def sample_and_score(
    engine: Engine,
    scorer: Scorer,
    requests: Sequence[Request],
    sampling: SamplingParams,
    policy_version: int,
    world: World,
    clock: Clock,
) -> list[tuple[Group, tuple[Score, ...]]]:
    """Return a group and its scores for each request, in order. Each rank samples and scores its share.

    Groups go to the scorer as the engine completes them, so scoring overlaps with sampling.
    """
    mine = world.share(range(len(requests)))
    batch = ScoringBatch(scorer)
    sampled: dict[int, Group] = {}
    clock.lap()
    for place, group in engine.generate([requests[index] for index in mine], sampling, policy_version):
        clock.sample_s += clock.lap()
        batch.add(group)
        sampled[mine[place]] = group
        clock.score_s += clock.lap()
    clock.sample_s += clock.lap()
    scored = [
        (index, group.rollouts, scores) for (index, group), scores in zip(sampled.items(), batch.scores(), strict=True)
    ]
    found = {index: (rollouts, scores) for part in world.gather(scored) for index, rollouts, scores in part}
    clock.score_s += clock.lap()
    return [(Group(request.prompt, found[index][0]), found[index][1]) for index, request in enumerate(requests)]


class Clock:
    """The seconds of sampling and of scoring, which alternate within a step."""

    def __init__(self) -> None:
        self.sample_s = self.score_s = self._last = 0.0

    def lap(self) -> float:
        """Return the seconds since the last call."""
        now = time.perf_counter()
        lap, self._last = now - self._last, now
        return lap
