"""Scored completions for evaluations, and held-out pass@1 with its interval during training.

The random stream of a completion depends on the seed, the problem and the completion's number alone: not on the order,
on what else is sampled, or on interruptions. So all evaluations of a run have the same problems and streams, and
differences between them come from the policy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from groupwise.base.seeds import seed_of
from groupwise.base.stats import mean, mean_interval, wilson_interval
from groupwise.config import EvaluationConfig, Recipe, RlStage
from groupwise.engines.engine import Engine, Request
from groupwise.evals.scores import outcome_shares
from groupwise.models.policy import Policy
from groupwise.scoring.rollouts import Clock, sample_and_score
from groupwise.scoring.scorer import Scorer, ScoringBatch, delayed
from groupwise.types import EvalRecord, Group, Prompt, SamplingParams, Score, ScoredGroup

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

    def submitted() -> Iterator[tuple[Group, ScoringBatch]]:
        for _, group in engine.generate(requests, sampling, 0):
            batch = ScoringBatch(scorer)
            batch.add(group)
            yield group, batch

    for group, batch in delayed(submitted(), GROUPS_AHEAD + 1):
        yield _scored_group(group, batch.scores()[0])


def _scored_group(group: Group, scores: tuple[Score, ...]) -> ScoredGroup:
    """Return a group with the scores' own rewards and no advantages."""
    rewards = tuple(score.reward for score in scores)
    return ScoredGroup(group, scores, rewards, (0.0,) * len(scores), len(set(rewards)) > 1)


def scored_groups(
    engine: Engine, scorer: Scorer, requests: Sequence[Request], sampling: SamplingParams, policy: Policy
) -> list[ScoredGroup]:
    """Return a scored group for each request, in order. Each rank samples and scores its share."""
    pairs = sample_and_score(engine, scorer, requests, sampling, policy.version, policy.world, Clock())
    return [_scored_group(group, scores) for group, scores in pairs]


def evaluate(
    recipe: Recipe, scorer: Scorer, prompts: Sequence[Prompt], policy: Policy, engine: Engine
) -> tuple[EvalRecord, list[ScoredGroup]]:
    """Evaluate the current weights. Return (the record, whose step and stage the caller sets, what was sampled)."""
    start = time.perf_counter()
    config = recipe.evaluation
    requests = make_requests(prompts, config.rollouts_per_problem, recipe.seed, "held_out")
    sampling = SamplingParams(
        max_new_tokens=eval_max_new_tokens(recipe),
        temperature=config.temperature,
        stop_strings=config.stop_strings,
    )
    groups = scored_groups(engine, scorer, requests, sampling, policy)
    return _summarize(groups, config, time.perf_counter() - start), groups


def eval_max_new_tokens(recipe: Recipe) -> int:
    """Return the recipe's value, or the largest max_new_tokens of its RL stages."""
    from_stages = [stage.sampling.max_new_tokens for stage in recipe.stages if isinstance(stage, RlStage)]
    return recipe.evaluation.max_new_tokens or max(from_stages, default=256)


def _summarize(groups: Sequence[ScoredGroup], config: EvaluationConfig, seconds: float) -> EvalRecord:
    shares = [group.pass_rate for group in groups if group.pass_rate is not None]
    scores = [score for scored in groups for score in scored.scores]
    rollouts = [rollout for scored in groups for rollout in scored.group.rollouts]
    # One completion per problem gives a plain share; several give a mean over problems of shares.
    is_plain = config.rollouts_per_problem == 1
    low, high = wilson_interval(sum(shares), len(shares)) if is_plain else mean_interval(shares)
    return EvalRecord(
        step=0,
        stage="",
        pass_at_1=mean(shares),
        low=low,
        high=high,
        num_problems=len(groups),
        rollouts_per_problem=config.rollouts_per_problem,
        temperature=config.temperature,
        mean_reward=mean([score.reward for score in scores if not score.is_error]),
        mean_tokens=mean([len(rollout.token_ids) for rollout in rollouts]),
        seconds=seconds,
        **outcome_shares(rollouts, scores),
    )
