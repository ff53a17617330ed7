"""Cost of a run, and what is needed to repeat it: recipe, versions, fingerprints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from groupwise.base.text_layout import duration, percent
from groupwise.web.report.inputs import ResultSource, RunSource
from groupwise.web.report.markup import bar, definitions, folded, notes, paragraph, table, text_slot
from groupwise.web.report.page import Content, Material

TIME_PARTS = {
    "time/sample_s": "sampling",
    "time/score_s": "scoring",
    "time/logprobs_s": "logprobs",
    "time/update_s": "updates",
}


def render_unread(material: Material) -> Content | None:
    errors = list(material.sources.errors)
    return Content({"errors": errors}, notes(errors)) if errors else None


def render_cost(material: Material) -> Content | None:
    runs, results = material.sources.runs, material.sources.results
    costs = [run_cost(run) for run in runs if run.steps]
    if not costs and not results:
        return None
    html = ""
    if costs:
        names = list(dict.fromkeys(name for cost in costs for name in cost["facts"]))
        rows = [[name, *(cost["facts"].get(name, "–") for cost in costs)] for name in names]
        html += table(["", *(cost["label"] for cost in costs)], rows, "Cost")
        html += "".join(_bar(cost) for cost in costs)
        html += paragraph("Time of rank 0 from the first step to the last, without loading.", "dim")
    evaluations = []
    for result in results:
        seconds, tokens = (result.result.cost.get(name) for name in ("seconds", "tokens"))
        evaluations.append([result.label, "–" if seconds is None else duration(seconds), _count(tokens)])
    if evaluations:
        html += table(["evaluation", "time", "tokens"], evaluations, "Cost of the evaluations")
    return Content({"runs": costs, "evaluations": evaluations}, html)


def run_cost(run: RunSource) -> dict[str, Any]:
    def total(metric: str) -> float:
        values = (record.metrics.get(metric, 0.0) for record in run.steps)
        return math.fsum(value for value in values if math.isfinite(value))

    step_s = total("time/step_s")
    seconds = {name: total(metric) for metric, name in TIME_PARTS.items()}
    seconds["other"] = max(0.0, step_s - math.fsum(seconds.values()))
    seconds["evaluation"] = math.fsum(record.seconds for record in run.evals if math.isfinite(record.seconds))
    seconds["checkpoints"] = math.fsum(
        event["seconds"] for event in run.events if event.get("kind") == "checkpoint" and event.get("seconds")
    )
    whole = math.fsum(seconds.values())
    machine = run.info.get("machine", {})
    is_gpu = machine.get("device") == "cuda"
    tokens = max((record.metrics.get("tokens/total", 0.0) for record in run.steps), default=0.0)
    held_out = sum(r.mean_tokens * r.num_problems * r.rollouts_per_problem for r in run.evals if r.mean_tokens > 0)
    peak = max((record.metrics.get("memory/peak_bytes", 0.0) for record in run.steps), default=0.0)
    facts = {
        "GPU time" if is_gpu else "time": duration(whole),
        "machine": str(machine.get("device_name", "unknown")),
        "steps": _count(len(run.steps)),
        "tokens sampled for training": _count(tokens),
        "tokens sampled for evaluation": _count(held_out),
        "completions for training": _count(total("rollouts/count")),
    }
    if sample_s := seconds["sampling"]:
        facts["sampling speed"] = f"{_count(tokens / sample_s)} tokens/s"
    if peak:
        facts["peak memory of the device"] = f"{peak / 2**30:.1f} GiB"
    return {"label": run.label, "facts": facts, "seconds": {name: round(value, 3) for name, value in seconds.items()}}


def _bar(cost: Mapping[str, Any]) -> str:
    whole = math.fsum(cost["seconds"].values())
    parts = [
        (f"series-{number}", f"{name} {percent(seconds / whole)}", seconds / whole)
        for number, (name, seconds) in enumerate(cost["seconds"].items())
        if whole and seconds / whole >= 0.005
    ]
    return bar(parts, f"Where the time went: {cost['label']}") if parts else ""


def _count(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.0f}"


def render_recipe(material: Material) -> Content | None:
    sources = material.sources
    runs = [_run_facts(run) | {"recipe": material.texts.add(run.recipe_text)} for run in sources.runs]
    results = [_result_facts(result) for result in sources.results]
    if not runs and not results:
        return None
    html = ""
    for facts in (*runs, *results):
        html += paragraph(facts["label"], "eyebrow") + definitions(list(facts["facts"].items()))
        if facts.get("recipe") is not None and facts.get("has_recipe"):
            html += folded("Full recipe", text_slot(facts["recipe"], "Recipe"))
    return Content({"runs": runs, "results": results}, html)


def _run_facts(run: RunSource) -> dict[str, Any]:
    info, recipe = run.info, run.recipe
    stages = " → ".join(
        f"{stage.get('name', stage.get('algorithm', '?'))} ({stage.get('steps', '?')} steps)"
        for stage in recipe.get("stages", [])
    )
    facts = {
        "recipe": str(recipe.get("name", "")),
        "model": str(recipe.get("model", {}).get("path", "")),
        "parameters": _count(info.get("machine", {}).get("num_parameters")),
        "task": str(recipe.get("task", {}).get("name", "")),
        "stages": stages,
        "seed": str(recipe.get("seed", "")),
        "recipe's fingerprint": str(info.get("fingerprint", "")),
        "verifier": str(info.get("verifier", "")),
        **{f"{name} version": str(version) for name, version in info.get("versions", {}).items()},
    }
    return {
        "label": run.label,
        "facts": {name: value for name, value in facts.items() if value not in ("", "–")},
        "has_recipe": bool(run.recipe_text),
    }


def _result_facts(source: ResultSource) -> dict[str, Any]:
    result = source.result
    facts = {
        "model": str(result.model.get("path", "")),
        "checkpoint": str(result.model.get("checkpoint") or ""),
        "weights' fingerprint": str(result.model.get("fingerprint", "")),
        "task": str(result.task.get("name", "")),
        "data's fingerprint": str(result.data.get("fingerprint", "")),
        "problems": str(result.data.get("count", "")),
        "verifier": result.verifier,
        "sampling": ", ".join(f"{name} {value}" for name, value in result.sampling.items()),
        "recipe's fingerprint": str(result.recipe or ""),
        "state": "" if result.is_finished else "unfinished: some completions are missing",
        **{f"{name} version": str(version) for name, version in result.versions.items()},
    }
    return {"label": source.label, "facts": {name: value for name, value in facts.items() if value}}
