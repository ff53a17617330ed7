"""The charts of a report as data: the page, the plots for papers and the CSV files are all drawn from these.

Contract: a chart has the same lines for each run that measured them, in the order of the runs. A value that is not
known is NaN here and a gap in the picture. A run with more steps than there is room for is shown as means over
neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groupwise.runs.catalogue import METRICS
from groupwise.web.report.behaviours import BEHAVIOURS
from groupwise.web.report.digest import StepDigest
from groupwise.web.report.inputs import RunSource

MAX_POINTS = 1000
"""Of one line. Several runs share them, down to `MIN_POINTS` each."""
MIN_POINTS = 200
EXPLODES = 1000
"""Times the median: such values are drawn on a logarithmic axis."""
LOG_CAPTION = "Logarithmic; 0 is drawn at the foot"
DIGITS = 5
"""Of a number in the page: more cannot be seen, and would be most of its size."""
Smoother = Callable[[Sequence[float]], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Line:
    run: int
    """Which of the report's runs."""
    name: str
    """Which of the chart's lines; the title where there is one alone."""
    x: tuple[float, ...]
    y: tuple[float, ...]
    smooth: tuple[float, ...] = ()
    """Empty where the values themselves are shown."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    colour: str = field(default="", kw_only=True)
    """"0" to "7" of the palette, "q0" to "q8" of the one for ordered values; by default by the place of the line."""


@dataclass(frozen=True, slots=True)
class Chart:
    name: str
    title: str
    caption: str
    unit: str
    """As in the catalogue: "share" is shown in per cent."""
    lines: tuple[Line, ...]
    kind: str = "line"
    """line, points (values with marks: evaluations are few) or stack (lines on top of each other)."""
    is_log: bool = False
    """Whether the values' axis is logarithmic; what is not above 0 is then drawn at its foot."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "kind": self.kind,
            **({"is_log": True} if self.is_log else {}),
            "lines": [
                {"run": line.run, "name": line.name}
                | ({"colour": line.colour} if line.colour else {})
                | {
                    key: [_rounded(value) for value in values]
                    for key in ("x", "y", "smooth", "low", "high")
                    if (values := getattr(line, key))
                }
                for line in self.lines
            ],
        }


@dataclass(frozen=True, slots=True)
class Spec:
    """A chart that is drawn from the metrics of the steps."""

    name: str
    title: str
    metrics: Mapping[str, str]
    """The names of its lines, by metric."""
    caption: str = ""
    """What to add to the meaning of the first metric that is drawn."""
    share_of: str = ""
    """The metric that the values are divided by: counts become shares."""
    unit: str = ""
    kind: str = "line"
    may_be_log: bool = False


CURVES: tuple[Spec, ...] = (
    Spec("reward", "Training reward", {"reward/mean": "reward"}),
    Spec(
        "loss",
        "Loss",
        {"policy/loss": "loss"},
        "In GRPO it is zero at first, and with one update a step it stays there: advantages of a group add up to 0. "
        "The gradient does not. Look at reward and pass@1 instead",
    ),
    Spec("sft_loss", "SFT loss", {"sft/loss": "loss"}),
    Spec(
        "kl",
        "KL divergence",
        {"kl/ref_k3": "from the reference", "policy/approx_kl": "of one step's updates"},
        may_be_log=True,
    ),
    Spec("clip", "Clipped tokens", {"policy/clip_share": "clipped"}, "With one update a step it is 0, as it should be"),
    Spec("entropy", "Entropy", {"policy/entropy_nats": "entropy"}),
    Spec("grad_norm", "Gradient norm", {"policy/grad_norm": "norm"}, may_be_log=True),
    Spec(
        "length",
        "Completion length",
        {"rollouts/length_mean_tokens": "mean", "rollouts/length_max_tokens": "longest"},
    ),
    Spec(
        "dead_groups",
        "Dead groups",
        {"groups/dead_all_wrong": "all wrong", "groups/dead_all_correct": "all correct"},
        "Groups whose rewards are all equal, as a share of those sampled: they teach nothing",
        share_of="groups/count",
        unit="share",
    ),
    Spec(
        "partial_groups",
        "Groups that teach without a right answer",
        {"groups/signal_all_wrong": "all wrong"},
        "Groups whose rewards differ although no answer is right, as a share of those sampled: they teach format and "
        "partial credit",
        share_of="groups/count",
        unit="share",
    ),
)
TIME_PARTS = {
    "time/sample_s": "sampling",
    "time/score_s": "scoring",
    "time/logprobs_s": "logprobs",
    "time/update_s": "updates",
}


