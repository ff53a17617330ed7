"""The five panels of a knob as charts: held-out score, reward, KL, clip fraction and gradient norm, over steps.

Contract: one line per arm, the mean over the seeds that have the step, with their range as a band. Unfinished
runs are drawn as far as they got. An arm has one colour in all panels; colours follow the values of an ordered
knob. The same charts are drawn in the page, plotted and written as CSV.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.base.stats import mean
from groupwise.runs.catalogue import METRICS
from groupwise.sweeps.arm_scores import CLIP, GRAD_NORM, KL_FROM_REFERENCE, REWARD, kl_metric
from groupwise.sweeps.findings_words import label_of, listed
from groupwise.sweeps.spec import HELD_OUT
from groupwise.sweeps.sweep_records import Knob, Member, SeedRun
from groupwise.web.report.charts import LOG_CAPTION, Chart, Line, smooth, thinned

NUM_ORDERED_COLOURS = 9
NUM_COLOURS = 8
LOG_RATIO = 100.0
"""Quantities with a larger ratio of maximum to minimum get a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class KnobPanel:
    name: str
    title: str
    metric: str
    may_be_log: bool = False


def panels_of(knob: Knob) -> tuple[KnobPanel, ...]:
    metric = kl_metric(knob)
    whose = "from the reference" if metric == KL_FROM_REFERENCE else "of one step's updates"
    return (
        KnobPanel("held_out", "Held-out exact match", HELD_OUT),
        KnobPanel("reward", "Rollout reward", REWARD),
        KnobPanel("kl", f"Approximate KL {whose}", metric, may_be_log=True),
        KnobPanel("clip", "Clip fraction", CLIP),
        KnobPanel("grad_norm", "Gradient norm", GRAD_NORM, may_be_log=True),
    )


def colours_of(knob: Knob) -> list[str]:
    """Return the colours of the members, in their order, as in `Line.colour`."""
    last = len(knob.members) - 1
    if not knob.is_ordered:
        return [str(number % NUM_COLOURS) for number in range(last + 1)]
    return [f"q{round(number * (NUM_ORDERED_COLOURS - 1) / last)}" for number in range(last + 1)]


def charts_of(knob: Knob) -> tuple[Chart, ...]:
    """Return the charts, of the five, that at least one run recorded."""
    charts = (_chart(knob, panel) for panel in panels_of(knob))
    return tuple(chart for chart in charts if chart.lines)


def _chart(knob: Knob, panel: KnobPanel) -> Chart:
    lines, silent = [], []
    for member, colour in zip(knob.members, colours_of(knob), strict=True):
        line = _line(member, panel.metric, colour, len(knob.members))
        if line is not None:
            lines.append(line)
        elif any(run.steps for run in member.arm.runs):
            silent.append(label_of(member))
    metric = METRICS[panel.metric]
    is_log = panel.may_be_log and _spans_decades(lines)
    parts = [metric.meaning, "Line: mean over seeds; band: their range"]
    if is_log:
        parts.append(LOG_CAPTION)
    if silent:
        parts.append(f"Not recorded: {listed(silent)}")
    kind = "points" if panel.metric == HELD_OUT else "line"
    return Chart(panel.name, panel.title, ". ".join(parts), metric.unit, tuple(lines), kind, is_log)


def _line(member: Member, metric: str, colour: str, num_lines: int) -> Line | None:
    series = [values for run in member.arm.runs if (values := _series(run, metric))]
    steps = sorted({step for values in series for step in values})
    if not steps:
        return None
    by_step = [[values[step] for values in series if step in values] for step in steps]
    columns = [
        tuple(float(step) for step in steps),
        tuple(mean(values) for values in by_step),
        tuple(min(values) for values in by_step),
        tuple(max(values) for values in by_step),
    ]
    x, y, low, high = (thinned(column, num_lines) for column in columns)
    if len(series) == 1:
        low, high = (), ()
    return Line(0, member.label, x, y, low=low, high=high, colour=colour)


def _series(run: SeedRun, metric: str) -> Mapping[int, float]:
    """Return the known values of a run by step. From 50 steps on: a centred mean over 1/25 of the steps."""
    if metric == HELD_OUT:
        return {record.step: record.pass_at_1 for record in run.evals}
    known = [
        (record.step, value) for record in run.steps if math.isfinite(value := record.metrics.get(metric, math.nan))
    ]
    smoothed = smooth([value for _, value in known], min_reach=0)
    return {step: value for (step, _), value in zip(known, smoothed, strict=True)}


def _spans_decades(lines: list[Line]) -> bool:
    values = [value for line in lines for value in line.y if value > 0]
    return bool(values) and max(values) > LOG_RATIO * min(values)
