"""What to look at instead of the loss: the first screen's answer to "the loss is 0, is it training?"."""

from __future__ import annotations

from collections.abc import Sequence

from groupwise.base.stats import mean
from groupwise.doctor.chart import StageHistory
from groupwise.doctor.checks import DISEASES
from groupwise.doctor.sampling_checks import RECENT_STEPS
from groupwise.doctor.series import Point, middle, values_of

ZERO_LOSS = 1e-6
"""Rounding leaves this much of a sum that is 0."""


def clean_bill(charts: Sequence[StageHistory]) -> str:
    """Of a run in which nothing was found; none is given where there was too little to look at."""
    if max((len(chart.steps) for chart in charts), default=0) < RECENT_STEPS:
        return f"Nothing found so far: most of what the doctor looks for takes {RECENT_STEPS} steps of a stage."
    return f"Healthy: none of {len(DISEASES)} diseases found."


def vital_signs(chart: StageHistory) -> list[str]:
    """Sentences about a stage, for people. [] for a stage that has no policy loss to wonder about."""
    losses = chart.series("policy/loss")
    if not chart.series("reward/mean") or not losses:
        return []
    zero_share = mean([float(abs(value) <= ZERO_LOSS) for value in values_of(losses)])
    lines = [_about_loss(zero_share, middle(losses))]
    lines.append(f"reward {_course(chart.series('reward/mean'))}; training pass@1 {_course(_pass_rates(chart))}")
    gradient, signal = chart.series("policy/grad_norm"), chart.series("groups/signal_share")
    moves = sum(value > 0 for value in values_of(gradient))
    lines.append(
        f"gradient above 0 in {moves} of {len(losses)} updated steps (median {middle(gradient):.2g}); "
        f"groups with signal {mean(values_of(signal)):.0%}"
        if gradient and signal
        else "no gradient was recorded"
    )
    before = [record for record in chart.evals if record.step < chart.steps[0].step]
    inside = [record for record in chart.evals if chart.steps[0].step <= record.step <= chart.steps[-1].step]
    evals = [*before[-1:], *inside]
    if evals:
        first, last = evals[0], evals[-1]
        lines.append(
            f"held-out pass@1 {first.pass_at_1:.1%} (step {first.step}) → {last.pass_at_1:.1%} (step {last.step}), "
            f"95 % interval {last.low:.1%} to {last.high:.1%}"
        )
    else:
        lines.append("no held-out evaluation yet: that is the one number that says whether it got better")
    return lines


def _about_loss(zero_share: float, usual: float) -> str:
    if zero_share > 0.5:
        return (
            f"The loss is 0 in {zero_share:.0%} of the steps. That is right: with one update per batch each group's "
            "advantages cancel, and the gradient does not. Look at these instead:"
        )
    return f"The loss is {usual:.2g} in the middle; in GRPO its size says almost nothing. Look at these instead:"


def _pass_rates(chart: StageHistory) -> list[Point]:
    return chart.series("score/pass_at_1")


def _course(points: list[Point]) -> str:
    """From the first to the last tenth of the steps."""
    if not points:
        return "unknown"
    size = max(1, len(points) // 10)
    return f"{mean(values_of(points[:size])):.3f} → {mean(values_of(points[-size:])):.3f}"
