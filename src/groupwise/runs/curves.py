"""The learning curves of a run as one picture: training reward above, held-out pass@1 with its interval below."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from groupwise.runs.records import by_stage

if TYPE_CHECKING:
    from groupwise.runs.reader import Run

_COLOURS = ("#4269d0", "#efb118", "#3ca951", "#a463f2", "#ff725c")


class CurvesFigure(Figure):
    """A figure that a notebook shows inline, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def draw_curves(run: Run) -> CurvesFigure:
    """Draw a run's curves; save them with `figure.savefig(path)`."""
    # Not through pyplot: no global state, no display, nothing to close.
    figure = CurvesFigure(figsize=(8, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    evals = run.evals()
    stages = by_stage(run.steps())
    for colour, (stage, records) in zip(_COLOURS * len(stages), stages.items(), strict=False):
        rewards = [(r.step, r.metrics["reward/mean"]) for r in records if "reward/mean" in r.metrics]
        if rewards:
            numbers, values = [step for step, _ in rewards], [value for _, value in rewards]
            above.plot(numbers, values, color=colour, alpha=0.3, linewidth=1)
            above.plot(numbers, _smooth(values), color=colour, linewidth=2, label=f"{stage} (mean of 5 steps)")
        members = [record for record in evals if record.stage == stage]
        # A stage starts where the one before it ended, so that its line begins there.
        members = [record for record in evals if members and record.step < members[0].step][-1:] + members
        x = [r.step for r in members]
        below.plot(x, [r.pass_at_1 for r in members], color=colour, marker="o", markersize=4, linewidth=2, label=stage)
        below.fill_between(x, [r.low for r in members], [r.high for r in members], color=colour, alpha=0.15)
    above.set_ylabel("training reward")
    below.set(ylabel="held-out pass@1", ylim=(-0.03, 1.03), xlabel="step (dotted: a new stage; band: 95 % interval)")
    starts = [records[0].step for records in stages.values()][1:]
    for axes in (above, below):
        for first in starts:
            axes.axvline(first - 0.5, color="grey", linestyle=":", linewidth=1)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, loc="lower right")
    above.set_title(run.name, loc="left")
    return figure


def _smooth(values: list[float], reach: int = 2) -> list[float]:
    """Centred, so that the line does not lag behind what it smooths; shorter at the ends."""
    windows = [values[max(0, index - reach) : index + reach + 1] for index in range(len(values))]
    return [sum(window) / len(window) for window in windows]
