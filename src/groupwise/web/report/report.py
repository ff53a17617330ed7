"""The report of runs and results: sections one after the other, as one HTML page with a JSON twin of the same data.

Contract: reads files alone (`sources`), and writes where it is told. The page needs no network and no library; see
`page` for what keeps foreign text from doing anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.runs.files import write_atomic, write_failure
from groupwise.web.report.charts import Chart
from groupwise.web.report.inputs import RunSource, Sources, read_sources
from groupwise.web.report.page import Part, render_page
from groupwise.web.report.section import Material, Section
from groupwise.web.report.sections.chart_grid import Behaviours, Curves, Lengths
from groupwise.web.report.sections.examples import Examples
from groupwise.web.report.sections.facts import Cost, RecipeSection
from groupwise.web.report.sections.health import Guards, Health
from groupwise.web.report.sections.pills import Pills
from groupwise.web.report.sections.summary import BeforeAfter, SummarySection

FORMAT = "groupwise-report/1"
PAGE = "report.html"

SECTIONS: dict[str, Section] = {
    "summary": SummarySection(),
    "curves": Curves(),
    "health": Health(),
    "guards": Guards(),
    "before_after": BeforeAfter(),
    "pills": Pills(),
    "examples": Examples(),
    "behaviours": Behaviours(),
    "lengths": Lengths(),
    "cost": Cost(),
    "recipe": RecipeSection(),
}
"""By name, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Report:
    html: str
    twin: Mapping[str, Any]
    """The same data as JSON values."""
    charts: tuple[Chart, ...]
    runs: tuple[RunSource, ...]
    """What the charts' lines belong to."""


def make_report(paths: Sequence[Path]) -> Report:
    """Of run directories and result folders, in any order."""
    sources = read_sources(paths)
    material = Material(sources)
    # Examples first: the many completions behind the pills must not use up the room for the few.
    first = ("examples",)
    contents = {name: SECTIONS[name].render(material) for name in (*first, *(n for n in SECTIONS if n not in first))}
    parts = [
        Part(name, section.title, content.html)
        for name, section in SECTIONS.items()
        if (content := contents[name]) is not None
    ]
    twin: dict[str, Any] = {
        "format": FORMAT,
        "title": _title(sources),
        "runs": [{"label": run.label, "stages": run.stages} for run in sources.runs],
        "results": [result.label for result in sources.results],
        "sections": {part.name: content.data for part in parts if (content := contents[part.name]) is not None},
        "texts": material.texts.all(),
        "num_texts_left_out": material.texts.num_left_out,
        "num_texts_cut": material.texts.num_cut,
    }
    charts = tuple(chart for part in parts if (content := contents[part.name]) for chart in content.charts)
    html = render_page(_title(sources), _subtitle(sources), parts, twin)
    return Report(html, twin, charts, sources.runs)


def write_report(report: Report, path: Path) -> Path:
    """Write the page to `path` and the twin beside it; the twin's path."""
    twin_path = path.with_suffix(".json")
    twin = json.dumps(report.twin, allow_nan=False, separators=(",", ":"))
    for target, text in ((path, report.html), (twin_path, twin)):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(target, [text.encode("utf-8")])
        except OSError as error:
            raise write_failure(target, error) from error
    return twin_path


def _title(sources: Sources) -> str:
    labels = [run.label for run in sources.runs] + [result.label for result in sources.results]
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def _subtitle(sources: Sources) -> str:
    """What was trained on what, as far as that is known."""
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