def curves(runs: Sequence[RunSource]) -> list[Chart]:
    """The training curves that any of the runs measured; held-out pass@1 comes second."""
    charts = [chart for chart in (_from_metrics(spec, runs) for spec in CURVES) if chart.lines]
    held_out = pass_at_1(runs)
    if held_out.lines:
        charts.insert(1 if charts and charts[0].name == "reward" else 0, held_out)
    charts += [chart for chart in (_time_split(runs),) if chart.lines]
    return charts


def pass_at_1(runs: Sequence[RunSource]) -> Chart:
    lines = []
    for number, run in enumerate(runs):
        records = [record for record in run.evals if math.isfinite(record.pass_at_1)]
        if records:
            lines.append(
                Line(
                    run=number,
                    name="pass@1",
                    x=tuple(record.step for record in records),
                    y=tuple(record.pass_at_1 for record in records),
                    low=tuple(record.low for record in records),
                    high=tuple(record.high for record in records),
                )
            )
    caption = METRICS["eval/pass_at_1"].meaning + ". Band: 95 % interval over problems"
    return Chart("pass_at_1", "Held-out pass@1", caption, "share", tuple(lines), "points")


def behaviour_chart(runs: Sequence[RunSource]) -> Chart:
    """How many of a step's completions show each sign."""
    getters = {
        behaviour.title: _share_getter(behaviour.name)
        for behaviour in BEHAVIOURS
        if any(step.counts[behaviour.name] for run in runs for step in run.digest.steps)
    }
    caption = "Share of the training completions of a step in which the words of a sign occur"
    return Chart("behaviours", "Signs of reasoning", caption, "share", _from_digests(runs, getters))


def length_chart(runs: Sequence[RunSource]) -> Chart:
    getters: dict[str, Callable[[StepDigest], float]] = {
        "correct": lambda step: step.tokens_correct,
        "wrong": lambda step: step.tokens_wrong,
    }
    caption = "Mean length of the training completions of a step that are correct, and of those that are wrong"
    return Chart("length_by_verdict", "Length by verdict", caption, "tokens", _from_digests(runs, getters))


def spread_chart(runs: Sequence[RunSource]) -> Chart:
    lines = []
    for number, run in enumerate(runs):
        steps = run.digest.steps
        if steps:
            columns = [
                tuple(float(value) for value in values)
                for values in (
                    [step.step for step in steps],
                    [step.tokens_mean for step in steps],
                    [step.tokens_low for step in steps],
                    [step.tokens_high for step in steps],
                )
            ]
            x, y, low, high = (thinned(column, len(runs)) for column in columns)
            lines.append(Line(number, "mean", x, y, smooth(y), low, high))
    caption = "Mean length of the training completions of a step. Band: from the shortest tenth to the longest tenth"
    return Chart("length_spread", "Spread of lengths", caption, "tokens", tuple(lines))


def _share_getter(name: str) -> Callable[[StepDigest], float]:
    return lambda step: step.counts[name] / step.num_rollouts


def _from_digests(runs: Sequence[RunSource], getters: Mapping[str, Callable[[StepDigest], float]]) -> tuple[Line, ...]:
    lines = []
    for number, run in enumerate(runs):
        for name, getter in getters.items():
            values = tuple(getter(step) for step in run.digest.steps)
            if any(map(math.isfinite, values)):
                steps = tuple(step.step for step in run.digest.steps)
                x, y = thinned(steps, len(runs)), thinned(values, len(runs))
                lines.append(Line(number, name, x, y, smooth(y)))
    return tuple(lines)


def _from_metrics(spec: Spec, runs: Sequence[RunSource]) -> Chart:
    lines = _lines_of(spec, runs, smooth)
    is_log = spec.may_be_log and _explodes(lines)
    if is_log:
        lines = _lines_of(spec, runs, smooth_logs)
    drawn = {line.name for line in lines}
    first = METRICS[next((metric for metric, name in spec.metrics.items() if name in drawn), next(iter(spec.metrics)))]
    parts = ["" if spec.share_of else first.meaning, spec.caption, LOG_CAPTION if is_log else ""]
    meaning = ". ".join(filter(None, parts))
    return Chart(spec.name, spec.title, meaning, spec.unit or first.unit, tuple(lines), spec.kind, is_log)


