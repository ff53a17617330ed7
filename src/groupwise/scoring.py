"""From completions to scores, and from scores to the rewards that the learner sees.

A task's `score` is foreign code: it may raise, return NaN or return nonsense. None of that is a wrong answer. It
becomes the verdict `error`, which is counted, shown, and left out of the group's mean and of the loss.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from groupwise.algo.advantages import soft_length_penalty
from groupwise.algo.schedules import falling
from groupwise.config import RewardConfig
from groupwise.tasks.task import Task
from groupwise.types import Finish, Group, Problem, Rollout, Score, ScoredGroup, Verdict


def score_group(task: Task, group: Group) -> tuple[Score, ...]:
    """One score per rollout; the same text is judged once."""
    by_text: dict[str, Score] = {}
    for rollout in group.rollouts:
        if rollout.text not in by_text:
            by_text[rollout.text] = score_completion(task, group.prompt.problem, rollout.text)
    return tuple(by_text[rollout.text] for rollout in group.rollouts)


def score_completion(task: Task, problem: Problem, completion: str) -> Score:
    try:
        score = task.score(problem, completion)
    except Exception as error:  # noqa: BLE001 - a user's verifier may raise anything, and must not end the run
        return _error(task, f"{type(error).__name__}: {error}")
    fault = _fault(score)
    return _error(task, f"score() returned {fault}") if fault else score


def _fault(score: object) -> str:
    """What makes this no usable score; "" when nothing does."""
    if not isinstance(score, Score):
        return f"{type(score).__name__} {score!r:.80}, not a Score"
    if not isinstance(score.verdict, Verdict):
        return f"verdict = {score.verdict!r:.80}, not a Verdict"
    if not isinstance(score.parts, Mapping):
        return f"parts = {score.parts!r:.80}, not a mapping of names to numbers"
    for name, value in [("reward", score.reward), *score.parts.items()]:
        # An int beyond the range of floats is finite and yet no reward.
        is_number = isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
        if not is_number:
            return f"{name} = {value!r:.80}, not a finite number"
    total = sum(score.parts.values())
    if score.parts and abs(total - score.reward) > 1e-6 * max(1.0, abs(total)):
        return f"reward = {score.reward!r}, which is not the sum of its parts, {total!r}"
    return ""


def _error(task: Task, detail: str) -> Score:
    return Score(0.0, Verdict.ERROR, {}, task.verifier, detail)


def shape_group(
    group: Group, scores: Sequence[Score], config: RewardConfig, stage_step: int, limit: int
) -> ScoredGroup:
    """Weigh the parts of each score into a reward. Advantages come later, once all groups of the step are there."""
    parts = [
        shape_parts(rollout, score, config, stage_step, limit)
        for rollout, score in zip(group.rollouts, scores, strict=True)
    ]
    rewards = tuple(sum(terms.values()) for terms in parts)
    # What is compared within the group: the rewards or, where parts are normalized one by one, the parts.
    compared: list[object] = list(parts) if config.normalize_parts else list(rewards)
    valid = [value for value, score in zip(compared, scores, strict=True) if not score.is_error]
    has_signal = any(value != valid[0] for value in valid)
    return ScoredGroup(group, tuple(scores), rewards, (0.0,) * len(rewards), has_signal)


def shape_parts(rollout: Rollout, score: Score, config: RewardConfig, stage_step: int, limit: int) -> dict[str, float]:
    """The named terms of the reward after weights, annealing and length penalty; their sum is the reward."""
    format_scale = falling(stage_step, config.format_anneal_steps)
    shaped = {}
    for name, value in (score.parts or {"reward": score.reward}).items():
        scale = format_scale if name in config.format_parts else 1.0
        shaped[name] = value * config.part_weights.get(name, 1.0) * scale
    buffer = round(config.overlong_buffer_share * limit)
    if buffer:
        penalty = soft_length_penalty(len(rollout.token_ids), limit, buffer, config.overlong_penalty)
        shaped["length_penalty"] = shaped.get("length_penalty", 0.0) + penalty
    return shaped


def pass_rate(scored: ScoredGroup) -> float | None:
    """Share of correct rollouts among those that could be judged; None when none could."""
    judged = [score for score in scored.scores if not score.is_error]
    if not judged:
        return None
    return sum(score.verdict is Verdict.CORRECT for score in judged) / len(judged)


def is_truncated(rollout: Rollout) -> bool:
    return rollout.finish is Finish.LENGTH
