"""The data behind the charts as CSV: one file per chart, one row per point."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from groupwise.base.harmless import cell
from groupwise.web.report.charts import Chart, Line
from groupwise.web.report.inputs import RunSource
from groupwise.web.saving import save_text

COLUMNS = ("run", "stage", "line", "step", "value", "smoothed", "low", "high")


def write_csv_files(charts: Sequence[Chart], runs: Sequence[RunSource], folder: Path) -> list[Path]:
    """Write `NAME.csv` for each chart. Values are exact; an unknown value is an empty cell."""
    return [save_text(folder / f"{chart.name}.csv", chart_csv(chart, runs)) for chart in charts]


def chart_csv(chart: Chart, runs: Sequence[RunSource]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in chart.lines:
        run = runs[line.run]
        for index, step in enumerate(line.x):
            writer.writerow([*map(cell, (run.label, stage_at(run, step), line.name)), *_values(line, index)])
    return stream.getvalue()


def stage_at(run: RunSource, step: float) -> str:
    """Return the stage of a step; "" before the first stage, as for the evaluation before training."""
    return next((name for name, first, last in run.stages if first <= step <= last), "")


def _values(line: Line, index: int) -> list[float | str]:
    columns = (line.x, line.y, line.smooth, line.low, line.high)
    values = [column[index] if column else math.nan for column in columns]
    return [value if math.isfinite(value) else "" for value in values]
