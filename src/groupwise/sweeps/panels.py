"""The five panels of a knob: held-out pass@1, reward, KL, clipped tokens and gradient norm, over steps.

Contract: one line per arm, the mean over the seeds that have the step, with their range as a band. Unfinished
runs are drawn as far as they got. An arm has one colour in all panels; colours follow the values of an ordered
knob. The same charts are drawn in the page, plotted as PNG and SVG for papers, and written as CSV.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.base.harmless import cell, visible
from groupwise.base.stats import mean
from groupwise.base.text_layout import shortened
from groupwise.runs.catalogue import CHARTS, METRICS, ChartSpec
from groupwise.sweeps.arm_scores import KL_FROM_REFERENCE, KL_OF_UPDATES, kl_metric
from groupwise.sweeps.findings_words import MAX_LABEL_CHARS, knob_words, listed, short_label
from groupwise.sweeps.folder import read_study
from groupwise.sweeps.spec import HELD_OUT
from groupwise.sweeps.sweep_records import Arm, Knob, SeedRun
from groupwise.web.bundle import save_text
from groupwise.web.report.charts import LOG_CAPTION, Chart, Line, smooth, thinned
from groupwise.web.report.plots import COLOURS, draw_line, dress, new_figure, save_figure

# The colours of the page in its light theme.
ORDERED_COLOURS = (
    "#a87900", "#bd6900", "#cc5220", "#cb3a50", "#b62f74", "#982a8c", "#74279a", "#501f95", "#2c1a7a",
)  # fmt: skip
COLUMNS = ("knob", "panel", "arm", "label", "step", "mean", "low", "high")
SIZE_INCHES = (11.0, 6.2)
GRID = (2, 3)
LOG_RATIO = 100.0
"""Quantities with a larger ratio of maximum to minimum get a logarithmic axis."""


def panels_of(knob: Knob) -> tuple[ChartSpec, ...]:
    """Return the charts that the catalogue shows for sweeps, with one of the two KLs."""
    left_out = {KL_FROM_REFERENCE, KL_OF_UPDATES} - {kl_metric(knob)}
    return tuple(spec for spec in CHARTS if "sweep" in spec.shown_in and left_out.isdisjoint(spec.metrics))


def colours_of(knob: Knob) -> list[str]:
    """Return the colours of the arms, in their order, as in `Line.colour`."""
    last = len(knob.arms) - 1
    if not knob.is_ordered:
        return [str(number % len(COLOURS)) for number in range(last + 1)]
    return [f"q{round(number * (len(ORDERED_COLOURS) - 1) / last)}" for number in range(last + 1)]


def charts_of(knob: Knob) -> tuple[Chart, ...]:
    """Return the charts, of the five, that at least one run recorded."""
    charts = (_chart(knob, spec) for spec in panels_of(knob))
    return tuple(chart for chart in charts if chart.lines)


def _chart(knob: Knob, spec: ChartSpec) -> Chart:
    (metric,) = spec.metrics
    lines, silent = [], []
    for arm, colour in zip(knob.arms, colours_of(knob), strict=True):
        line = _line(arm, metric, colour, len(knob.arms))
        if line is not None:
            lines.append(line)
        elif any(run.steps for run in arm.runs):
            silent.append(short_label(arm))
    values = [value for line in lines for value in line.y if value > 0]
    is_log = spec.may_be_log and bool(values) and max(values) > LOG_RATIO * min(values)
    parts = [METRICS[metric].meaning, spec.caption, "Line: mean over seeds; band: their range"]
    if is_log:
        parts.append(LOG_CAPTION)
    if silent:
        parts.append(f"Not recorded: {listed(silent)}")
    return Chart(spec.name, spec.title, ". ".join(filter(None, parts)), spec.unit, tuple(lines), spec.kind, is_log)


def _line(arm: Arm, metric: str, colour: str, num_lines: int) -> Line | None:
    series = [values for run in arm.runs if (values := _series(run, metric))]
    steps = sorted({step for values in series for step in values})
    if not steps:
        return None
    by_step = {step: [values[step] for values in series if step in values] for step in steps}
    rows = [(float(step), mean(values), min(values), max(values)) for step, values in by_step.items()]
    x, y, low, high = (thinned(column, num_lines) for column in zip(*rows, strict=True))
    if len(series) == 1:
        low, high = (), ()
    return Line(0, arm.label, x, y, low=low, high=high, colour=colour)


def _series(run: SeedRun, metric: str) -> Mapping[int, float]:
    """Return the known values of a run by step. From 50 steps on: a centred mean over 1/25 of the steps."""
    if metric == HELD_OUT:
        return {record.step: record.pass_at_1 for record in run.evals}
    known = [
        (record.step, value) for record in run.steps if math.isfinite(value := record.metrics.get(metric, math.nan))
    ]
    smoothed = smooth([value for _, value in known], min_reach=0)
    return {step: value for (step, _), value in zip(known, smoothed, strict=True)}


def write_sweep_plots(sweep_dir: Path, folder: Path) -> list[Path]:
    """Write `KNOB.png`, `KNOB.svg` and `KNOB.csv` for each knob. The same runs give the same bytes."""
    paths = write_sweep_csv(sweep_dir, folder)
    study = read_study(sweep_dir)
    for name, knob in zip(_file_names(study.knobs), study.knobs, strict=True):
        charts = charts_of(knob)
        if charts:
            paths += save_figure(_draw(knob, charts), folder, name)
    return sorted(paths)


def write_sweep_csv(sweep_dir: Path, folder: Path) -> list[Path]:
    """Write `KNOB.csv` for each knob: the points of all its panels, exact; unknown values are empty cells."""
    study = read_study(sweep_dir)
    names = _file_names(study.knobs)
    return [save_text(folder / f"{name}.csv", knob_csv(knob)) for name, knob in zip(names, study.knobs, strict=True)]


def knob_csv(knob: Knob) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    names = {arm.label: arm.name for arm in knob.arms}
    for chart in charts_of(knob):
        for line in chart.lines:
            for index, step in enumerate(line.x):
                numbers = [column[index] if column else math.nan for column in (line.y, line.low, line.high)]
                known = [number if math.isfinite(number) else "" for number in numbers]
                texts = [cell(text) for text in (knob.name, chart.name, names[line.name], line.name)]
                writer.writerow([*texts, step, *known])
    return stream.getvalue()


def _file_names(knobs: Sequence[Knob]) -> list[str]:
    """Return a file name for each knob: its name if that is safe and unique, else with its number."""
    safe = ["".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in knob.name)[:48] for knob in knobs]
    names = [name.strip("-") for name in safe]
    return [
        name if name and names.count(name) == 1 else f"knob-{number}-{name}".strip("-")
        for number, name in enumerate(names, start=1)
    ]


def _draw(knob: Knob, charts: Sequence[Chart]) -> Any:
    figure = new_figure(SIZE_INCHES)
    palette = {str(number): colour for number, colour in enumerate(COLOURS)}
    palette |= {f"q{number}": colour for number, colour in enumerate(ORDERED_COLOURS)}
    places = list(figure.subplots(*GRID).flat)
    for axes, chart in zip(places, charts, strict=False):
        for line in chart.lines:
            draw_line(axes, chart, line, palette[line.colour], "-", _plain_text(line.name))
        axes.set_title(chart.title, fontsize=10, loc="left")
        axes.set_xlabel("step", fontsize=9)
        axes.tick_params(labelsize=8)
        dress(axes, chart)
    for axes in places[len(charts) :]:
        axes.set_axis_off()
    handles = max((axes.get_legend_handles_labels() for axes in places), key=lambda pair: len(pair[1]))
    # There are at most five panels: the sixth place is for the legend.
    places[-1].legend(
        *handles, title=_plain_text(knob_words(knob)), frameon=False, loc="center left", fontsize=9, alignment="left"
    )
    return figure


def _plain_text(text: str) -> str:
    """Escape text for matplotlib: a dollar starts a formula, and a leading underscore hides a label."""
    shown = shortened(visible(text), MAX_LABEL_CHARS).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
