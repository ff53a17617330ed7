"""The sections made of charts: training curves, signs of reasoning, lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from groupwise.base.text_layout import percent
from groupwise.web.report.behaviours import BEHAVIOURS
from groupwise.web.report.charts import Chart, behaviour_chart, curves, length_chart, spread_chart
from groupwise.web.report.inputs import RunSource
from groupwise.web.report.markup import chart_grid, paragraph, table
from groupwise.web.report.page import Content, Material

CURVES_NOTE = (
    "Thin lines are single steps, thick lines a centred mean over neighbouring steps. Hover over a chart, or focus it "
    "and use the arrow keys, to read values."
)
SIGNS_NOTE = (
    "These are surface signs: words were counted, and nobody judged whether an announced check is carried out. They "
    "only show how habits change over training."
)


def render_curves(material: Material) -> Content | None:
    charts = curves(material.sources.runs)
    if not charts:
        return None
    html = paragraph(CURVES_NOTE, "dim") + chart_grid("curves", charts)
    if not any(chart.name == "kl" for chart in charts):
        html += paragraph("KL from a reference was not recorded: no stage has a KL term.", "dim")
    return _content(charts, html)


def render_behaviours(material: Material) -> Content | None:
    runs = [run for run in material.sources.runs if run.digest.steps]
    if not runs:
        return None
    chart = behaviour_chart(material.sources.runs)
    charts = (chart,) if chart.lines else ()
    rows = [
        [
            f"{run.label}: {behaviour.title}" if len(runs) > 1 else behaviour.title,
            behaviour.meaning,
            *_early_and_late(run, behaviour.name),
        ]
        for run in runs
        for behaviour in BEHAVIOURS
    ]
    header = ["completion …", "words, such as", "first quarter", "last quarter", "correct with", "correct without"]
    html = paragraph(SIGNS_NOTE, "dim") + chart_grid("behaviours", charts)
    if not charts:
        html += paragraph("No sign occurs in the saved training completions.")
    html += table(header, rows, "Reasoning")
    html += paragraph(
        "First and last quarter: of the steps with saved rollouts. Correct with and correct without: share of "
        "correct completions among those that show the sign and among those that do not.",
        "dim",
    )
    return _content(charts, html, {"header": header, "rows": rows})


def _early_and_late(run: RunSource, name: str) -> list[str]:
    steps = run.digest.steps
    quarter = max(1, len(steps) // 4)
    cells = []
    for part in (steps[:quarter], steps[-quarter:]):
        cells.append(percent(_share(sum(s.counts[name] for s in part), sum(s.num_rollouts for s in part))))
    shown, shown_correct = sum(s.counts[name] for s in steps), sum(s.counts_correct[name] for s in steps)
    rest, rest_correct = run.digest.num_rollouts - shown, sum(s.num_correct for s in steps) - shown_correct
    return [*cells, percent(_share(shown_correct, shown)), percent(_share(rest_correct, rest))]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def render_lengths(material: Material) -> Content | None:
    runs = material.sources.runs
    charts = tuple(chart for chart in (spread_chart(runs), length_chart(runs)) if chart.lines)
    return _content(charts, chart_grid("lengths", charts)) if charts else None


def _content(charts: Sequence[Chart], html: str, data: Mapping[str, object] | None = None) -> Content:
    return Content({**(data or {})} | {"charts": [chart.to_json() for chart in charts]}, html, tuple(charts))