def _lines_of(spec: Spec, runs: Sequence[RunSource], smoother: Smoother) -> list[Line]:
    lines: list[Line] = []
    for number in range(len(runs)):
        for metric, name in spec.metrics.items():
            lines += _metric_line(number, runs, metric, name, spec.share_of, smoother)
    return lines


def _explodes(lines: Sequence[Line]) -> bool:
    """Whether the largest value of something would leave its others no room above 0."""
    for name in {line.name for line in lines}:
        values = sorted(value for line in lines if line.name == name for value in line.y if math.isfinite(value))
        if values and values[-1] > EXPLODES * abs(values[len(values) // 2]) > 0:
            return True
    return False


def _metric_line(
    number: int, runs: Sequence[RunSource], metric: str, name: str, share_of: str, smoother: Smoother
) -> list[Line]:
    """One line, or none where the run did not measure it. Where a stage did not, there is a gap."""
    run = runs[number]
    # A supervised stage's loss is there under two names, and has a chart of its own.
    records = [
        r for r in run.steps if metric in r.metrics and not (metric == "policy/loss" and "sft/loss" in r.metrics)
    ]
    if share_of:
        records = [record for record in records if record.metrics.get(share_of)]
    values = [r.metrics[metric] / r.metrics[share_of] if share_of else r.metrics[metric] for r in records]
    if not any(map(math.isfinite, values)):
        return []
    if metric == "policy/approx_kl" and not any(values):
        return []  # one update a step: 0 by construction, and it would hide the KL from the reference
    smoothed: list[float] = []
    for stage in dict.fromkeys(record.stage for record in records):
        part = [value for record, value in zip(records, values, strict=True) if record.stage == stage]
        smoothed += smoother(part)
    columns = [tuple(float(record.step) for record in records), tuple(values), tuple(smoothed)]
    return [Line(number, name, *(thinned(column, len(runs)) for column in columns))]


def _time_split(runs: Sequence[RunSource]) -> Chart:
    """Of the first run alone: stacks of several cannot be overlaid. The section on cost has the sums of all."""
    lines: list[Line] = []
    for metric, name in TIME_PARTS.items():
        lines += _metric_line(0, runs, metric, name, "", smooth) if runs else []
    # A stack needs all its parts at each step.
    steps = sorted({x for line in lines for x in line.x})
    filled = []
    for line in lines:
        known = dict(zip(line.x, line.smooth, strict=True))
        filled.append(Line(0, line.name, tuple(steps), tuple(known.get(step, 0.0) for step in steps)))
    caption = "Seconds of a step by what they were spent on, smoothed"
    if len(runs) > 1:
        caption += f"; of {runs[0].label}"
    return Chart("time", "Time of a step", caption, "s", tuple(filled), "stack")


def smooth(values: Sequence[float], min_reach: int = 2) -> tuple[float, ...]:
    """A centred mean, so that the line does not lag behind; unknown values are left out; shorter at the ends."""
    reach = max(min_reach, len(values) // 50)
    means = []
    for index in range(len(values)):
        window = [value for value in values[max(0, index - reach) : index + reach + 1] if math.isfinite(value)]
        means.append(math.fsum(window) / len(window) if window else math.nan)
    return tuple(means)


def smooth_logs(values: Sequence[float]) -> tuple[float, ...]:
    """The same for a logarithmic axis, on which a mean of the values would show the largest of them alone."""
    logs = smooth([math.log(value) if value > 0 else math.nan for value in values])
    return tuple(map(math.exp, logs))


def thinned(values: Sequence[float], num_runs: int = 1) -> tuple[float, ...]:
    """As many values as a line has room for: means over equally many neighbours."""
    size = math.ceil(len(values) / max(MIN_POINTS, MAX_POINTS // num_runs)) or 1
    if size == 1:
        return tuple(values)
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    known = [[value for value in part if math.isfinite(value)] for part in parts]
    return tuple(math.fsum(part) / len(part) if part else math.nan for part in known)


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() else short
