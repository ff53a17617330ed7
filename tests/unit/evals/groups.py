"""Scored groups made by hand: a problem, and its completions as pairs of text and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.types import Finish, Group, Message, Problem, Prompt, Rollout, Score, ScoredGroup, Verdict

RIGHT, WRONG, UNPARSED = Verdict.CORRECT, Verdict.WRONG, Verdict.UNPARSED
ERROR, LATE = Verdict.ERROR, Verdict.TIMED_OUT


def scored(
    key: str,
    completions: Sequence[tuple[str, Verdict]],
    *,
    meta: Mapping[str, Any] | None = None,
    question: str = "",
    finish: Finish = Finish.STOP,
) -> ScoredGroup:
    problem = Problem(key, (Message("user", question or f"What is {key}?"),), "1", meta or {})
    rollouts = tuple(Rollout(tuple(range(len(text))), (-0.5,) * len(text), text, finish, 0) for text, _ in completions)
    scores = tuple(Score(float(verdict is RIGHT), verdict, {}, "by-hand/1") for _, verdict in completions)
    rewards = tuple(score.reward for score in scores)
    return ScoredGroup(Group(Prompt(problem, (1, 2)), rollouts), scores, rewards, (0.0,) * len(scores), False)
