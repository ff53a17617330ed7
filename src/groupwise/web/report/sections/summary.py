"""Whether training worked: a sentence per run and per set of seeds, with its interval; the gain of each stage; gaps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from groupwise.base.harmless import escape
from groupwise.base.stats import mean
from groupwise.base.text_layout import percent, points
from groupwise.runs.records import has_no_gradient
from groupwise.runs.results import say_estimate
from groupwise.types import EvalRecord, Finish, Verdict
from groupwise.web.report.behaviours import BEHAVIOURS, behaviours_in
from groupwise.web.report.gains import (
    VERDICT_WORDS,
    Gain,
    SeedsGain,
    paired_gain,
    pass_rates,
    run_gain,
    seeds_gains,
    share_of,
    stage_gains,
)
from groupwise.web.report.inputs import CompletionPanel, ResultSource, RunSource
from groupwise.web.report.markup import notes, paragraph, table
from groupwise.web.report.page import Content, Material


def render_summary(material: Material) -> Content:
    runs, results = material.sources.runs, material.sources.results
    cards = [_card(f"{len(gain.runs)} seeds: {', '.join(gain.runs)}", gain) for gain in seeds_gains(runs)]
    cards += [_run_card(run) for run in runs]
    cards += [_result_card(results[0], other) for other in results[1:]]
    if len(results) == 1:
        cards.append(_alone_card(results[0]))
    html = "".join(_card_html(card, is_named=len(cards) > 1) for card in cards)
    rows = [
        [
            f"{run.label}: {name}" if len(runs) > 1 else name,
            percent(gain.before.value),
            percent(gain.after.value),
            f"{points(gain.difference)} points\n{points(gain.low)} to {points(gain.high)}",
        ]
        for run in runs
        if len(run.stages) > 1
        for name, gain in stage_gains(run)
    ]
    if rows:
        html += table(["stage", "before", "after", "change, 95 % interval"], rows, "Gain of each stage")
    return Content({"cards": cards}, html)


def _run_card(run: RunSource) -> dict[str, Any]:
    gain = run_gain(run)
    card = _card(run.label, gain)
    if gain is None:
        card["headline"] = "Whether the model got better is unknown"
        card["sentence"] = "No held-out evaluation was recorded."
        if run.evals:
            alone = run.evals[0]
            card["sentence"] = (
                f"Only one evaluation was recorded, at step {alone.step}: held-out pass@1 {percent(alone.pass_at_1)} "
                f"(95 % interval {percent(alone.low)} to {percent(alone.high)}), {alone.num_problems} problems."
            )
    if run.steps and all(map(has_no_gradient, run.steps)):
        card["headline"] = "The run did not learn: no step had a gradient"
    best = run.best_eval
    if gain is not None and best is not None and best.pass_at_1 > run.evals[-1].pass_at_1:
        card["notes"].append(
            f"The best evaluation was {percent(best.pass_at_1)}, at step {best.step}. It was selected on the same "
            "problems, so it is slightly optimistic; the comparison above uses the last evaluation."
        )
    card["notes"] += run.gaps
    return card


def _result_card(first: ResultSource, other: ResultSource) -> dict[str, Any]:
    card = _card(f"{first.label} → {other.label}", paired_gain(first.panel, other.panel))
    if not card["sentence"]:
        card["headline"], card["sentence"] = "The results cannot be compared", "They have no problem in common."
    elif (verdict := card["gain"]["verdict"]) in ("better", "worse"):
        card["headline"] = f"{other.label} is {verdict} than {first.label}"
    if first.result.data != other.result.data or first.result.verifier != other.result.verifier:
        card["notes"].append("The two results differ in data or verifier: compare with care.")
    return card


def _alone_card(result: ResultSource) -> dict[str, Any]:
    card = _card(result.label, None)
    share = share_of([*pass_rates(result.panel).values()])
    card["headline"] = f"pass@1 {percent(share.value)}"
    card["sentence"] = f"95 % interval {percent(share.low)} to {percent(share.high)}, {share.num_problems} problems."
    return card


def _card(label: str, gain: Gain | SeedsGain | None) -> dict[str, Any]:
    table_of = None if gain is None else asdict(gain) | {"difference": gain.difference, "verdict": gain.verdict}
    return {
        "label": label,
        "headline": "" if gain is None else VERDICT_WORDS[gain.verdict],
        "sentence": "" if gain is None else f"{gain.sentence()[:1].upper()}{gain.sentence()[1:]}.",
        "gain": table_of,
        "notes": [],
    }


def _card_html(card: dict[str, Any], is_named: bool) -> str:
    kind = "" if card["gain"] is None else card["gain"]["verdict"]
    name = paragraph(card["label"], "eyebrow") if is_named else ""
    return (
        f'<div class="verdict-card {escape(kind)}">{name}<p class="headline">{escape(card["headline"])}.</p>'
        f"{paragraph(card['sentence'], 'lead')}{notes(card['notes'])}</div>"
    )


def render_before_after(material: Material) -> Content | None:
    sources = material.sources
    columns = [column for run in sources.runs for column in _run_columns(run, len(sources.runs) > 1)]
    columns += [(result.label, _panel_values(result.panel)) for result in sources.results]
    if not columns:
        return None
    names = list(dict.fromkeys(name for _, values in columns for name in values))
    rows = [[name, *(values.get(name, "–") for _, values in columns)] for name in names]
    # Signs that no model shows get no row.
    signs = {behaviour.title for behaviour in BEHAVIOURS}
    rows = [row for row in rows if row[0] not in signs or not {*row[1:]} <= {percent(0.0), "–"}]
    header = ["held-out problems", *(label for label, _ in columns)]
    html = table(header, rows, "Before and after")
    scores = [
        [result.label, name, *say_estimate(name, score), f"{score.n:,}", score.method]
        for result in sources.results
        for name, score in result.result.scores.items()
    ]
    if scores:
        score_header = ["result", "score", "value", "95 % interval", "problems", "method"]
        html += "<h3>Scores of the evaluations</h3>" + table(score_header, scores, "Scores of the evaluations")
    return Content({"header": header, "rows": rows, "scores": scores}, html)


def _run_columns(run: RunSource, is_named: bool) -> list[tuple[str, dict[str, str]]]:
    panels = {panel.step: panel for panel in run.panels}
    by_step = {record.step: record for record in run.evals}
    columns = []
    for step, label in run.moments.items():
        values = _record_values(by_step[step])
        if step in panels:
            values |= _sign_values(panels[step])
        columns.append((f"{run.label}, {label}" if is_named else label, values))
    return columns


def _record_values(record: EvalRecord) -> dict[str, str]:
    return {
        "pass@1": f"{percent(record.pass_at_1)}\n{percent(record.low)} to {percent(record.high)}",
        "mean reward": f"{record.mean_reward:.3f}",
        "no answer found": percent(record.unparsed_share),
        "cut off at the limit": percent(record.truncated_share),
        "could not be scored": percent(record.error_share + _or_zero(record.timed_out_share)),
        "mean length": f"{record.mean_tokens:.0f} tokens",
        "problems × completions": f"{record.num_problems} × {record.rollouts_per_problem}",
    }


def _panel_values(panel: CompletionPanel) -> dict[str, str]:
    if not panel.groups:
        return {}
    share = share_of([*pass_rates(panel).values()])
    pairs = [pair for g in panel.groups.values() for pair in zip(g.group.rollouts, g.scores, strict=True)]
    return {
        "pass@1": f"{percent(share.value)}\n{percent(share.low)} to {percent(share.high)}",
        "mean reward": f"{mean([score.reward for _, score in pairs if not score.is_error]):.3f}",
        "no answer found": percent(mean([float(score.verdict is Verdict.UNPARSED) for _, score in pairs])),
        "cut off at the limit": percent(mean([float(rollout.finish is Finish.LENGTH) for rollout, _ in pairs])),
        "could not be scored": percent(mean([float(score.is_error) for _, score in pairs])),
        "mean length": f"{mean([len(rollout.token_ids) for rollout, _ in pairs]):.0f} tokens",
        "problems × completions": f"{len(panel.groups)} × {len(pairs) // len(panel.groups)}",
    } | _sign_values(panel)


def _sign_values(panel: CompletionPanel) -> dict[str, str]:
    found = [behaviours_in(rollout.text) for scored in panel.groups.values() for rollout in scored.group.rollouts]
    return {b.title: percent(mean([float(b.name in signs) for signs in found])) for b in BEHAVIOURS}


def _or_zero(value: float) -> float:
    return value if value == value else 0.0
