"""Findings of a sweep: sentences made from comparisons, with the numbers behind them.

Contract: pure; the same study gives the same findings. Unclear results are called unclear, every sentence gives the
number of seeds, and gaps are named.

This module finds the best value of a knob, its equals, and values that cost points or stop learning;
`findings_effects` finds the rest. A value is called worse only if `compare_arms` finds it significantly worse, after
Holm's adjustment over all pairs of the knob. "Stops learning" means that an arm is significantly worse than the best
one, and that its own gain over its score before training is within the noise of problems and less than a tenth of the
best arm's gain. Otherwise it "costs N points".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from groupwise.base.text_layout import percent
from groupwise.sweeps.arm_scores import ArmScore, Shares
from groupwise.sweeps.compare_arms import ALPHA, KnobScores, compare, problems_interval, problems_p, score_knob
from groupwise.sweeps.findings_effects import (
    collapse_findings,
    dead_findings,
    gap_findings,
    side_effect_findings,
    speed_findings,
    spread_findings,
)
from groupwise.sweeps.findings_words import (
    SweepFinding,
    knob_words,
    listed,
    percent_range,
    place,
    points_range,
    seeds_words,
    short_label,
    subject,
)
from groupwise.sweeps.spec import PLAIN_LIST
from groupwise.sweeps.sweep_records import Knob

STOPPED_SHARE = 0.1
"""Fraction of the best arm's gain below which an arm has learned almost nothing."""
HEADLINES = ("dead", "stops", "harms", "costs", "best", "unclear", "flat", "none")
"""Kinds of findings that may represent a knob in one sentence, the most important first."""


@dataclass(frozen=True, slots=True)
class KnobFindings:
    scores: KnobScores
    findings: tuple[SweepFinding, ...]

    @property
    def knob(self) -> Knob:
        return self.scores.knob

    @property
    def headline(self) -> SweepFinding:
        return min(
            (finding for finding in self.findings if finding.kind in HEADLINES),
            key=lambda finding: HEADLINES.index(finding.kind),
        )


def find(knob: Knob) -> KnobFindings:
    scores = score_knob(knob)
    findings = (
        *dead_findings(scores),
        *score_findings(scores),
        *speed_findings(scores),
        *side_effect_findings(scores),
        *spread_findings(scores),
        *collapse_findings(knob),
        *gap_findings(knob),
    )
    return KnobFindings(scores, findings)


def score_findings(scores: KnobScores) -> list[SweepFinding]:
    knob = scores.knob
    if not scores.arms:
        sentence = f"{knob_words(knob)}: no finished run has been evaluated yet."
        return [SweepFinding("none", knob.name, sentence, (), {})]
    if len(scores.arms) == 1:
        (arm,) = scores.arms
        sentence = (
            f"{subject(knob, [arm])} ends at {percent(arm.final.mean)}; there is no other arm to compare it with yet; "
            f"{seeds_words([arm])}."
        )
        return [SweepFinding("none", knob.name, sentence, (arm.name,), {"arms": [arm.figures()]})]
    return [_standing(scores), *_worse(scores)]


def _standing(scores: KnobScores) -> SweepFinding:
    """Name the best arm, and the arms that are statistically indistinguishable from it."""
    knob, best = scores.knob, scores.best
    names = tuple(arm.name for arm in scores.arms)
    figures = {
        "best": best.name,
        "not_told_apart": [arm.name for arm in scores.tied],
        "arms": [arm.figures() for arm in scores.arms],
        "comparisons": [scores.against_best(arm) for arm in scores.others],
    }
    if not any(one.is_clear for one in scores.pairs.values()):
        kind, sentence = _undecided(scores)
        return SweepFinding(kind, knob.name, sentence, names, figures)
    final = best.final.estimate()
    sentence = (
        f"{subject(knob, [best])} has the highest final score, {percent(final.value)} "
        f"(95 % interval {percent_range((final.low, final.high))})"
    )
    if scores.tied:
        labels = listed([short_label(arm) for arm in scores.tied])
        are = "is" if len(scores.tied) == 1 else "are"
        finals = percent_range(arm.final.mean for arm in scores.tied)
        sentence += f"; {labels} ({finals}) {are} statistically indistinguishable from it"
    else:
        sentence += ", significantly ahead of all others"
    return SweepFinding("best", knob.name, f"{sentence}; {seeds_words(scores.arms)}.", names, figures)


