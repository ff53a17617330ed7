"""The sections made of completions.

"Problem by problem" shows the same problems model by model: rows of pills with the answers; a click opens the full
completions. "Examples" shows a few of them, selected by rules that the page prints, never by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.audit.answers import answer_marks
from groupwise.base.harmless import escape, visible
from groupwise.base.outside import json_value
from groupwise.base.text_layout import shortened
from groupwise.types import Rollout, Score, ScoredGroup, Verdict
from groupwise.web.report.digest import RULES
from groupwise.web.report.gains import pass_rates
from groupwise.web.report.inputs import CompletionPanel, RunSource, Sources
from groupwise.web.report.markup import bar, paragraph, text_slot
from groupwise.web.report.page import Content, Material, Texts

MAX_ANSWER_CHARS = 24
MAX_DETAIL_CHARS = 200
MAX_QUESTION_CHARS = 240
MAX_PILLS = 6000
"""Maximum over all problems and models; each takes 200 bytes of the page."""
KINDS = {
    Verdict.CORRECT: "correct",
    Verdict.WRONG: "wrong",
    Verdict.UNPARSED: "none",
    Verdict.ERROR: "error",
    Verdict.TIMED_OUT: "error",
}
KIND_WORDS = {"correct": "correct", "wrong": "wrong", "none": "no answer", "error": "not scored"}
TITLES = {
    "first_solve": "First solve",
    "longest": "Longest",
    "no_reasoning": "Reward without reasoning",
    "learned": "Learned",
    "still_wrong": "Still wrong",
    "lost": "Lost",
}
HELD_OUT_RULES = {
    "learned": (
        (0.0, 1.0),
        "The first held-out problem, in evaluation order, that was never solved before training and is always solved "
        "after it.",
    ),
    "still_wrong": ((0.0, 0.0), "The first held-out problem that was solved neither before nor after training."),
    "lost": ((1.0, 0.0), "The first held-out problem that was always solved before training and never after it."),
}
"""Pass rates before and after training, and the rule in words."""


def render_pills(material: Material) -> Content | None:
    panels = chosen_panels(material.sources)
    if not panels:
        return None
    shared = [key for key in panels[0].groups if all(key in panel.groups for panel in panels[1:])]
    notes = []
    if not shared and len(panels) > 1:
        notes.append("The models have no problem in common; only the first is shown.")
        panels, shared = panels[:1], list(panels[0].groups)
    if not shared:
        return None
    largest = max(len(panel.groups) for panel in panels)
    if len(panels) > 1:
        notes.append("Gained and lost compare the first model with the last.")
    if len(shared) < largest:
        notes.append(f"{len(shared):,} of {largest:,} problems were given to all models.")
    max_problems = max(1, MAX_PILLS // max(1, sum(len(panel.groups[shared[0]].scores) for panel in panels)))
    if len(shared) > max_problems:
        notes.append(f"The first {max_problems:,} of {len(shared):,} problems are shown, to keep this page small.")
        shared = shared[:max_problems]
    left_out_before = material.texts.num_left_out
    labels = _labels(panels, material.sources)
    problems = [_problem(key, panels, material.texts) for key in shared]
    if left_out := material.texts.num_left_out - left_out_before:
        notes.append(f"{left_out:,} texts were left out to keep this page small; they are in the run directory.")
    html = "".join(_bar(label, [row["cells"][number] for row in problems]) for number, label in enumerate(labels))
    html += "".join(paragraph(note, "dim") for note in notes)
    html += (
        '<div class="pill-tools" role="group" aria-label="Which problems to show"></div>'
        '<div class="pills" data-pills></div>'
    )
    return Content({"models": labels, "problems": problems, "notes": notes}, html)


def chosen_panels(sources: Sources) -> list[CompletionPanel]:
    """Return first, best and last of a single run, first and last of several; equal first models only once."""
    panels: list[CompletionPanel] = []
    for run in sources.runs:
        is_alone = len(sources.runs) == 1 or len(run.panels) < 3
        wanted = run.panels if is_alone else (run.panels[0], run.panels[-1])
        panels += [panel for panel in wanted if not any(_is_same(panel, other) for other in panels)]
    return panels + [result.panel for result in sources.results if result.panel.groups]


def _is_same(panel: CompletionPanel, other: CompletionPanel) -> bool:
    """Return whether two runs started from the same model, judged by its completions before training."""
    if panel.step != 0 or other.step != 0 or panel.groups.keys() != other.groups.keys():
        return False
    return all(
        [rollout.text for rollout in scored.group.rollouts]
        == [rollout.text for rollout in other.groups[key].group.rollouts]
        for key, scored in panel.groups.items()
    )


def _labels(panels: Sequence[CompletionPanel], sources: Sources) -> list[str]:
    is_named = len(sources.runs) + len(sources.results) > 1
    labels = []
    for panel in panels:
        shared_start = panel.step == 0 and len(sources.runs) > 1 and sum(other.step == 0 for other in panels) == 1
        words = [panel.source] if is_named and not shared_start else []
        labels.append(" · ".join(filter(None, [*words, panel.moment])))
    return labels


def _problem(key: str, panels: Sequence[CompletionPanel], texts: Texts) -> dict[str, Any]:
    problem = panels[0].groups[key].group.prompt.problem
    return {
        "id": visible(key),
        "question": _short(problem.question, MAX_QUESTION_CHARS),
        "prompt": texts.add(problem.prompt_text, is_one_of_many=True),
        "gold": _short(gold_text(problem.answer), MAX_QUESTION_CHARS),
        "cells": [
            [
                completion(rollout, score, texts, is_one_of_many=True)
                for rollout, score in zip(scored.group.rollouts, scored.scores, strict=True)
            ]
            for scored in (panel.groups[key] for panel in panels)
        ],
    }


def gold_text(answer: str) -> str:
    """Return the answer; a JSON object, as in tasks with tests, as a list of named values."""
    try:
        found = json_value(answer)
    except ValueError:
        return answer
    if not isinstance(found, dict):
        return answer
    values = {name: "; ".join(map(str, value)) if isinstance(value, list) else value for name, value in found.items()}
    return " · ".join(f"{name.replace('_', ' ')}: {value}" for name, value in values.items())


def completion(rollout: Rollout, score: Score, texts: Texts, is_one_of_many: bool = False) -> dict[str, Any]:
    return {
        "kind": KINDS[score.verdict],
        "answer": answer_of(rollout, score),
        "text": texts.add(rollout.text, is_one_of_many),
        "reward": round(score.reward, 4) if score.reward == score.reward else None,
        "tokens": len(rollout.token_ids),
        "finish": rollout.finish.value,
        "detail": _short(score.detail, MAX_DETAIL_CHARS),
    }


def answer_of(rollout: Rollout, score: Score) -> str:
    """Return the answer that the completion marks, or the verifier's detail; "" without an answer."""
    if score.verdict is Verdict.UNPARSED or score.is_error:
        return ""
    marks = answer_marks(rollout.text)
    return _short(marks[-1].text if marks else score.detail, MAX_ANSWER_CHARS)


