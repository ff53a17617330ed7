"""A few full completions, selected by rules that the page prints, never by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from groupwise.base.harmless import escape
from groupwise.types import ScoredGroup
from groupwise.web.report.digest import RULES, Picked
from groupwise.web.report.gains import pass_rates
from groupwise.web.report.inputs import ChartPanel, RunSource
from groupwise.web.report.markup import paragraph, text_slot
from groupwise.web.report.section import Content, Material, Texts
from groupwise.web.report.sections.pills import KIND_WORDS, completion, gold_text

TITLES = {
    "first_solve": "First solve",
    "longest": "Longest",
    "no_reasoning": "Reward without reasoning",
    "learned": "Learned",
    "still_wrong": "Still wrong",
    "lost": "Lost",
}
HELD_OUT_RULES = {
    "learned": "The first held-out problem, in evaluation order, that was never solved before training and is always "
    "solved after it.",
    "still_wrong": "The first held-out problem that was solved neither before nor after training.",
    "lost": "The first held-out problem that was always solved before training and never after it.",
}


def render_examples(material: Material) -> Content | None:
    runs = material.sources.runs
    examples = [example for run in runs for example in _of_run(run, material.texts)]
    if not examples:
        return None
    return Content({"examples": examples}, "".join(_html(example, len(runs) > 1) for example in examples))


def _of_run(run: RunSource, texts: Texts) -> list[dict[str, Any]]:
    found = [_trained(run, rule, picked, texts) for rule, picked in run.digest.picked.items()]
    steps = {panel.step: panel for panel in run.panels}
    if run.evals and len(steps) > 1 and run.evals[0].step in steps and run.evals[-1].step in steps:
        before, after = steps[run.evals[0].step], steps[run.evals[-1].step]
        for rule, rates in (("learned", (0.0, 1.0)), ("still_wrong", (0.0, 0.0)), ("lost", (1.0, 0.0))):
            key = _first_with(before, after, rates)
            if key is not None:
                found.append(_held_out(run, rule, key, (before, after), texts))
    return sorted(found, key=lambda example: list(TITLES).index(example["rule"]))


def _first_with(before: ChartPanel, after: ChartPanel, rates: tuple[float, float]) -> str | None:
    old, new = pass_rates(before), pass_rates(after)
    return next((key for key in old if key in new and (old[key], new[key]) == rates), None)


def _trained(run: RunSource, rule: str, picked: Picked, texts: Texts) -> dict[str, Any]:
    return _example(run, rule, [(f"step {picked.step}", picked.group, picked.number)], texts)


def _held_out(
    run: RunSource, rule: str, key: str, panels: tuple[ChartPanel, ChartPanel], texts: Texts
) -> dict[str, Any]:
    size = len(panels[0].groups[key].scores)
    first = f", first of {size}" if size > 1 else ""
    return _example(run, rule, [(panel.moment + first, panel.groups[key], 0) for panel in panels], texts)


def _example(run: RunSource, rule: str, shown: Sequence[tuple[str, ScoredGroup, int]], texts: Texts) -> dict[str, Any]:
    """`shown`: label, group and index of each completion."""
    problem = shown[0][1].group.prompt.problem
    return {
        "run": run.label,
        "rule": rule,
        "title": TITLES[rule],
        "words": (RULES | HELD_OUT_RULES)[rule],
        "prompt": texts.add(problem.prompt_text),
        "gold": gold_text(problem.answer)[:500],
        "completions": [
            completion(scored.group.rollouts[number], scored.scores[number], texts) | {"label": label}
            for label, scored, number in shown
        ],
    }


def _html(example: dict[str, Any], is_named: bool) -> str:
    name = f" · {example['run']}" if is_named else ""
    blocks = "".join(_completion_html(entry) for entry in example["completions"])
    return (
        f'<article class="example"><h3>{escape(example["title"] + name)}</h3>{paragraph(example["words"], "dim")}'
        f'<div class="question"><h4>Problem</h4>{text_slot(example["prompt"], "Problem")}'
        f'<p class="facts">gold answer: <b>{escape(example["gold"]) or "–"}</b></p></div>'
        f'<div class="completions">{blocks}</div></article>'
    )


def _completion_html(entry: dict[str, Any]) -> str:
    kind = entry["kind"]
    facts = f"reward {entry['reward']} · {entry['tokens']} tokens · ended by {entry['finish']}"
    return (
        f'<div class="completion"><h4>{escape(entry["label"])} <span class="pill {kind}">{KIND_WORDS[kind]}</span></h4>'
        f'{text_slot(entry["text"], "Completion")}<p class="facts">{escape(facts)}</p></div>'
    )
