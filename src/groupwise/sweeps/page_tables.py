"""The tables of a sweep's page: the result of each knob, the figures of each arm, and the unfinished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.base.text_layout import duration
from groupwise.sweeps.arm_scores import ArmScore, KnobScores
from groupwise.sweeps.findings import KnobFindings
from groupwise.sweeps.findings_effects import steps_words
from groupwise.sweeps.findings_words import knob_words, label_of, percent, percent_range, plain
from groupwise.sweeps.study import Study, gap_words
from groupwise.web.report.markup import table


def summary_table(found: Sequence[KnobFindings]) -> str:
    rows = []
    for one in found:
        scores = one.compared.scores
        if scores.arms:
            tied = len(one.compared.tied)
            best = label_of(scores.best.member) + (f"\n{tied} statistically indistinguishable" if tied else "")
            reached = percent_range(arm.final.mean for arm in scores.arms)
        else:
            best = reached = "–"
        rows.append([knob_words(one.knob), reached, best, one.headline.sentence])
    return table(["knob", "final scores", "highest", "finding"], rows, "Knobs", "told")


def score_table(scores: KnobScores) -> str:
    header = ["value", "final score", "seeds", "best evaluation", "steps to target"]
    header += ["final KL", "clip share", "largest gradient norm", "tokens", "time"]
    return table(header, [_row(scores, arm) for arm in scores.arms], f"Scores of {knob_words(scores.knob)}")


def _row(scores: KnobScores, arm: ArmScore) -> list[str]:
    figures = arm.to_json(scores.target, scores.kl_metric)
    final = arm.final.estimate()
    base = "\nbase" if arm.member.arm.is_base else ""
    return [
        label_of(arm.member) + base,
        f"{percent(final.value)}\n{percent_range((final.low, final.high))}",
        f"{percent_range((figures['final_min'], figures['final_max']))}\n{len(arm.seeds)} finished",
        f"{percent(figures['best'])}\nstep {figures['best_step']:g}",
        steps_words(scores, arm),
        _known(figures, "final_kl"),
        "–" if figures["final_clip_share"] is None else percent(figures["final_clip_share"]),
        _known(figures, "largest_grad_norm"),
        "–" if figures["tokens"] is None else f"{figures['tokens']:,.0f}",
        "–" if figures["seconds"] is None else duration(figures["seconds"]),
    ]


def _known(figures: Mapping[str, Any], name: str) -> str:
    return "–" if figures[name] is None else plain(figures[name])


def gap_table(study: Study) -> str:
    rows = [[arm.name, str(run.seed), gap_words(run)] for arm, run in study.runs if not run.is_finished]
    return table(["arm", "seed", "state"], rows, "Unfinished runs", "told") if rows else ""
