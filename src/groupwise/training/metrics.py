"""Metrics of a step: of its rollouts and of its updates. runs/catalogue declares the names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from groupwise.algo.schedules import falling
from groupwise.base.stats import mean, std
from groupwise.config import RewardConfig
from groupwise.scoring.credit import is_truncated
from groupwise.types import ScoredGroup, UpdateStats, Verdict


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
    num_judged = sum(not score.is_error for score in scores)
    metrics = {
        "reward/mean": mean(rewards) if rewards else 0.0,
        "reward/std": std(rewards) if rewards else 0.0,
        "reward/format_bonus_scale": falling(stage_step, reward.format_anneal_steps),
        "score/pass_at_1": verdicts[Verdict.CORRECT] / max(num_judged, 1),
        "score/correct_share": verdicts[Verdict.CORRECT] / len(scores),
        "score/wrong_share": verdicts[Verdict.WRONG] / len(scores),
        "score/unparsed_share": verdicts[Verdict.UNPARSED] / len(scores),
        "score/error_share": verdicts[Verdict.ERROR] / len(scores),
        "score/timed_out_share": verdicts[Verdict.TIMED_OUT] / len(scores),
        "groups/count": float(len(sampled)),
        "groups/signal_share": 1 - len(dead) / len(sampled),
        "groups/dead_all_correct": float(dead.count(1.0)),
        "groups/dead_all_wrong": float(dead.count(0.0)),
        "groups/signal_all_wrong": float(sum(scored.has_signal and scored.pass_rate == 0 for scored in sampled)),
        "groups/refilled": float(len(set_aside)),
        "rollouts/count": float(len(rollouts)),
        "rollouts/truncated_share": mean([float(is_truncated(rollout)) for rollout in rollouts]),
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
    parts: dict[str, list[float]] = {}
    num_judged = 0
    for scored in groups:
        for score in scored.scores:
            if score.is_error:
                continue
            num_judged += 1
            for name, value in score.parts.items():
                parts.setdefault(name, []).append(value)
    return {f"reward/part/{name}": sum(values) / num_judged for name, values in sorted(parts.items())}


def _level_mean(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    levels = [scored.group.prompt.problem.meta.get("level") for scored in groups]
    numbers = [float(level) for level in levels if isinstance(level, (int, float))]
    return {"curriculum/level_mean": mean(numbers)} if numbers else {}
