"""The report of a sweep: an HTML page, the same data as JSON (its twin), and the findings as Markdown.

Contract: reads the sweep's folder and writes `report.html`, `report.json` and `findings.md` into it; works at any time,
also while runs are training. It is a page like that of a run's report, with the same protection against untrusted text;
see `groupwise.web.report.page`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.base.harmless import escape, visible
from groupwise.base.json_values import plain
from groupwise.base.text_layout import duration, percent
from groupwise.sweeps.arm_scores import ArmScore
from groupwise.sweeps.compare_arms import KnobScores
from groupwise.sweeps.findings import KnobFindings, find
from groupwise.sweeps.findings_effects import steps_words
from groupwise.sweeps.findings_words import count, knob_words, percent_range, rounded, short_label
from groupwise.sweeps.folder import gap_words, read_study
from groupwise.sweeps.panels import charts_of, colours_of, panels_of
from groupwise.sweeps.sweep_records import Sweep
from groupwise.web.bundle import save_text
from groupwise.web.report.inputs import stage_spans
from groupwise.web.report.markup import chart_grid, folded, paragraph, table, text_slot
from groupwise.web.report.page import Texts, render_page

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
    findings: tuple[str, ...]
    """The sentences of all findings, knob by knob."""


def write_sweep_report(sweep_dir: Path) -> SweepReport:
    study = read_study(sweep_dir)
    found = [find(knob) for knob in study.knobs]
    findings = [finding for one in found for finding in one.findings]
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
        "findings": [finding.to_json() for finding in findings],
        "sections": {name: data for name, (_, data, _) in contents.items()},
        "texts": texts.all(),
    }
    sections = {name: (title, html) for name, (title, _, html) in contents.items()}
    html = render_page(study.name, _subtitle(study), sections, twin, "sweep", "the sweep's runs")
    path = save_text(sweep_dir / PAGE, html)
    save_text(path.with_suffix(".json"), json.dumps(twin, allow_nan=False, separators=(",", ":")))
    save_text(sweep_dir / FINDINGS, markdown(twin))
    return SweepReport(path, html, tuple(finding.sentence for finding in findings))


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


def _subtitle(study: Sweep) -> str:
    parts = [
        study.recipe_path,
        count(len(study.knobs), "knob"),
        count(len(study.arms), "arm"),
        count(len(study.seeds), "seed"),
        f"{len(study.runs) - len(study.gaps)} of {len(study.runs)} runs finished",
    ]
    return " · ".join(filter(None, parts))


def _stages(study: Sweep) -> list[tuple[str, int, int]]:
    """Return the stages for the step axis, if all finished runs have the same ones."""
    found = {stage_spans(run.steps) for _, run in study.runs if run.is_finished}
    return list(found.pop()) if len(found) == 1 else []


def _summary(study: Sweep, found: Sequence[KnobFindings]) -> tuple[dict[str, Any], str]:
    rows, cells, groups = [], [], []
    for one in found:
        scores, finding = one.scores, one.headline.sentence
        finals = [arm.final.mean for arm in scores.arms]
        ends = {"final_min": min(finals, default=None), "final_max": max(finals, default=None)}
        rows.append({"knob": one.knob.name, "best": scores.best.name if finals else None, **ends, "finding": finding})
        highest = short_label(scores.best) if finals else "–"
        if scores.tied:
            highest += f"\n{len(scores.tied)} statistically indistinguishable"
        cells.append([knob_words(one.knob), percent_range(finals) if finals else "–", highest, finding])
        if finals:
            groups.append({"title": knob_words(one.knob), "rows": _dots(scores)})
    header = ["knob", "final scores", "highest", "finding"]
    html = table(header, cells, "Knobs", "told") if found else paragraph("The sweep has no arms yet.")
    if study.gaps:
        html += paragraph(f"{len(study.gaps)} of {len(study.runs)} runs are not finished: see Runs below.", "dim")
    if groups:
        html += '<h3>Final scores</h3><div class="dots" data-dots="summary"></div>'
        html += paragraph("Large dots: means over seeds. Small dots: single seeds. Lines: 95 % intervals.", "dim")
    return {"knobs": rows, "dots": groups}, html + paragraph(METHOD, "dim")


def _dots(scores: KnobScores) -> list[dict[str, Any]]:
    """Return the final scores for the page's script: a dot for each arm, with its interval and its seeds."""
    colours = dict(zip((arm.name for arm in scores.knob.arms), colours_of(scores.knob), strict=True))
    return [
        {
            "label": short_label(arm) + (" (base)" if arm.is_base else ""),
            "colour": colours[arm.name],
            **arm.final.estimate()._asdict(),
            "seeds": list(arm.final.by_seed.values()),
            "words": _final_words(arm),
        }
        for arm in scores.arms
    ]


