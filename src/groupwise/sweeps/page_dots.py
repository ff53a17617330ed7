"""All final scores of a sweep in one picture: a dot for each arm, a whisker for its interval, small dots for its seeds.

Plain SVG in a grid of HTML, without a script: positions are in per cent, so that it fits any width. Every text that
comes in here is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from groupwise.base.harmless import escape
from groupwise.sweeps.arm_scores import ArmScore, KnobScores
from groupwise.sweeps.findings_words import knob_words, label_of, percent, percent_range
from groupwise.sweeps.panels import colours_of

MAX_TICKS = 5
TICK_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25)


def dots(knobs: Sequence[KnobScores]) -> str:
    """ "" where nothing has a score."""
    arms = [arm for scores in knobs for arm in scores.arms]
    if not arms:
        return ""
    ends = [arm.final.estimate() for arm in arms]
    ticks = axis(min(end.low for end in ends), max(end.high for end in ends))
    rows = "".join(_knob_rows(scores, ticks) for scores in knobs if scores.arms)
    labels = "".join(
        f'<text x="{_at(tick, ticks)}" y="13" text-anchor="middle">{escape(percent(tick))}</text>' for tick in ticks
    )
    return (
        f'<div class="dots">{rows}<div class="dot-row"><span></span>'
        f'<svg class="dot-strip" aria-hidden="true">{labels}</svg><span></span></div></div>'
    )


def axis(low: float, high: float) -> list[float]:
    """Round shares from at or below `low` to at or above `high`, evenly spaced and few."""
    for step in TICK_STEPS:
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first < MAX_TICKS:
            last = max(last, first + 1)
            return [number * step for number in range(first, last + 1)]
    return [0.0, 0.25, 0.5, 0.75, 1.0]


def _knob_rows(scores: KnobScores, ticks: Sequence[float]) -> str:
    colours = {
        member.arm.name: colour for member, colour in zip(scores.knob.members, colours_of(scores.knob), strict=True)
    }
    rows = "".join(_row(arm, colours[arm.name], ticks) for arm in scores.arms)
    return f"<h4>{escape(knob_words(scores.knob))}</h4>{rows}"


def _row(arm: ArmScore, colour: str, ticks: Sequence[float]) -> str:
    final = arm.final.estimate()
    grid = "".join(
        f'<line class="grid" x1="{_at(tick, ticks)}" x2="{_at(tick, ticks)}" y1="0" y2="100%"/>' for tick in ticks
    )
    seeds = "".join(
        f'<circle class="dot-seed fill-{colour}" cx="{_at(value, ticks)}" cy="50%" r="2.5"/>'
        for value in arm.final.by_seed.values()
    )
    strip = (
        f'<svg class="dot-strip" aria-hidden="true">{grid}<line class="whisker stroke-{colour}" '
        f'x1="{_at(final.low, ticks)}" x2="{_at(final.high, ticks)}" y1="50%" y2="50%"/>'
        f'{seeds if len(arm.seeds) > 1 else ""}<circle class="fill-{colour}" cx="{_at(final.value, ticks)}" cy="50%" '
        'r="4.5"/></svg>'
    )
    base = " (base)" if arm.member.arm.is_base else ""
    interval = escape(percent_range((final.low, final.high)))
    return (
        f'<div class="dot-row"><span class="dot-label">{escape(label_of(arm.member) + base)}</span>{strip}'
        f'<span class="dot-value"><b>{escape(percent(final.value))}</b> <span>({interval})</span></span></div>'
    )


def _at(share: float, ticks: Sequence[float]) -> str:
    return f"{100 * (share - ticks[0]) / (ticks[-1] - ticks[0]):.2f}%"
