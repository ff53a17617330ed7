"""What a step records: metrics of its rollouts and its updates, and its effect on each token.

`groupwise.runs.catalogue` declares the names of the metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from groupwise.algo.losses import kl_estimate
from groupwise.base.stats import mean, std
from groupwise.config import RewardConfig
from groupwise.data.batch import Example, StepBatch
from groupwise.models.chat import Pieces
from groupwise.models.policy import Policy
from groupwise.scoring.credit import falling, is_truncated
from groupwise.types import GroupTrace, ScoredGroup, TokenTrace, UpdateStats, Verdict

DECIMALS = 5
"""Precision of a traced value, for a colour and a tooltip; more would double the file."""


def rollout_metrics(
    groups: Sequence[ScoredGroup], set_aside: Sequence[ScoredGroup], reward: RewardConfig, stage_step: int
) -> dict[str, float]:
    """Compute metrics over everything that was sampled. Without replaced groups, the policy would look too good."""
    sampled = [*groups, *set_aside]
    rollouts = [rollout for scored in sampled for rollout in scored.group.rollouts]
    scores = [score for scored in sampled for score in scored.scores]
    rewards = [
        value
        for scored in sampled
        for value, score in zip(scored.rewards, scored.scores, strict=True)
        if not score.is_error
    ]
    verdicts = Counter(score.verdict for score in scores)
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    distinct = sum(len({rollout.text for rollout in scored.group.rollouts}) for scored in sampled)
    dead = [scored.pass_rate for scored in sampled if not scored.has_signal]
    metrics = {
        "reward/mean": mean(rewards) if rewards else 0.0,
        "reward/std": std(rewards) if rewards else 0.0,
        "reward/format_bonus_scale": falling(stage_step, reward.format_anneal_steps),
        "score/pass_at_1": verdicts[Verdict.CORRECT] / max(len(rewards), 1),
        **{f"score/{verdict}_share": verdicts[verdict] / len(scores) for verdict in Verdict},
        "groups/count": float(len(sampled)),
        "groups/signal_share": 1 - len(dead) / len(sampled),
        "groups/dead_all_correct": float(dead.count(1.0)),
        "groups/dead_all_wrong": float(dead.count(0.0)),
        "groups/signal_all_wrong": float(sum(scored.has_signal and scored.pass_rate == 0 for scored in sampled)),
        "groups/refilled": float(len(set_aside)),
        "rollouts/count": float(len(rollouts)),
        "rollouts/truncated_share": mean([is_truncated(rollout) for rollout in rollouts]),
        "rollouts/length_mean_tokens": mean(lengths),
        "rollouts/length_max_tokens": float(max(lengths)),
        "rollouts/identical_share": 1 - distinct / len(rollouts),
    }
    process = [score.process for score in scores if score.process is not None]
    if process:
        metrics["score/process_mean"] = mean(process)
    return metrics | _part_means(sampled) | _level_mean(sampled)


def update_metrics(updates: Sequence[UpdateStats]) -> dict[str, float]:
    """Combine the updates of the step: token-weighted means, largest maxima. Skipped updates are only counted."""
    done = [stats for stats in updates if stats.is_finite and stats.num_tokens]
    metrics = {
        "update/count": float(len(done)),
        "update/skipped": float(sum(not stats.is_finite for stats in updates)),
        "update/tokens": float(sum(stats.num_tokens for stats in done)),
        "time/update_s": sum(stats.seconds for stats in updates),
    }
    if updates:
        metrics["policy/learning_rate"] = updates[-1].learning_rate
    if not done:
        return metrics
    metrics["policy/loss"] = mean([stats.loss for stats in done])
    metrics["policy/grad_norm"] = mean([stats.grad_norm for stats in done])
    for name in done[0].means:
        values = [stats.means[name] for stats in done]
        if name.endswith("_max"):
            metrics[name] = max(values)
        else:
            weighted = sum(value * stats.num_tokens for value, stats in zip(values, done, strict=True))
            metrics[name] = weighted / metrics["update/tokens"]
    return metrics


def _part_means(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    judged = [score.parts for scored in groups for score in scored.scores if not score.is_error]
    names = sorted({name for parts in judged for name in parts})
    return {f"reward/part/{name}": sum(parts.get(name, 0.0) for parts in judged) / len(judged) for name in names}


def _level_mean(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    levels = [scored.group.prompt.problem.meta.get("level") for scored in groups]
    numbers = [float(level) for level in levels if isinstance(level, (int, float))]
    return {"curriculum/level_mean": mean(numbers)} if numbers else {}


def trace_tokens(policy: Policy, batch: StepBatch, temperature: float, max_tokens: int) -> list[GroupTrace]:
    """Measure the rollouts once more after the updates. Return a trace per group, in order, on all ranks.

    The ratio compares the policies after and before the whole step, so it is informative even if a step is one update,
    where the ratio in the loss is 1 by definition. The policy is not changed, and no random numbers are used.
    """
    measured = policy.measure(batch.examples, temperature, max_tokens)
    pieces = Pieces(policy.tokenizer)
    rows = {
        example.member: _trace(example, logprobs, entropies, pieces)
        for example, (logprobs, entropies) in zip(batch.examples, measured, strict=True)
    }
    return [
        GroupTrace(
            problem_id=scored.group.prompt.problem.id,
            rollouts=tuple(rows.get((index, number)) for number in range(len(scored.scores))),
        )
        for index, scored in enumerate(batch.groups)
    ]


def _trace(example: Example, now: Tensor, entropies: Tensor, pieces: Pieces) -> TokenTrace:
    # With a single update the trainer's old logprobs are not computed. The engine's are of the same policy.
    before = example.rollout_logprobs if example.old_logprobs is None else example.old_logprobs
    assert before is not None
    divergence = None if example.ref_logprobs is None else kl_estimate("k3", now, example.ref_logprobs)
    return TokenTrace(
        pieces=pieces.of(example.completion_ids),
        logprobs=_rounded(before),
        ratios=_rounded((now - before).exp()),
        divergences=None if divergence is None else _rounded(divergence),
        entropies=_rounded(entropies),
    )


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(values.double().round(decimals=DECIMALS).tolist())
