"""Health of a run: whether it was training, what the doctor found, and how the model does outside the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.base.harmless import escape
from groupwise.base.text_layout import percent
from groupwise.doctor import CHECKS, examine, read_stages
from groupwise.doctor.wording import clean_bill, vital_signs, with_words
from groupwise.runs.reader import Run
from groupwise.web.report.charts import Chart, Line
from groupwise.web.report.inputs import RunSource
from groupwise.web.report.markup import chart_grid, definitions, notes, paragraph, sentence, table
from groupwise.web.report.page import Content, Material


def render_health(material: Material) -> Content | None:
    runs = [_examined(run) for run in material.sources.runs if run.steps]
    if not runs:
        return None
    html = "".join(_run_html(run, is_named=len(runs) > 1) for run in runs)
    html += paragraph(f"The doctor runs {len(CHECKS)} checks; the command groupwise doctor shows the same.", "dim")
    return Content({"runs": runs}, html)


def _examined(source: RunSource) -> dict[str, Any]:
    stages = read_stages(Run(source.path))
    findings = examine(stages)
    return {
        "label": source.label,
        "stages": [{"name": stage.name, "vital_signs": vital_signs(stage)} for stage in stages],
        "findings": [with_words(finding) for finding in findings],
        "clean_bill": None if findings else clean_bill(stages),
    }


def has_problem(run: Mapping[str, Any]) -> bool:
    """Return whether an examined run has a finding of the highest severity."""
    return any(finding["severity"] == "problem" for finding in run["findings"])


def _run_html(run: Mapping[str, Any], is_named: bool) -> str:
    html = paragraph(run["label"], "eyebrow") if is_named else ""
    html += "".join(map(_finding_html, run["findings"])) or paragraph(run["clean_bill"], "lead")
    for stage in run["stages"]:
        if stage["vital_signs"]:
            html += paragraph(f"Stage {stage['name']}") + notes(list(map(sentence, stage["vital_signs"])))
    return html


def _finding_html(finding: Mapping[str, Any]) -> str:
    place = f"stage {finding['stage']}, steps {finding['first_step']} to {finding['last_step']}"
    kind = {"problem": "worse", "warning": "unclear"}[finding["severity"]]
    words = [("evidence", finding["seen"]), ("meaning", finding["means"]), ("change", finding["say_change"])]
    headline = f"{finding['severity'].capitalize()}: {finding['title']}"
    return (
        f'<div class="verdict-card {kind}"><p class="headline">{escape(headline)}</p>'
        f"{paragraph(place, 'dim')}{definitions([(name, sentence(text)) for name, text in words])}</div>"
    )


GUARDS = {
    "perplexity": (
        "Perplexity on general text",
        "Perplexity of text that has nothing to do with the task; lower is better",
        "",
    ),
    "format_share": ("General format requests", "Share of short general requests that were followed", "share"),
}
"""Title, caption and unit of each guard's chart."""


def render_guards(material: Material) -> Content | None:
    runs = material.sources.runs
    readings = [_readings(run) for run in runs]
    charts = [chart for name in GUARDS if (chart := _guard_chart(name, readings)).lines]
    if not charts:
        return None
    rows = [
        [
            f"{run.label}: {GUARDS[name][0]}" if len(runs) > 1 else GUARDS[name][0],
            _shown(name, known[0]),
            _shown(name, known[-1]),
            _shown(name, (max if name == "perplexity" else min)(known)),
        ]
        for run, events in zip(runs, readings, strict=True)
        for name in GUARDS
        if (known := [event[name] for event in events if isinstance(event.get(name), float | int)])
    ]
    broken = [
        f"{run.label}, step {event['step']}: {sentence} ({event.get('action', 'warn')})"
        for run, events in zip(runs, readings, strict=True)
        for event in events
        for sentence in event.get("broken") or ()
    ]
    html = chart_grid("guards", charts)
    html += table(["guard", "at the start", "at the end", "worst"], rows, "Guards")
    html += notes(broken) if broken else paragraph("No guard was triggered.")
    data = {"charts": [chart.to_json() for chart in charts], "rows": rows, "broken": broken}
    return Content(data, html, tuple(charts))


def _readings(run: RunSource) -> list[Mapping[str, Any]]:
    """Return the readings by step. A resumed run may have two readings of one step; the later one counts."""
    events = {event["step"]: event for event in run.events if event.get("kind") == "guards" and "step" in event}
    return [events[step] for step in sorted(events)]


def _guard_chart(name: str, readings: Sequence[Sequence[Mapping[str, Any]]]) -> Chart:
    title, caption, unit = GUARDS[name]
    lines = []
    for number, events in enumerate(readings):
        points = [(float(event["step"]), float(event[name])) for event in events if event.get(name) is not None]
        if points:
            lines.append(Line(number, title, tuple(x for x, _ in points), tuple(y for _, y in points)))
    return Chart(name, title, caption, unit, tuple(lines), "points")


def _shown(name: str, value: float) -> str:
    return percent(value) if name == "format_share" else f"{value:.2f}"
