"""The report of runs and results: an HTML page of sections, and the same data as JSON (its twin).

Contract: reads files only (`inputs`), and writes only where it is told. The page needs no network and no library; see
`page` for how untrusted text is made harmless.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.web.bundle import save_text
from groupwise.web.report.charts import Chart
from groupwise.web.report.inputs import RunSource, Sources, read_sources
from groupwise.web.report.page import Content, Material, render_page
from groupwise.web.report.sections.chart_grid import render_behaviours, render_curves, render_lengths
from groupwise.web.report.sections.facts import render_cost, render_recipe, render_unread
from groupwise.web.report.sections.health import has_problem, render_guards, render_health
from groupwise.web.report.sections.shown_completions import render_examples, render_pills
from groupwise.web.report.sections.summary import render_before_after, render_summary

FORMAT = "groupwise-report/1"
PAGE = "report.html"

SECTIONS: dict[str, tuple[str, Callable[[Material], Content | None]]] = {
    "unread": ("Not read", render_unread),
    "summary": ("Summary", render_summary),
    "curves": ("Training", render_curves),
    "health": ("Health", render_health),
    "guards": ("Guards", render_guards),
    "before_after": ("Before and after", render_before_after),
    "pills": ("Problem by problem", render_pills),
    "examples": ("Examples", render_examples),
    "behaviours": ("Reasoning", render_behaviours),
    "lengths": ("Length", render_lengths),
    "cost": ("Cost", render_cost),
    "recipe": ("Recipe", render_recipe),
}
"""Title and function of each section, in page order. A section with nothing to show is None and left out; health comes
first if a run has a problem."""


@dataclass(frozen=True, slots=True)
class Report:
    html: str
    twin: Mapping[str, Any]
    """The data as JSON values."""
    charts: tuple[Chart, ...]
    runs: tuple[RunSource, ...]
    """The runs that the charts' lines refer to by index."""
    errors: tuple[str, ...] = ()
    """Of runs and results that could not be read."""


def make_report(paths: Sequence[Path]) -> Report:
    """Make the report of run directories and result folders, in any order."""
    sources = read_sources(paths)
    material = Material(sources)
    # Examples first: the completions behind the pills must not use up their space.
    rendered = {name: SECTIONS[name][1](material) for name in sorted(SECTIONS, key=lambda name: name != "examples")}
    contents = {name: content for name in SECTIONS if (content := rendered[name])}
    if "health" in contents and any(has_problem(run) for run in contents["health"].data["runs"]):
        contents = {"health": contents["health"]} | contents
    sections = {name: (SECTIONS[name][0], content.html) for name, content in contents.items()}
    twin: dict[str, Any] = {
        "format": FORMAT,
        "title": _title(sources),
        "runs": [{"label": run.label, "stages": run.stages} for run in sources.runs],
        "results": [result.label for result in sources.results],
        "sections": {name: content.data for name, content in contents.items()},
        "texts": material.texts.all(),
        "num_texts_left_out": material.texts.num_left_out,
        "num_texts_cut": material.texts.num_cut,
    }
    charts = tuple(chart for content in contents.values() for chart in content.charts)
    html = render_page(_title(sources), _subtitle(sources), sections, twin)
    return Report(html, twin, charts, sources.runs, sources.errors)


def write_report(report: Report, path: Path) -> Path:
    """Write the page to `path` and the JSON file beside it; return the path of the latter."""
    twin_path = path.with_suffix(".json")
    twin = json.dumps(report.twin, allow_nan=False, separators=(",", ":"))
    save_text(path, report.html)
    return save_text(twin_path, twin)


def _title(sources: Sources) -> str:
    labels = [*(run.label for run in sources.runs), *(result.label for result in sources.results)]
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def _subtitle(sources: Sources) -> str:
    """Return model, task, stages and steps, as far as they are known."""
    if not sources.runs:
        return " · ".join(dict.fromkeys(str(result.result.task.get("name", "")) for result in sources.results))
    if len(sources.runs) > 1:
        tasks = dict.fromkeys(str(run.recipe.get("task", {}).get("name", "")) for run in sources.runs)
        return " · ".join(filter(None, [f"{len(sources.runs)} runs", *tasks]))
    run = sources.runs[0]
    model, task = run.recipe.get("model", {}).get("path"), run.recipe.get("task", {}).get("name")
    stages = " → ".join(name for name, _, _ in run.stages)
    last_step = run.steps[-1].step if run.steps else 0
    return " · ".join(filter(None, [model and str(model), task and str(task), stages, f"{last_step} steps"]))