def _undecided(scores: KnobScores) -> tuple[str, str]:
    """Return kind and sentence if no pair differs significantly: the arms are alike, or the seeds disagree."""
    finals = percent_range(arm.final.mean for arm in scores.arms)
    seeds = seeds_words(scores.arms)
    hidden = max(max(abs(one.low), abs(one.high)) for one in scores.pairs.values())
    rest = f"a difference of up to {points_range([hidden])} is possible"
    who = "The arms" if scores.knob.name == PLAIN_LIST else f"The values of {knob_words(scores.knob)}"
    if all(len(arm.runs) == 1 for arm in scores.arms):
        return "flat", f"{who} are statistically indistinguishable over problems: {finals}; {rest}; {seeds}."
    lowest = min(scores.arms, key=lambda arm: arm.final.mean)
    num_pairs = math.comb(len(scores.arms), 2)
    if num_pairs * problems_p(scores.best.final, lowest.final) < ALPHA:
        return "unclear", f"{who} differ ({finals}), but not significantly with {seeds}; {rest}."
    return "flat", f"{who} are statistically indistinguishable with {seeds}: {finals}; {rest}."


def _worse(scores: KnobScores) -> list[SweepFinding]:
    """Return one finding for each group of neighbouring values with the same effect."""
    worse = {arm.name for arm in scores.worse}
    effects = {arm.name: effect_of(arm, scores.best) for arm in scores.worse}
    if not scores.knob.is_ordered:
        return [_worse_finding(scores, [arm], effects[arm.name]) for arm in scores.worse]
    groups = [list(group) for _, group in groupby(scores.arms, key=lambda arm: effects.get(arm.name))]
    return [_worse_finding(scores, group, effects[group[0].name]) for group in groups if group[0].name in worse]


def effect_of(arm: ArmScore, best: ArmScore) -> str:
    """Classify an arm that is significantly worse than the best one: "harms", "stops" or "costs"."""
    before = arm.before
    if before is None:
        return "costs"
    after = Shares({seed: arm.final.by_seed[seed] for seed in before.by_seed}, arm.final.num_problems)
    if compare((arm.name, arm.name), after, before).high < 0:
        return "harms"
    best_before = best.before or before
    gain, best_gain = after.mean - before.mean, best.final.mean - best_before.mean
    low, _ = problems_interval(after, before)
    return "stops" if low <= 0 and gain <= STOPPED_SHARE * best_gain else "costs"


def _worse_finding(scores: KnobScores, arms: Sequence[ArmScore], effect: str) -> SweepFinding:
    knob, best = scores.knob, scores.best
    comparisons = [scores.against_best(arm) for arm in arms]
    before = [arm.before.mean for arm in arms if arm.before is not None]
    finals = percent_range(arm.final.mean for arm in arms)
    against = f"against {percent(best.final.mean)} {place(knob, best)}; {seeds_words([*arms, best])}."
    who = _reach(scores, arms)
    if effect == "stops":
        sentence = f"{who} stops learning: {finals} ({percent_range(before)} before training) {against}"
    elif effect == "harms":
        sentence = f"{who} makes the model worse: {finals} ({percent_range(before)} before training) {against}"
    else:
        lost = points_range(-one.difference for one in comparisons)
        sentence = f"{who} costs {lost}: {finals} {against}"
    figures: dict[str, Any] = {
        "best": best.name,
        "arms": [arm.figures() for arm in (*arms, best)],
        "comparisons": comparisons,
    }
    return SweepFinding(effect, knob.name, sentence, tuple(arm.name for arm in arms), figures)


def _reach(scores: KnobScores, arms: Sequence[ArmScore]) -> str:
    """Return "KL coefficient ≥ 1" if all higher values of the sweep are included; "at 1" for one value."""
    knob = scores.knob
    if len(arms) == 1 or not knob.is_ordered:
        return subject(knob, arms)
    first, last = short_label(arms[0]), short_label(arms[-1])
    if arms[-1].name == scores.arms[-1].name:
        return f"{knob_words(knob)} ≥ {first}"
    if arms[0].name == scores.arms[0].name:
        return f"{knob_words(knob)} ≤ {last}"
    return f"{knob_words(knob)} from {first} to {last}"
