"""Every metric that a run may record, declared once: its name, what it means, its unit.

Contract: names are `area/name_unit`. The writer refuses a name that is not here, so a meaning exists for whatever is
in metrics.jsonl; docs, report captions and tooltips read it from here. A family is declared by its prefix and covers
any name below it (`reward/part/` covers `reward/part/format`). Nothing here measures anything.

Units: "share" is between 0 and 1, "count" a whole number, "" a plain number.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass


class UndeclaredMetric(KeyError):
    """A metric name that is not in the catalogue."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would quote the whole sentence.
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """`area/name_unit`; a family's name ends in "/"."""
    meaning: str
    """One line, no full stop at the end."""
    unit: str = ""

    @property
    def is_family(self) -> bool:
        return self.name.endswith("/")


_DECLARED = (
    Metric("reward/mean", "Mean reward of the rollouts of the step, as the learner sees it; errors are left out"),
    Metric("reward/std", "Standard deviation of those rewards"),
    Metric("reward/part/", "Mean of one named part of the score, before weighting"),
    Metric("reward/format_bonus_scale", "What the format bonus is multiplied by at this step"),
    Metric("score/pass_at_1", "Share of training rollouts that are correct; errors are left out", "share"),
    Metric("score/correct_share", "Share of all rollouts whose verdict is correct", "share"),
    Metric("score/wrong_share", "Share of all rollouts whose verdict is wrong", "share"),
    Metric("score/unparsed_share", "Share of all rollouts in which no answer was found", "share"),
    Metric("score/error_share", "Share of all rollouts that we failed to score, time-outs apart", "share"),
    Metric("score/timed_out_share", "Share of all rollouts whose scoring ran out of time", "share"),
    Metric("score/process_mean", "Mean score of the reasoning, over the rollouts that have one", "share"),
    Metric("groups/count", "Groups sampled in the step, those set aside included", "count"),
    Metric(
        "groups/signal_share",
        "Share of groups whose rewards differ; a group that compares with itself learns nothing else",
        "share",
    ),
    Metric("groups/dead_all_correct", "Groups without signal in which all rollouts are correct", "count"),
    Metric("groups/dead_all_wrong", "Groups without signal in which no rollout is correct", "count"),
    Metric(
        "groups/signal_all_wrong",
        "Groups with signal in which no rollout is correct: what they teach is format and partial credit",
        "count",
    ),
    Metric("groups/refilled", "Groups without signal that were set aside for other problems' groups", "count"),
    Metric("groups/extra_rollouts", "Rollouts added to groups that showed no signal", "count"),
    Metric("rollouts/count", "Rollouts sampled in the step, those set aside included", "count"),
    Metric("rollouts/truncated_share", "Share of rollouts cut off at the length limit", "share"),
    Metric("rollouts/length_mean_tokens", "Mean length of a completion", "tokens"),
    Metric("rollouts/length_max_tokens", "Length of the longest completion", "tokens"),
    Metric("rollouts/identical_share", "Share of rollouts whose text another rollout of their group has too", "share"),
    Metric("policy/loss", "Loss of the step, mean over its updates; near 0 is normal for GRPO"),
    Metric("policy/grad_norm", "Norm of the gradient before clipping, mean over updates"),
    Metric("policy/learning_rate", "Learning rate that the last update used"),
    Metric("policy/entropy_nats", "Mean entropy of the next-token distribution over completion tokens", "nats"),
    Metric("policy/ratio_mean", "Mean over tokens of the probability now over that before the update"),
    Metric("policy/ratio_max", "Largest such ratio"),
    Metric("policy/clip_low_share", "Share of tokens whose ratio is clipped from below", "share"),
    Metric("policy/clip_high_share", "Share of tokens whose ratio is clipped from above", "share"),
    Metric("policy/clip_share", "Share of tokens whose ratio is clipped at either end", "share"),
    Metric("policy/approx_kl", "KL from the policy before the update to the policy now, k3 estimate", "nats"),
    Metric("policy/importance_weight_mean", "Mean weight that corrects for the engine's own probabilities"),
    Metric("kl/ref_k1", "KL from the reference, k1 estimate (mean log ratio: unbiased, may be negative)", "nats"),
    Metric("kl/ref_k2", "KL from the reference, k2 estimate (half the squared log ratio)", "nats"),
    Metric("kl/ref_k3", "KL from the reference, k3 estimate (unbiased, never negative)", "nats"),
    Metric("kl/coefficient", "What the KL is multiplied by, in the loss or in the reward"),
    Metric("engine/logprob_gap_mean", "Mean absolute difference of the engine's and the trainer's logprobs", "nats"),
    Metric("engine/logprob_gap_max", "Largest such difference", "nats"),
    Metric("engine/tokens_per_s", "Completion tokens sampled per second", "tokens/s"),
    Metric("update/count", "Optimizer updates made in the step", "count"),
    Metric("update/skipped", "Updates left out because loss or gradient was not finite", "count"),
    Metric("update/tokens", "Completion tokens with a non-zero weight in the step's loss", "tokens"),
    Metric("sft/loss", "Mean negative log-likelihood of a demonstration token", "nats"),
    Metric("sft/demonstrations", "Demonstrations in the step's batch", "count"),
    Metric("curriculum/level_mean", "Mean level of the problems of the step"),
    Metric("curriculum/pass_rate_mean", "Mean running pass rate of all problems measured so far", "share"),
    Metric("time/sample_s", "Time spent sampling rollouts", "s"),
    Metric("time/score_s", "Time spent waiting for scores", "s"),
    Metric("time/logprobs_s", "Time spent on old and reference logprobs", "s"),
    Metric("time/update_s", "Time spent on optimizer updates", "s"),
    Metric("time/tokens_s", "Time spent on recording what the step did to each token, in steps that do", "s"),
    Metric("time/eval_s", "Time spent on held-out problems since the step before", "s"),
    Metric("time/checkpoint_s", "Time spent writing checkpoints since the step before", "s"),
    Metric("time/step_s", "Time of the whole step", "s"),
    Metric("memory/peak_bytes", "Most memory the device held during the step", "bytes"),
    Metric("tokens/total", "Completion tokens sampled for training since the run began", "tokens"),
    Metric("eval/pass_at_1", "Held-out problems: mean share of correct completions; errors are left out", "share"),
    Metric("eval/pass_at_1_low", "Lower end of the 95 % interval of eval/pass_at_1, over problems", "share"),
    Metric("eval/pass_at_1_high", "Upper end of the 95 % interval of eval/pass_at_1, over problems", "share"),
    Metric("eval/mean_reward", "Held-out problems: mean reward"),
    Metric("eval/mean_tokens", "Held-out problems: mean length of a completion", "tokens"),
    Metric("eval/truncated_share", "Held-out problems: share of completions cut off at the length limit", "share"),
    Metric("eval/unparsed_share", "Held-out problems: share of completions in which no answer was found", "share"),
    Metric("eval/error_share", "Held-out problems: share of completions that we failed to score", "share"),
    Metric("eval/timed_out_share", "Held-out problems: share of completions whose scoring ran out of time", "share"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _DECLARED}
"""All of them by name, in the order in which a report shows them. Families are keyed by their prefix."""


def metric(name: str) -> Metric:
    """The declaration that covers `name`: its own, or that of its family."""
    if name in METRICS and not name.endswith("/"):
        return METRICS[name]
    for family in METRICS.values():
        if family.is_family and name.startswith(family.name) and len(name) > len(family.name):
            return family
    close = difflib.get_close_matches(name, METRICS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "declare it in groupwise/runlog/catalogue.py"
    raise UndeclaredMetric(f"metric {name!r} is not declared; {hint}")