def _final_words(arm: ArmScore) -> list[str]:
    """Return the final score and its interval."""
    value, low, high = arm.final.estimate()
    return [percent(value), percent_range((low, high))]


def _knob(section: str, one: KnobFindings) -> tuple[dict[str, Any], str]:
    scores = one.scores
    charts = charts_of(one.knob)
    html = paragraph(", ".join(one.knob.keys), "dim") if one.knob.keys else ""
    html += f'<ul class="findings">{"".join(f"<li>{escape(finding.sentence)}</li>" for finding in one.findings)}</ul>'
    if charts:
        html += paragraph(PANELS_NOTE, "dim")
        html += chart_grid(section, charts)
    drawn = {chart.name for chart in charts}
    missing = [panel.title for panel in panels_of(one.knob) if panel.name not in drawn]
    if missing:
        html += paragraph(f"Not recorded by any run: {', '.join(missing)}.", "dim")
    data: dict[str, Any] = {
        "name": one.knob.name,
        "keys": list(one.knob.keys),
        "is_ordered": one.knob.is_ordered,
        "members": [{"arm": arm.name, "label": arm.label} for arm in one.knob.arms],
        "charts": [chart.to_json() for chart in charts],
    }
    if scores.arms:
        header = ["value", "final score", "seeds", "best evaluation", "steps to target"]
        header += ["final KL", "clip share", "largest gradient norm", "tokens", "time"]
        html += table(header, [_score_row(scores, arm) for arm in scores.arms], f"Scores of {knob_words(one.knob)}")
        html += paragraph(
            "Means over the finished seeds, with the 95 % interval below the final score. The target is "
            f"{percent(scores.target)}, nine tenths of the highest final score. Final KL and clip share are means over "
            "the last tenth of the steps.",
            "dim",
        )
        pairs = {tuple(sorted(names)): pair for names, pair in scores.pairs.items()}
        data |= {
            "target": scores.target,
            "kl_metric": scores.kl_metric,
            "scores": [arm.to_json(scores.target, scores.kl_metric) for arm in scores.arms],
            "comparisons": [plain(pair) for pair in pairs.values()],
        }
    return data, html


def _score_row(scores: KnobScores, arm: ArmScore) -> list[str]:
    figures = arm.to_json(scores.target, scores.kl_metric)

    def known(name: str, words: Callable[[float], str] = rounded) -> str:
        return "–" if figures[name] is None else words(figures[name])

    return [
        short_label(arm) + ("\nbase" if arm.is_base else ""),
        "\n".join(_final_words(arm)),
        f"{percent_range((figures['final_min'], figures['final_max']))}\n{len(arm.runs)} finished",
        f"{percent(figures['best'])}\nstep {figures['best_step']:g}",
        steps_words(scores, arm),
        known("final_kl"),
        known("final_clip_share", percent),
        known("largest_grad_norm"),
        known("tokens", "{:,.0f}".format),
        known("seconds", duration),
    ]


def _runs(study: Sweep, texts: Texts) -> tuple[dict[str, Any], str]:
    gaps: list[dict[str, Any]] = []
    cells, reasons = [], ""
    for arm, run in study.gaps:
        reason = texts.add(run.reason, True)
        gaps.append({"arm": arm.name, "seed": run.seed, "status": run.status.value, "reason": reason})
        cells.append([arm.name, str(run.seed), gap_words(run)])
        if run.reason:
            label = f"{arm.name}, seed {run.seed}"
            reasons += folded(f"Why {label} has no result", text_slot(reason, f"Last lines of {label}"))
    header = ["arm", "seed", "state"]
    html = table(header, cells, "Unfinished runs", "told") + reasons if gaps else paragraph("All runs are finished.")
    recipe = texts.add(study.recipe_text)
    if study.recipe_text:
        html += folded("Base recipe of all arms", text_slot(recipe, "Recipe"))
    own = {arm.name: texts.add(arm.recipe_text) for arm in study.arms if arm.recipe_text}
    for name, text in own.items():
        html += folded(f"Base recipe of {name}", text_slot(text, f"Recipe of {name}"))
    num_finished = len(study.runs) - len(study.gaps)
    return {"gaps": gaps, "recipe": recipe, "own_recipes": own, "num_finished": num_finished}, html
