"""The charts of a report as data: the page, the plots for papers and the CSV files are all drawn from these.

Contract: a chart has the same lines for each run that recorded them, in the order of the runs. An unknown value is NaN
here and a gap in the chart. A long run is drawn as means over neighbouring steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, product
from operator import attrgetter
from typing import Any

from groupwise.runs.catalogue import CHARTS, METRICS, ChartSpec
from groupwise.runs.records import has_no_gradient
from groupwise.types import StepRecord
from groupwise.web.report.behaviours import BEHAVIOURS
from groupwise.web.report.digest import StepDigest
from groupwise.web.report.inputs import RunSource

MAX_POINTS = 1000
"""Maximum number of points of a line. Several runs share them, down to `MIN_POINTS` each."""
MIN_POINTS = 200
EXPLODES = 1000
"""A largest value of more than this many times the median calls for a logarithmic axis."""
LOG_CAPTION = "Logarithmic axis; 0 is drawn at the bottom"
DIGITS = 5
"""Significant digits of a number in the page: more cannot be seen, and would be most of its size."""
Smoother = Callable[[Sequence[float]], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Line:
    run: int
    """Index of the run in the report."""
    name: str
    """Name of the line within the chart."""
    x: tuple[float, ...]
    y: tuple[float, ...]
    smooth: tuple[float, ...] = ()
    """Empty when the values themselves are shown."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    colour: str = field(default="", kw_only=True)
    """Name in the palette, "0" to "7", or in the palette for ordered values, "q0" to "q8"; by default by position."""


@dataclass(frozen=True, slots=True)
class Chart:
    name: str
    title: str
    caption: str
    unit: str
    """As in the catalogue; a "share" is shown as a percentage."""
    lines: tuple[Line, ...]
    kind: str = "line"
    """line, points (values with marks, as evaluations are few) or stack (lines on top of each other)."""
    is_log: bool = False
    """Whether the value axis is logarithmic; values of 0 and below are then drawn at its bottom."""

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


def curves(runs: Sequence[RunSource]) -> list[Chart]:
    """Return the charts of the catalogue that any of the runs recorded."""
    charts = (_chart(spec, runs) for spec in CHARTS if "report" in spec.shown_in)
    return [chart for chart in charts if chart.lines]


def _chart(spec: ChartSpec, runs: Sequence[RunSource]) -> Chart:
    is_log = False
    if spec.kind == "points":
        lines = [line for number in range(len(runs)) for line in _eval_lines(number, runs[number], spec)]
    elif spec.kind == "stack":
        lines = _stack(spec, runs)
    else:
        lines = _metric_lines(spec, runs, smooth)
        is_log = spec.may_be_log and _explodes(lines)
        if is_log:
            lines = _metric_lines(spec, runs, smooth_logs)
    return Chart(spec.name, spec.title, _caption(spec, runs, is_log), spec.unit, tuple(lines), spec.kind, is_log)


def _caption(spec: ChartSpec, runs: Sequence[RunSource], is_log: bool) -> str:
    parts = ["" if spec.share_of else METRICS[next(iter(spec.metrics))].meaning, spec.caption]
    if spec.name == "loss" and all(has_no_gradient(r) for run in runs for r in run.steps if "reward/mean" in r.metrics):
        parts.pop()  # it says that a loss of 0 is normal
    if spec.kind == "points":
        parts.append("Band: 95 % interval over problems")
    if spec.kind == "stack":
        parts = ["Seconds of each step, smoothed" + (f" ({runs[0].label})" if len(runs) > 1 else "")]
    return ". ".join(filter(None, [*parts, LOG_CAPTION if is_log else ""]))


def _eval_lines(number: int, run: RunSource, spec: ChartSpec) -> list[Line]:
    records = [record for record in run.evals if math.isfinite(record.pass_at_1)]
    columns = (tuple(getattr(r, name) for r in records) for name in ("step", "pass_at_1", "low", "high"))
    x, y, low, high = columns
    return [Line(number, name, x, y, low=low, high=high) for name in spec.metrics.values()] if records else []


def behaviour_chart(runs: Sequence[RunSource]) -> Chart:
    """Return the share of each step's completions that show each sign."""
    getters = {
        behaviour.title: partial(_share_with, behaviour.name)
        for behaviour in BEHAVIOURS
        if any(step.counts[behaviour.name] for run in runs for step in run.digest.steps)
    }
    caption = "Share of a step's training completions that contain the words of a sign"
    return Chart("behaviours", "Signs of reasoning", caption, "share", _from_digests(runs, getters))


