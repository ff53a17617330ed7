"""Findings of a sweep: sentences made from comparisons, with the numbers behind them.

Contract: pure; the same study gives the same findings. Unclear results are called unclear, every sentence gives the
number of seeds, and gaps are named. `compare_arms` decides when a difference is significant.
"""

from __future__ import annotations

from dataclasses import dataclass

from groupwise.sweeps.arm_scores import score_knob
from groupwise.sweeps.compare_arms import ComparedArms, compare_knob
from groupwise.sweeps.findings_effects import (
    collapse_findings,
    gap_findings,
    side_effect_findings,
    speed_findings,
    spread_findings,
)
from groupwise.sweeps.findings_words import SweepFinding
from groupwise.sweeps.findings_worse import score_findings
from groupwise.sweeps.study import Study
from groupwise.sweeps.sweep_records import Knob

HEADLINES = ("stops", "harms", "costs", "best", "unclear", "flat", "none")
"""Kinds of findings that may represent a knob in one sentence, the most important first."""


@dataclass(frozen=True, slots=True)
class KnobFindings:
    compared: ComparedArms
    findings: tuple[SweepFinding, ...]

    @property
    def knob(self) -> Knob:
        return self.compared.scores.knob

    @property
    def headline(self) -> SweepFinding:
        return min(
            (finding for finding in self.findings if finding.kind in HEADLINES),
            key=lambda finding: HEADLINES.index(finding.kind),
        )


def find_all(study: Study) -> tuple[KnobFindings, ...]:
    return tuple(find(knob) for knob in study.knobs)


def find(knob: Knob) -> KnobFindings:
    scores = score_knob(knob)
    compared = compare_knob(scores)
    findings = (
        *score_findings(compared),
        *speed_findings(compared),
        *side_effect_findings(compared),
        *spread_findings(scores),
        *collapse_findings(knob),
        *gap_findings(knob),
    )
    return KnobFindings(compared, findings)
