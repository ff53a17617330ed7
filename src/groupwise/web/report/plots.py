"""The charts as files: figures for papers as PNG and SVG, and their data as CSV, one row per point."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groupwise.base.harmless import cell
from groupwise.runs.files import writing
from groupwise.web.bundle import save_text
from groupwise.web.report.charts import Chart, Line
from groupwise.web.report.inputs import RunSource

# Darker Okabe and Ito colours, as in the page: safe for colour-blind readers. Dashes distinguish lines in greyscale.
COLOURS = ("#0068a8", "#c25400", "#007f5c", "#ad4f85", "#8a6800", "#6b4bb0", "#5f656e", "#227f9a")
DASHES = ("-", "--", ":", "-.")
SIZE_INCHES = (4.8, 3.0)
DOTS_PER_INCH = 200
COLUMNS = ("run", "stage", "line", "step", "value", "smoothed", "low", "high")


def write_plots(charts: Sequence[Chart], runs: Sequence[RunSource], folder: Path) -> list[Path]:
    """Write `NAME.png`, `NAME.svg` and `NAME.csv` for each chart."""
    paths = write_csv_files(charts, runs, folder)
    for chart in charts:
        paths += save_figure(_draw(chart, runs), folder, chart.name)
    return sorted(paths)


def write_csv_files(charts: Sequence[Chart], runs: Sequence[RunSource], folder: Path) -> list[Path]:
    """Write `NAME.csv` for each chart. Values are exact; an unknown value is an empty cell."""
    return [save_text(folder / f"{chart.name}.csv", chart_csv(chart, runs)) for chart in charts]


def chart_csv(chart: Chart, runs: Sequence[RunSource]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in chart.lines:
        label, stages = runs[line.run].label, runs[line.run].stages
        for index, step in enumerate(line.x):
            # The evaluation before training is in no stage.
            stage = next((name for name, first, last in stages if first <= step <= last), "")
            columns = (line.x, line.y, line.smooth, line.low, line.high)
            values = [column[index] if column else math.nan for column in columns]
            known = [value if math.isfinite(value) else "" for value in values]
            writer.writerow([*map(cell, (label, stage, line.name)), *known])
    return stream.getvalue()


def new_figure(size_inches: tuple[float, float]) -> Any:
    """Return a figure made without pyplot: no global state, no display, nothing to close."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size_inches, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, folder: Path, name: str) -> list[Path]:
    """Save as PNG and SVG. Without a date and with fixed ids, the same run gives the same bytes."""
    from matplotlib import rc_context

    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        with writing(path), rc_context({"svg.hashsalt": name}):
            figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def _draw(chart: Chart, runs: Sequence[RunSource]) -> Any:
    figure = new_figure(SIZE_INCHES)
    axes = figure.subplots()
    is_overlay = len({line.run for line in chart.lines}) > 1
    names = list(dict.fromkeys(line.name for line in chart.lines))
    if chart.kind == "stack":
        axes.stackplot(
            chart.lines[0].x, *(line.y for line in chart.lines), labels=names, colors=COLOURS, alpha=0.85, linewidth=0
        )
    for line in chart.lines if chart.kind != "stack" else ():
        number = names.index(line.name)
        colour = COLOURS[(line.run if is_overlay else number) % len(COLOURS)]
        words = [runs[line.run].label if is_overlay else "", line.name if not is_overlay or len(names) > 1 else ""]
        # A dollar sign would start a formula.
        label = ", ".join(filter(None, words)).replace("$", r"\$")
        draw_line(axes, chart, line, colour, DASHES[number % len(DASHES)] if is_overlay else "-", label)
    for first in sorted({first for run in runs for _, first, _ in run.stages[1:]}):
        axes.axvline(first - 0.5, color="grey", linestyle=":", linewidth=0.8)
    dress(axes, chart)
    axes.set_xlabel("step")
    axes.set_ylabel(chart.title if chart.unit in ("", "share") else f"{chart.title} ({chart.unit})")
    if is_overlay or len(names) > 1:
        axes.legend(frameon=False, fontsize=8)
    return figure


def dress(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import PercentFormatter

    if chart.unit == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(bottom=min(0.0, *(value for line in chart.lines for value in (*line.y, *line.low))))
    if chart.is_log:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_line(axes: Any, chart: Chart, line: Line, colour: str, dash: str, label: str) -> None:
    if line.low:
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if line.smooth:
        axes.plot(line.x, line.y, color=colour, alpha=0.3, linewidth=0.8)
    marker = "o" if chart.kind == "points" else None
    axes.plot(
        line.x, line.smooth or line.y, dash, color=colour, linewidth=1.6, marker=marker, markersize=3, label=label
    )
