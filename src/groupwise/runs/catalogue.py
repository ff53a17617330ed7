"""Every metric that a run may record, declared once: its name, its unit and its meaning; and the charts of them.

Contract: names are `area/name_unit`. The writer refuses a name that is not here, so every name in metrics.jsonl has a
meaning; docs, report captions and tooltips read it from here. A family is declared by its prefix and covers any name
below it (`reward/part/` covers `reward/part/format`). Nothing here measures anything.

Units: "share" is between 0 and 1, "count" a whole number, "" a plain number.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


class UndeclaredMetric(LookupError):
    """A metric name that is not in the catalogue."""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """`area/name_unit`; the name of a family ends in "/"."""
    unit: str
    meaning: str
    """One line without a full stop at the end."""

    @property
    def is_family(self) -> bool:
        return self.name.endswith("/")


_DECLARED: tuple[tuple[str, str, str], ...] = (
    ("reward/mean", "", "Mean training reward of the step's rollouts, without errors"),
    ("reward/std", "", "Standard deviation of the training rewards"),
    ("reward/part/", "", "Mean of one named part of the score, before weighting"),
    ("reward/format_bonus_scale", "", "Factor of the format bonus in this step"),
    ("score/pass_at_1", "share", "Share of training rollouts that are correct, without errors"),
    ("score/correct_share", "share", "Share of all rollouts with a correct answer"),
    ("score/wrong_share", "share", "Share of all rollouts with a wrong answer"),
    ("score/unparsed_share", "share", "Share of all rollouts in which no answer was found"),
    ("score/error_share", "share", "Share of all rollouts that could not be scored, without time-outs"),
    ("score/timed_out_share", "share", "Share of all rollouts whose scoring timed out"),
    ("score/process_mean", "share", "Mean score of the reasoning, over the rollouts that have one"),
    ("groups/count", "count", "Groups sampled in the step, including those that were replaced"),
    ("groups/signal_share", "share", "Share of groups whose rewards differ; only those teach anything"),
    ("groups/dead_all_correct", "count", "Zero-variance groups in which all rollouts are correct"),
    ("groups/dead_all_wrong", "count", "Zero-variance groups in which no rollout is correct"),
    (
        "groups/signal_all_wrong",
        "count",
        "All-wrong groups with signal: they teach format and partial credit",
    ),
    ("groups/refilled", "count", "Zero-variance groups that were replaced by groups of other problems"),
    ("groups/extra_rollouts", "count", "Rollouts added to groups that had no signal"),
    ("rollouts/count", "count", "Rollouts sampled in the step, including those of replaced groups"),
    ("rollouts/truncated_share", "share", "Share of rollouts cut off at the length limit"),
    ("rollouts/length_mean_tokens", "tokens", "Mean length of a completion"),
    ("rollouts/length_max_tokens", "tokens", "Length of the longest completion"),
    ("rollouts/identical_share", "share", "Share of rollouts with the same text as another rollout of their group"),
    ("policy/loss", "", "Loss of the step, mean over its updates; near 0 is normal for GRPO while a gradient flows"),
    ("policy/grad_norm", "", "Gradient norm before clipping, mean over updates"),
    ("policy/learning_rate", "", "Learning rate of the step's last update"),
    ("policy/entropy_nats", "nats", "Mean entropy of the next-token distribution over completion tokens"),
    ("policy/entropy_bonus", "", "Factor of the entropy in the loss"),
    (
        "policy/router_imbalance",
        "",
        "Load-balancing loss of the routers, mean over layers; balanced ones have the number of experts per token",
    ),
    ("policy/ratio_mean", "", "Mean over tokens of the probability now, divided by the one before the update"),
    ("policy/ratio_max", "", "Largest such ratio"),
    ("policy/clip_low_share", "share", "Share of tokens whose ratio is clipped from below"),
    ("policy/clip_high_share", "share", "Share of tokens whose ratio is clipped from above"),
    ("policy/clip_share", "share", "Share of tokens whose ratio is clipped at either end"),
    ("policy/approx_kl", "nats", "KL from the policy before the update to the policy now, k3 estimate"),
    ("policy/importance_weight_mean", "", "Mean weight that corrects for the engine's own probabilities"),
    ("policy/importance_zero_share", "share", "Share of tokens whose such weight is 0"),
    ("policy/off_policy_share", "share", "Share of tokens that loss.off_policy_mask drops"),
    ("policy/learned_share", "share", "Share of tokens that `entropy` leaves in the surrogate"),
    ("kl/ref_k1", "nats", "KL from the reference, k1 estimate (mean log ratio: unbiased, may be negative)"),
    ("kl/ref_k2", "nats", "KL from the reference, k2 estimate (half the squared log ratio)"),
    ("kl/ref_k3", "nats", "KL from the reference, k3 estimate (unbiased, never negative)"),
    ("kl/coefficient", "", "Factor of the KL in the loss or in the reward"),
    ("engine/logprob_gap_mean", "nats", "Mean absolute difference between the logprobs of engine and trainer"),
    ("engine/logprob_gap_max", "nats", "Largest such difference"),
    ("engine/tokens_per_s", "tokens/s", "Completion tokens sampled per second"),
    ("update/count", "count", "Optimizer updates in the step"),
    ("update/skipped", "count", "Updates skipped because loss or gradient was not finite"),
    ("update/tokens", "tokens", "Completion tokens with a non-zero weight in the step's loss"),
    ("sft/loss", "nats", "Mean negative log-likelihood of a demonstration token"),
    ("sft/demonstrations", "count", "Demonstrations in the step's batch"),
    ("curriculum/level_mean", "", "Mean level of the step's problems"),
    ("curriculum/pass_rate_mean", "share", "Mean running pass rate of all problems measured so far"),
    ("time/sample_s", "s", "Time spent sampling rollouts"),
    ("time/score_s", "s", "Time spent waiting for scores"),
    ("time/logprobs_s", "s", "Time spent on old and reference logprobs"),
    ("time/update_s", "s", "Time spent on optimizer updates"),
    ("time/tokens_s", "s", "Time spent recording what the step did to each token, in steps that do so"),
    ("time/eval_s", "s", "Time spent on held-out evaluation since the step before"),
    ("time/checkpoint_s", "s", "Time spent writing checkpoints since the step before"),
    ("time/step_s", "s", "Time of the whole step"),
    ("memory/peak_bytes", "bytes", "Peak memory of the device during the step"),
    ("tokens/total", "tokens", "Completion tokens sampled for training since the run began"),
    ("eval/pass_at_1", "share", "Held-out problems: mean share of correct completions, without errors"),
    ("eval/pass_at_1_low", "share", "Lower end of the 95 % interval of eval/pass_at_1, over problems"),
    ("eval/pass_at_1_high", "share", "Upper end of the 95 % interval of eval/pass_at_1, over problems"),
    ("eval/mean_reward", "", "Held-out problems: mean reward"),
    ("eval/mean_tokens", "tokens", "Held-out problems: mean length of a completion"),
    ("eval/truncated_share", "share", "Held-out problems: share of completions cut off at the length limit"),
    ("eval/unparsed_share", "share", "Held-out problems: share of completions in which no answer was found"),
    ("eval/error_share", "share", "Held-out problems: share of completions that could not be scored"),
    ("eval/timed_out_share", "share", "Held-out problems: share of completions whose scoring timed out"),
)

METRICS: dict[str, Metric] = {row[0]: Metric(*row) for row in _DECLARED}
"""All metrics by name, in the order in which a report shows them. Families are keyed by their prefix."""


def metric(name: str) -> Metric:
    """Return the declaration that covers `name`: its own, or that of its family."""
    if name in METRICS and not name.endswith("/"):
        return METRICS[name]
    for family in METRICS.values():
        if family.is_family and name.startswith(family.name) and len(name) > len(family.name):
            return family
    close = difflib.get_close_matches(name, METRICS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "declare it in groupwise/runs/catalogue.py"
    raise UndeclaredMetric(f"metric {name!r} is not declared; {hint}")


Place = Literal["report", "dashboard", "sweep"]


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """A chart of metrics over steps, wherever it is shown."""

    name: str
    title: str
    metrics: Mapping[str, str]
    """The name of each line, by metric. A chart of several runs shows one line of each."""
    shown_in: tuple[Place, ...] = ("report", "dashboard")
    kind: Literal["line", "points", "stack"] = "line"
    """points: values with marks, as evaluations are few. stack: lines on top of each other."""
    share_of: str = ""
    """The metric that the values are divided by: counts become shares."""
    may_be_log: bool = False
    """The axis of values may be logarithmic."""
    caption: str = ""
    """Text after the meaning of the first metric; with `share_of`, in place of it."""
    unit: str = field(default="", init=False)
    """As in `Metric`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", "share" if self.share_of else METRICS[next(iter(self.metrics))].unit)


