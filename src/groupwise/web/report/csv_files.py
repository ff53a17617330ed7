"""The data behind the charts as CSV: one file a chart, one row a point, so that any tool can draw it again."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from groupwise.base.harmless import cell
from groupwise.runs.files import write_atomic, write_failure
from groupwise.web.report.charts import Chart, Line
from groupwise.web.report.inputs import RunSource

COLUMNS = ("run", "stage", "line", "step", "value", "smoothed", "low", "high")


def write_csv_files(charts: Sequence[Chart], runs: Sequence[RunSource], folder: Path) -> list[Path]:
    """Write `NAME.csv` for each chart. Values are exact; what is not known is an empty cell."""
    paths = []
    for chart in charts:
        path = folder / f"{chart.name}.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, [chart_csv(chart, runs).encode("utf-8")])
        except OSError as error:
            raise write_failure(path, error) from error
        paths.append(path)
    return paths


def chart_csv(chart: Chart, runs: Sequence[RunSource]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in chart.lines:
        run = runs[line.run]
        for index in range(len(line.x)):
            writer.writerow(
                [cell(run.label), cell(stage_at(run, line.x[index])), cell(line.name), *_values(line, index)]
            )
    return stream.getvalue()


def stage_at(run: RunSource, step: float) -> str:
    """The stage that step belongs to; "" before the first one, as for the evaluation before training."""
    return next((name for name, first, last in run.stages if first <= step <= last), "")


def _values(line: Line, index: int) -> list[float | str]:
    columns = (line.x, line.y, line.smooth, line.low, line.high)
    values = [column[index] if column else math.nan for column in columns]
    return [value if math.isfinite(value) else "" for value in values]