def _share_with(sign: str, step: StepDigest) -> float:
    return step.counts[sign] / step.num_rollouts


def length_chart(runs: Sequence[RunSource]) -> Chart:
    getters = {"correct": attrgetter("tokens_correct"), "wrong": attrgetter("tokens_wrong")}
    caption = "Mean length of a step's correct and wrong training completions"
    return Chart("length_by_verdict", "Length by verdict", caption, "tokens", _from_digests(runs, getters))


def spread_chart(runs: Sequence[RunSource]) -> Chart:
    lines = []
    for number, run in enumerate(runs):
        if steps := run.digest.steps:
            rows = [(step.step, step.tokens_mean, step.tokens_low, step.tokens_high) for step in steps]
            x, y, low, high = (thinned(column, len(runs)) for column in zip(*rows, strict=True))
            lines.append(Line(number, "mean", x, y, smooth(y), low, high))
    caption = "Mean length of a step's training completions. Band: 10th to 90th percentile"
    return Chart("length_spread", "Spread of lengths", caption, "tokens", tuple(lines))


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


def _metric_lines(spec: ChartSpec, runs: Sequence[RunSource], smoother: Smoother) -> list[Line]:
    """Return the lines of the metrics that were recorded. A stage without a metric leaves a gap."""
    lines = []
    for (number, run), (metric, name) in product(enumerate(runs), spec.metrics.items()):
        records = [record for record in run.steps if _has(record, metric, spec.share_of)]
        wholes = [record.metrics[spec.share_of] if spec.share_of else 1.0 for record in records]
        values = [record.metrics[metric] / whole for record, whole in zip(records, wholes, strict=True)]
        is_trivial = metric == "policy/approx_kl" and not any(values)  # with one update per step it is always 0
        if is_trivial or not any(map(math.isfinite, values)):
            continue
        smoothed: list[float] = []
        for _, stage in groupby(zip(records, values, strict=True), key=lambda pair: pair[0].stage):
            smoothed += smoother([value for _, value in stage])
        columns = [[float(record.step) for record in records], values, smoothed]
        lines.append(Line(number, name, *(thinned(column, len(runs)) for column in columns)))
    return lines


def _has(record: StepRecord, metric: str, share_of: str) -> bool:
    # The loss of an SFT stage is recorded under two names and has its own chart.
    is_twin = metric == "policy/loss" and "sft/loss" in record.metrics
    return metric in record.metrics and not is_twin and bool(not share_of or record.metrics.get(share_of))


def _explodes(lines: Sequence[Line]) -> bool:
    """Return whether the largest value of a line would squeeze all others onto 0."""
    for name in {line.name for line in lines}:
        values = sorted(value for line in lines if line.name == name for value in line.y if math.isfinite(value))
        if values and values[-1] > EXPLODES * abs(values[len(values) // 2]) > 0:
            return True
    return False


def _stack(spec: ChartSpec, runs: Sequence[RunSource]) -> list[Line]:
    """Return the lines of the first run: stacks of several runs cannot share a chart."""
    lines = [line for line in _metric_lines(spec, runs[:1], smooth) if any(line.y)]
    # A stack needs every part at every step.
    steps = tuple(sorted({x for line in lines for x in line.x}))
    known = [(line.name, dict(zip(line.x, line.smooth, strict=True))) for line in lines]
    return [Line(0, name, steps, tuple(values.get(step, 0.0) for step in steps)) for name, values in known]


def smooth(values: Sequence[float], min_reach: int = 2) -> tuple[float, ...]:
    """Return centred means, which do not lag behind; unknown values are left out, and windows shrink at the ends."""
    reach = max(min_reach, len(values) // 50)
    means = []
    for index in range(len(values)):
        window = [value for value in values[max(0, index - reach) : index + reach + 1] if math.isfinite(value)]
        means.append(math.fsum(window) / len(window) if window else math.nan)
    return tuple(means)


def smooth_logs(values: Sequence[float]) -> tuple[float, ...]:
    """Return centred geometric means: on a logarithmic axis, a mean would show only the largest values."""
    logs = smooth([math.log(value) if value > 0 else math.nan for value in values])
    return tuple(map(math.exp, logs))


def thinned(values: Sequence[float], num_runs: int = 1) -> tuple[float, ...]:
    """Return as many values as a line has room for: means over equal numbers of neighbours."""
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
