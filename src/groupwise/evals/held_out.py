"""Held-out pass@1 during training, with its interval.

The random streams depend on the seed and the problem alone. So every evaluation of a run has the same problems and
streams, and differences between evaluations come from the policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from groupwise.base.stats import mean, mean_interval, wilson_interval
from groupwise.config import Recipe, RlStage
from groupwise.engines.engine import Engine
from groupwise.evals.draw import make_requests, scored_group
from groupwise.models.chat import Prompts
from groupwise.models.policy import Policy
from groupwise.scoring.credit import is_truncated
from groupwise.scoring.rollouts import Clock, sample_and_score
from groupwise.scoring.scorer import Scorer
from groupwise.types import EvalRecord, Problem, SamplingParams, ScoredGroup, Verdict


def evaluate(
    recipe: Recipe,
    scorer: Scorer,
    problems: Sequence[Problem],
    policy: Policy,
    engine: Engine,
    prompts: Prompts,
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[EvalRecord, list[ScoredGroup]]:
    """Evaluate. Return (the record, whose step and stage the caller sets, what was sampled).

    `interruptible` wraps the sampling only: a signal must not interrupt the swap of weights and moving average.
    """
    start = time.perf_counter()
    config = recipe.evaluation
    asked = [prompts[problem] for problem in problems[: config.num_problems or None]]
    requests = make_requests(asked, config.rollouts_per_problem, recipe.seed, "held_out")
    sampling = SamplingParams(
        max_new_tokens=eval_max_new_tokens(recipe),
        temperature=config.temperature,
        stop_strings=config.stop_strings,
    )
    with policy.averaged() if config.use_ema else nullcontext(), interruptible():
        pairs = sample_and_score(engine, scorer, requests, sampling, policy.version, policy.world, Clock())
    groups = [scored_group(group, scores) for group, scores in pairs]
    return _summarize(groups, config.rollouts_per_problem, config.temperature, time.perf_counter() - start), groups


def eval_max_new_tokens(recipe: Recipe) -> int:
    """Return the recipe's value, or the largest max_new_tokens of its RL stages."""
    from_stages = [stage.sampling.max_new_tokens for stage in recipe.stages if isinstance(stage, RlStage)]
    return recipe.evaluation.max_new_tokens or max(from_stages, default=256)


def _summarize(groups: Sequence[ScoredGroup], num_rollouts: int, temperature: float, seconds: float) -> EvalRecord:
    shares = [group.pass_rate for group in groups if group.pass_rate is not None]
    scores = [score for scored in groups for score in scored.scores]
    rollouts = [rollout for scored in groups for rollout in scored.group.rollouts]
    judged = [score for score in scores if not score.is_error]
    # One completion per problem gives a plain share; several give a mean over problems of shares.
    low, high = wilson_interval(sum(shares), len(shares)) if num_rollouts == 1 else mean_interval(shares)
    return EvalRecord(
        step=0,
        stage="",
        pass_at_1=mean(shares),
        low=low,
        high=high,
        num_problems=len(groups),
        rollouts_per_problem=num_rollouts,
        temperature=temperature,
        mean_reward=mean([score.reward for score in judged]),
        mean_tokens=mean([len(rollout.token_ids) for rollout in rollouts]),
        truncated_share=mean([float(is_truncated(rollout)) for rollout in rollouts]),
        unparsed_share=mean([float(score.verdict is Verdict.UNPARSED) for score in scores]),
        error_share=mean([float(score.verdict is Verdict.ERROR) for score in scores]),
        timed_out_share=mean([float(score.verdict is Verdict.TIMED_OUT) for score in scores]),
        seconds=seconds,
    )
