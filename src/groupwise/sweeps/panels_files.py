"""Panels for papers: one picture per knob as PNG and SVG, and the data of each panel as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from groupwise.base.harmless import cell, visible
from groupwise.runs.files import write_atomic, write_failure
from groupwise.sweeps.findings_words import MAX_LABEL_CHARS, cut, knob_words
from groupwise.sweeps.panels import charts_of
from groupwise.sweeps.study import read_study
from groupwise.sweeps.sweep_records import Knob
from groupwise.web.report.charts import Chart
from groupwise.web.report.plots import COLOURS, draw_line, dress, new_figure, save_figure

# The colours of the page in its light theme.
ORDERED_COLOURS = (
    "#a87900", "#bd6900", "#cc5220", "#cb3a50", "#b62f74", "#982a8c", "#74279a", "#501f95", "#2c1a7a",
)  # fmt: skip
COLUMNS = ("knob", "panel", "arm", "label", "step", "mean", "low", "high")
SIZE_INCHES = (11.0, 6.2)
GRID = (2, 3)


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
    paths = []
    for name, knob in zip(_file_names(study.knobs), study.knobs, strict=True):
        path = folder / f"{name}.csv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, [knob_csv(knob).encode("utf-8")])
        except OSError as error:
            raise write_failure(path, error) from error
        paths.append(path)
    return paths


def knob_csv(knob: Knob) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    names = {member.label: member.arm.name for member in knob.members}
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
    places = list(figure.subplots(*GRID).flat)
    for axes, chart in zip(places, charts, strict=False):
        for line in chart.lines:
            draw_line(axes, chart, line, _colour(line.colour), "-", _plain_text(line.name))
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


def _colour(name: str) -> str:
    return ORDERED_COLOURS[int(name[1:])] if name.startswith("q") else COLOURS[int(name)]


def _plain_text(text: str) -> str:
    """Escape text for matplotlib: a dollar starts a formula, and a leading underscore hides a label."""
    shown = cut(visible(text), MAX_LABEL_CHARS).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
