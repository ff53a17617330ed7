"""The picture on top of docs/results: held-out pass@1 over steps, with bands, from the runs that are kept there.

    python benchmarks/results_figure.py

`[figure]` of docs/results/tables.toml says which runs.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from groupwise.reports.plots import new_figure
from groupwise.runlog.reader import Run
from groupwise.stats import mean

RESULTS = Path(__file__).parent.parent / "docs" / "results"
COLOURS = {"blue": "#0072b2", "light blue": "#56b4e9", "orange": "#d55e00", "light orange": "#e69f00"}


def draw_panel(axes: Any, panel: dict[str, Any]) -> None:
    from matplotlib.ticker import PercentFormatter

    for line in panel["lines"]:
        colour = COLOURS[line["colour"]]
        curves = [Run(RESULTS / run).evals() for run in line["runs"]]
        for evals in curves:
            x, y = [record.step for record in evals], [record.pass_at_1 for record in evals]
            low, high = [record.low for record in evals], [record.high for record in evals]
            axes.fill_between(x, low, high, color=colour, alpha=0.18 / len(curves), linewidth=0)
            axes.plot(x, y, color=colour, linewidth=1.8 if len(curves) == 1 else 1.1, marker="o", markersize=2.5)
        ends = [evals[-1].pass_at_1 for evals in curves]
        text = " to ".join(f"{100 * end:.1f}" for end in sorted({min(ends), max(ends)}))
        axes.annotate(
            f"{line['label']}\n{text} %", (curves[0][-1].step, mean(ends)), xytext=(6, line.get("raise", 0)),
            textcoords="offset points", color=colour, va="center", fontsize=8.5,
        )  # fmt: skip
    axes.set_title(panel["title"], loc="left", fontsize=10)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out pass@1")
    axes.set_ylim(0, 0.8)
    axes.set_xlim(left=0, right=1.42 * axes.dataLim.x1)  # room for the labels
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= axes.dataLim.x1])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    spec = tomllib.loads((RESULTS / "tables.toml").read_text(encoding="utf-8"))["figure"]
    figure = new_figure((4.8 * len(spec["panels"]), 3.8))
    for axes, panel in zip(figure.subplots(1, len(spec["panels"])), spec["panels"], strict=True):
        draw_panel(axes, panel)
    figure.savefig(RESULTS / spec["file"], dpi=140)


if __name__ == "__main__":
    main()
