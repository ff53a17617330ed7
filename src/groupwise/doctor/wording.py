"""The doctor's report in words: findings, and the vital signs of a stage ("the loss is 0, is it training?").

In a terminal and in a log, text of models, data sets and verifiers loses its control codes and is never markup.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.text import Text

from groupwise.audit.held_out_gain import evals_around
from groupwise.base.harmless import printable
from groupwise.base.json_values import plain
from groupwise.base.stats import mean
from groupwise.base.text_layout import percent, wrapped
from groupwise.doctor.checks import CHECKS
from groupwise.doctor.series import Point, average, middle, values_of
from groupwise.doctor.stage_history import RECENT_STEPS, Change, Finding, StageHistory

STYLES = {"problem": "bold red", "warning": "bold yellow"}
ZERO_LOSS = 1e-6
"""A sum that is 0 can be off by this much in rounding."""


def say_change(change: Change) -> str:
    return f"{override}  ({change.advice})" if (override := say_override(change)) else change.advice


def say_override(change: Change) -> str:
    """Return the change as an option of the command line; "" when no key helps."""
    if not change.key:
        return ""
    value = change.value
    # As `--set` reads it, and as a shell leaves it.
    is_float = isinstance(value, float)
    text = f"{value:g}" if is_float else shlex.quote(value if isinstance(value, str) else json.dumps(value))
    return f"--set {change.key}={text}"


def with_words(finding: Finding) -> dict[str, Any]:
    """Return the finding as JSON, with its title and its change as people read them."""
    words = {"title": CHECKS[finding.check].title, "say_change": say_change(finding.change)}
    return dict(plain(finding.to_json() | words))


def log_message(finding: Finding) -> str:
    """Return the finding for the log of a running training.

    The option has a line of its own, which is short enough for a terminal that wraps at spaces.
    """
    title = f"{finding.severity}: {CHECKS[finding.check].title} (stage {finding.stage}, step {finding.last_step})"
    change = filter(None, (say_override(finding.change), finding.change.advice))
    return "\n".join([printable(f"{title}: {finding.seen}"), *(f"  {printable(line)}" for line in change)])


def clean_bill(stages: Sequence[StageHistory]) -> str:
    """Return what to say of a run without findings."""
    if max((len(stage.steps) for stage in stages), default=0) < RECENT_STEPS:
        return f"No problem found so far: most checks need {RECENT_STEPS} steps of a stage."
    return f"No problem found: all {len(CHECKS)} checks passed."


def vital_signs(stage: StageHistory) -> list[str]:
    """Return sentences about how a stage is doing; [] for a stage without rewards, such as SFT."""
    rewards, losses = stage.series("reward/mean"), values_of(stage.series("policy/loss"))
    if not rewards or not (losses or stage.num_dead):
        return []
    signal, gradient = stage.series("groups/signal_share"), stage.series("policy/grad_norm")
    moves = sum(value > 0 for value in values_of(gradient))
    lines = [_about_loss(stage, losses, has_gradient=moves * 2 > len(losses))]
    lines.append(f"reward {_course(rewards)}; training pass@1 {_course(stage.series('score/pass_at_1'))}")
    typical = f" (median {middle(gradient):.2g})" if gradient else ""
    lines.append(
        f"gradient above 0 in {moves} of {len(stage.steps)} steps{typical}; "
        f"groups with signal {percent(average(signal), 0)}"
        if signal
        else "no gradient was recorded"
    )
    if evals := evals_around(stage.steps, stage.evals):
        first, last = evals[0], evals[-1]
        lines.append(
            f"held-out pass@1 {percent(first.pass_at_1)} (step {first.step}) → {percent(last.pass_at_1)} "
            f"(step {last.step}), 95 % interval {percent(last.low)} to {percent(last.high)}"
        )
    else:
        lines.append("no held-out evaluation yet; only that shows whether the model got better")
    return lines


def _about_loss(stage: StageHistory, losses: Sequence[float], has_gradient: bool) -> str:
    if stage.num_dead * 2 > len(stage.steps):
        return (
            f"No gradient in {stage.num_dead} of {len(stage.steps)} steps: all rewards of each group were equal, so "
            "the policy learned nothing in them."
        )
    zero_share = mean([float(abs(value) <= ZERO_LOSS) for value in losses])
    zero = percent(zero_share, 0)
    if zero_share <= 0.5:
        return f"The median loss is {median(losses):.2g}; in GRPO its size says almost nothing. Look at these instead:"
    if not has_gradient:
        return f"The loss is 0 in {zero} of the steps, and so is the gradient: the policy does not change."
    return (
        f"The loss is 0 in {zero} of the steps. That is right: with one update per batch the advantages of each group "
        "cancel, but the gradient does not. Look at these instead:"
    )


def _course(points: list[Point]) -> str:
    """Return the means over the first and the last tenth of the steps."""
    if not points:
        return "unknown"
    size = max(1, len(points) // 10)
    return f"{average(points[:size]):.3f} → {average(points[-size:]):.3f}"


def show(name: str, stages: Sequence[StageHistory], findings: Sequence[Finding], console: Console) -> None:
    """Print the vital signs of each stage, then the findings; `--set` lines stand alone and are never split."""

    def write(text: str, style: str = "", first: str = "", rest: str | None = None) -> None:
        lines = wrapped(printable(text), " " * len(first) if rest is None else rest, console.width, first=first)
        console.print(Text(lines, style=style), soft_wrap=True)

    write(f"Doctor: {name}", "bold")
    for stage in stages:
        console.print()
        write(f"stage {stage.name}, steps {stage.steps[0].step} to {stage.steps[-1].step}", "bold")
        for line in vital_signs(stage):
            write(line, first="  ", rest="    ")
        if len(stage.steps) < RECENT_STEPS:
            write(f"fewer than {RECENT_STEPS} steps: too few for most checks", "dim", "  ")
    if not findings:
        console.print()
        write(clean_bill(stages) if stages else "No step is recorded yet: there is nothing to examine.", "bold")
    for finding in findings:
        place = f"stage {finding.stage}, steps {finding.first_step} to {finding.last_step}"
        title = f"{finding.severity}: {CHECKS[finding.check].title} ({place})"
        console.print()
        write(title, STYLES[finding.severity])
        write(finding.seen, first="  seen    ")
        write(finding.means, first="  means   ")
        if override := say_override(finding.change):
            console.print(Text(f"  change  {printable(override)}"), soft_wrap=True)
        write(finding.change.advice, first=" " * 10 if override else "  change  ")