_EVERYWHERE: tuple[Place, ...] = ("report", "dashboard", "sweep")
_TIMES = ("sample", "score", "logprobs", "update", "tokens", "eval", "checkpoint")

CHARTS: tuple[ChartSpec, ...] = (
    ChartSpec("pass_at_1", "Held-out pass@1", {"eval/pass_at_1": "pass@1"}, _EVERYWHERE, "points"),
    ChartSpec("reward", "Training reward", {"reward/mean": "reward"}, _EVERYWHERE),
    ChartSpec(
        "loss",
        "Loss",
        {"policy/loss": "loss"},
        ("report",),
        caption="With one update per step it stays near 0: the advantages of a group add up to 0, but the gradient "
        "does not. Look at reward and pass@1 instead",
    ),
    ChartSpec("sft_loss", "SFT loss", {"sft/loss": "loss"}),
    ChartSpec("kl", "KL from the reference", {"kl/ref_k3": "KL"}, _EVERYWHERE, may_be_log=True),
    ChartSpec("step_kl", "KL of the step's updates", {"policy/approx_kl": "KL"}, _EVERYWHERE, may_be_log=True),
    ChartSpec(
        "clip",
        "Clipped tokens",
        {"policy/clip_share": "clipped"},
        _EVERYWHERE,
        caption="With one update per step it is always 0",
    ),
    ChartSpec("entropy", "Entropy", {"policy/entropy_nats": "entropy"}),
    ChartSpec("grad_norm", "Gradient norm", {"policy/grad_norm": "norm"}, _EVERYWHERE, may_be_log=True),
    ChartSpec(
        "length", "Completion length", {"rollouts/length_mean_tokens": "mean", "rollouts/length_max_tokens": "longest"}
    ),
    ChartSpec(
        "dead_groups",
        "Zero-variance groups",
        {"groups/dead_all_wrong": "all wrong", "groups/dead_all_correct": "all correct"},
        share_of="groups/count",
        caption="Share of the step's groups whose rewards are all equal: they teach nothing",
    ),
    ChartSpec(
        "partial_groups",
        "Groups that teach without a right answer",
        {"groups/signal_all_wrong": "all wrong"},
        ("report",),
        share_of="groups/count",
        caption="Share of the step's groups whose rewards differ although no answer is right: they teach format and "
        "partial credit",
    ),
    ChartSpec("time", "Where the time goes", {f"time/{name}_s": name for name in _TIMES}, kind="stack"),
    ChartSpec("speed", "Sampling speed", {"engine/tokens_per_s": "tokens per second"}, ("dashboard",)),
    ChartSpec("memory", "Peak memory", {"memory/peak_bytes": "peak"}, ("dashboard",)),
)
"""Every chart of training metrics, in the order in which they are shown."""
