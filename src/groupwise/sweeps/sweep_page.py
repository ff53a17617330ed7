"""The report of a sweep: an HTML page, the same data as JSON (its twin), and the findings as Markdown.

Contract: reads the sweep's folder and writes `report.html`, `report.json` and `findings.md` into it; works at any time,
also while runs are training. It is a page like that of a run's report, with the same protection against untrusted text;
see `groupwise.web.report.page`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.base.harmless import escape, visible
from groupwise.sweeps.findings import KnobFindings, find_all
from groupwise.sweeps.findings_words import SweepFinding, count, knob_words, percent
from groupwise.sweeps.page_dots import dot_groups
from groupwise.sweeps.page_tables import gap_table, score_table, summary_table
from groupwise.sweeps.panels import charts_of, panels_of
from groupwise.sweeps.panels_files import write_sweep_csv, write_sweep_plots
from groupwise.sweeps.study import Study, read_study
from groupwise.web.bundle import save_text
from groupwise.web.report.inputs import stage_spans
from groupwise.web.report.markup import chart_grid, folded, paragraph, text_slot
from groupwise.web.report.page import Texts, render_page

__all__ = ["SweepReport", "make_sweep_report", "write_sweep_csv", "write_sweep_plots", "write_sweep_report"]

FORMAT = "groupwise-sweep-report/1"
PAGE = "report.html"
FINDINGS = "findings.md"

METHOD = (
    "Intervals are 95 %: the wider of Student's over seeds and Wilson's over held-out problems. The arms of a knob are "
    "compared in pairs, over seeds and over problems; a difference counts only if both show it, with p-values "
    "adjusted for all pairs of the knob by Holm's method. So a knob without effect is reported to have one in at most "
    "about 5 of 100 sweeps. With a single seed, the variation of training is unknown, and only that of the problems "
    "counts. Intervals may overlap although the arms differ, and vice versa: findings are based on the comparisons, "
    "not on the figure."
)
PANELS_NOTE = (
    "Lines are means over seeds, bands their range; a seed that ended early is left out from there on. Hover over a "
    "panel, or focus it and use the arrow keys, to read values."
)
_MARKDOWN_SIGNS = re.compile(r"([\\`*_\[\]<>#|&~])")


@dataclass(frozen=True, slots=True)
class SweepReport:
    path: Path
    """Path of the page."""
    html: str
    twin: Mapping[str, Any]
    """The data as JSON values."""
    findings: tuple[str, ...]
    """The sentences of all findings, knob by knob."""


def write_sweep_report(sweep_dir: Path) -> SweepReport:
    report = make_sweep_report(read_study(sweep_dir))
    twin = json.dumps(report.twin, allow_nan=False, separators=(",", ":"))
    texts = {PAGE: report.html, Path(PAGE).with_suffix(".json").name: twin, FINDINGS: markdown(report.twin)}
    for name, text in texts.items():
        save_text(sweep_dir / name, text)
    return report


def make_sweep_report(study: Study) -> SweepReport:
    found = find_all(study)
    texts = Texts()
    contents = {"summary": ("Summary", *_summary(study, found))}
    for number, one in enumerate(found):
        contents[f"knob-{number}"] = (knob_words(one.knob), *_knob(f"knob-{number}", one))
    contents["runs"] = ("Runs", *_runs(study, texts))
    twin: dict[str, Any] = {
        "format": FORMAT,
        "title": study.name,
        "runs": [{"label": study.name, "stages": _stages(study)}],
        "seeds": list(study.seeds),
        "findings": [finding.to_json() for one in found for finding in one.findings],
        "sections": {name: data for name, (_, data, _) in contents.items()},
        "texts": texts.all(),
    }
    sections = {name: (title, html) for name, (title, _, html) in contents.items()}
    page = render_page(study.name, _subtitle(study), sections, twin, "sweep", "the sweep's runs")
    sentences = tuple(finding.sentence for one in found for finding in one.findings)
    return SweepReport(study.path / PAGE, page, twin, sentences)


def markdown(twin: Mapping[str, Any]) -> str:
    """Return the findings by knob as Markdown, with its special characters escaped."""
    lines = [f"# {_markdown_text(twin['title'])}"]
    knob = None
    for finding in twin["findings"]:
        if finding["knob"] != knob:
            knob = finding["knob"]
            lines += ["", f"## {_markdown_text(knob)}", ""]
        lines.append(f"- {_markdown_text(finding['sentence'])}")
    return "\n".join([*lines, "", _markdown_text(METHOD), ""])


def _markdown_text(text: str) -> str:
    return _MARKDOWN_SIGNS.sub(r"\\\1", " ".join(visible(text).split()))


def _subtitle(study: Study) -> str:
    num_finished = sum(run.is_finished for _, run in study.runs)
    parts = [
        study.recipe_path,
        count(len(study.knobs), "knob"),
        count(len(study.arms), "arm"),
        count(len(study.seeds), "seed"),
        f"{num_finished} of {len(study.runs)} runs finished",
    ]
    return " · ".join(filter(None, parts))


def _stages(study: Study) -> list[tuple[str, int, int]]:
    """Return the stages for the step axis, if all finished runs have the same ones."""
    found = {stage_spans(run.steps) for _, run in study.runs if run.is_finished}
    return list(found.pop()) if len(found) == 1 else []


def _summary(study: Study, found: Sequence[KnobFindings]) -> tuple[dict[str, Any], str]:
    rows = [
        {
            "knob": one.knob.name,
            "best": one.compared.scores.best.name if one.compared.scores.arms else None,
            "final_min": min((arm.final.mean for arm in one.compared.scores.arms), default=None),
            "final_max": max((arm.final.mean for arm in one.compared.scores.arms), default=None),
            "finding": one.headline.sentence,
        }
        for one in found
    ]
    html = summary_table(found) if found else paragraph("The sweep has no arms yet.")
    gaps = study.gaps()
    if gaps:
        html += paragraph(f"{len(gaps)} of {len(study.runs)} runs are not finished: see Runs below.", "dim")
    groups = dot_groups([one.compared.scores for one in found])
    if groups:
        html += '<h3>Final scores</h3><div class="dots" data-dots="summary"></div>'
        html += paragraph("Large dots: means over seeds. Small dots: single seeds. Lines: 95 % intervals.", "dim")
    return {"knobs": rows, "dots": groups}, html + paragraph(METHOD, "dim")


def _knob(section: str, one: KnobFindings) -> tuple[dict[str, Any], str]:
    scores = one.compared.scores
    charts = charts_of(one.knob)
    html = paragraph(", ".join(one.knob.keys), "dim") if one.knob.keys else ""
    html += _finding_list(one.findings)
    if charts:
        html += paragraph(PANELS_NOTE, "dim")
        html += chart_grid(section, charts)
    drawn = {chart.name for chart in charts}
    missing = [panel.title[:1].lower() + panel.title[1:] for panel in panels_of(one.knob) if panel.name not in drawn]
    if missing:
        html += paragraph(f"Not recorded by any run: {', '.join(missing)}.", "dim")
    data: dict[str, Any] = {
        "name": one.knob.name,
        "keys": list(one.knob.keys),
        "is_ordered": one.knob.is_ordered,
        "members": [{"arm": member.arm.name, "label": member.label} for member in one.knob.members],
        "charts": [chart.to_json() for chart in charts],
    }
    if scores.arms:
        html += score_table(scores)
        html += paragraph(
            "Means over the finished seeds, with the 95 % interval below the final score. The target is "
            f"{percent(scores.target)}, nine tenths of the highest final score. Final KL and clip share are means over "
            "the last tenth of the steps.",
            "dim",
        )
        pairs = {tuple(sorted(names)): pair for names, pair in one.compared.pairs.items()}
        data |= {
            "target": scores.target,
            "kl_metric": scores.kl_metric,
            "scores": [arm.to_json(scores.target, scores.kl_metric) for arm in scores.arms],
            "comparisons": [pair.to_json() for pair in pairs.values()],
        }
    return data, html


def _finding_list(findings: Sequence[SweepFinding]) -> str:
    return f'<ul class="findings">{"".join(f"<li>{escape(one.sentence)}</li>" for one in findings)}</ul>'


def _runs(study: Study, texts: Texts) -> tuple[dict[str, Any], str]:
    gaps: list[dict[str, Any]] = [
        {"arm": arm.name, "seed": run.seed, "status": run.status.value, "reason": texts.add(run.reason, True)}
        for arm, run in study.runs
        if not run.is_finished
    ]
    html = gap_table(study) or paragraph("All runs are finished.")
    for gap, (arm, run) in zip(gaps, [pair for pair in study.runs if not pair[1].is_finished], strict=True):
        if run.reason:
            label = f"{arm.name}, seed {run.seed}"
            html += folded(f"Why {label} has no result", text_slot(gap["reason"], f"Last lines of {label}"))
    recipe = texts.add(study.recipe_text)
    if study.recipe_text:
        html += folded("Base recipe of all arms", text_slot(recipe, "Recipe"))
    own = {arm.name: texts.add(arm.recipe_text) for arm in study.arms if arm.recipe_text}
    for name, text in own.items():
        html += folded(f"Base recipe of {name}", text_slot(text, f"Recipe of {name}"))
    num_finished = sum(run.is_finished for _, run in study.runs)
    return {"gaps": gaps, "recipe": recipe, "own_recipes": own, "num_finished": num_finished}, html
