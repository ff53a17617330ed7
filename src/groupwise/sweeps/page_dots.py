"""The final scores of a sweep as data for one figure: a dot for each arm, with its interval and its seeds.

The page's script draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from groupwise.sweeps.arm_scores import KnobScores
from groupwise.sweeps.findings_words import knob_words, label_of, percent, percent_range
from groupwise.sweeps.panels import colours_of


def dot_groups(knobs: Sequence[KnobScores]) -> list[dict[str, Any]]:
    """Return one group of dots for each knob that has scores."""
    return [{"title": knob_words(scores.knob), "rows": _rows(scores)} for scores in knobs if scores.arms]


def _rows(scores: KnobScores) -> list[dict[str, Any]]:
    colours = {
        member.arm.name: colour for member, colour in zip(scores.knob.members, colours_of(scores.knob), strict=True)
    }
    rows = []
    for arm in scores.arms:
        final = arm.final.estimate()
        rows.append(
            {
                "label": label_of(arm.member) + (" (base)" if arm.member.arm.is_base else ""),
                "colour": colours[arm.name],
                "value": final.value,
                "low": final.low,
                "high": final.high,
                "seeds": list(arm.final.by_seed.values()),
                "words": [percent(final.value), percent_range((final.low, final.high))],
            }
        )
    return rows