def _short(text: str, max_chars: int) -> str:
    return shortened(visible(text[: 4 * max_chars]), max_chars)


def _bar(label: str, cells: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    kinds = [entry["kind"] for cell in cells for entry in cell]
    counts = {kind: kinds.count(kind) for kind in KIND_WORDS}
    parts = [(kind, f"{count} {KIND_WORDS[kind]}", count / len(kinds)) for kind, count in counts.items() if count]
    return bar(parts, label)


def render_examples(material: Material) -> Content | None:
    runs = material.sources.runs
    examples = [example for run in runs for example in _examples_of(run, material.texts)]
    if not examples:
        return None
    return Content({"examples": examples}, "".join(_html(example, len(runs) > 1) for example in examples))


def _examples_of(run: RunSource, texts: Texts) -> list[dict[str, Any]]:
    shown = {rule: [(f"step {one.step}", one.group, one.number)] for rule, one in run.digest.picked.items()}
    if run.end_panels:
        before, after = run.end_panels
        old, new = pass_rates(before), pass_rates(after)
        for rule, (rates, _) in HELD_OUT_RULES.items():
            key = next((key for key in old if key in new and (old[key], new[key]) == rates), None)
            if key is not None:
                size = len(before.groups[key].scores)
                first = f", first of {size}" if size > 1 else ""
                shown[rule] = [(panel.moment + first, panel.groups[key], 0) for panel in (before, after)]
    return [_example(run, rule, shown[rule], texts) for rule in TITLES if rule in shown]


def _example(run: RunSource, rule: str, shown: Sequence[tuple[str, ScoredGroup, int]], texts: Texts) -> dict[str, Any]:
    """Return an example; `shown` has label, group and index of each completion."""
    problem = shown[0][1].group.prompt.problem
    return {
        "run": run.label,
        "rule": rule,
        "title": TITLES[rule],
        "words": RULES[rule] if rule in RULES else HELD_OUT_RULES[rule][1],
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
