"""Draws the picture of docs/results: held-out pass@1 over steps, with 95 % intervals, from the archived runs.

    python benchmarks/results_figure.py          # draws it
    python benchmarks/results_figure.py --check  # exits with status 1 if it was drawn from other data

`figure.panels` of benchmarks/results/tables.toml names the runs. A digest of what was drawn is stored in the PNG.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from archives import stored

from groupwise.base.stats import mean
from groupwise.runs.reader import Run
from groupwise.web.report.plots import new_figure

RESULTS = Path(__file__).parent.parent / "docs" / "results"
TABLES = Path(__file__).parent / "results" / "tables.toml"
COLOURS = {"blue": "#0072b2", "light blue": "#56b4e9", "orange": "#d55e00", "light orange": "#e69f00"}
NOTE = "Drawn from"
"""The key of the PNG's text field that holds the digest."""


def read_panels() -> list[dict[str, Any]]:
    """The panels of tables.toml, each run with its curve: (step, pass@1, low, high) of its evaluations."""
    spec = tomllib.loads(TABLES.read_text(encoding="utf-8"))
    panels: list[dict[str, Any]] = spec["figure"]["panels"]
    for line in (line for panel in panels for line in panel["lines"]):
        line["curves"] = [
            [(one.step, one.pass_at_1, one.low, one.high) for one in Run(stored(run)).evals()] for run in line["runs"]
        ]
    return panels


def digest(panels: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(panels, sort_keys=True).encode()).hexdigest()


def draw_panel(axes: Any, panel: dict[str, Any]) -> None:
    from matplotlib.ticker import PercentFormatter

    for line in panel["lines"]:
        colour, curves = COLOURS[line["colour"]], line["curves"]
        for curve in curves:
            x, y, low, high = zip(*curve, strict=True)
            axes.fill_between(x, low, high, color=colour, alpha=0.18 / len(curves), linewidth=0)
            axes.plot(x, y, color=colour, linewidth=1.8 if len(curves) == 1 else 1.1, marker="o", markersize=2.5)
        ends = [curve[-1][1] for curve in curves]
        text = " to ".join(f"{100 * end:.1f}" for end in sorted({min(ends), max(ends)}))
        axes.annotate(
            f"{line['label']}\n{text} %", (curves[0][-1][0], mean(ends)), xytext=(6, line.get("raise", 0)),
            textcoords="offset points", color=colour, va="center", fontsize=8.5,
        )  # fmt: skip
    for note in panel.get("notes", ()):
        axes.annotate(note["text"], (note["step"], note["value"]), color="#555555", ha="center", fontsize=8.5)
    axes.set_title(panel["title"], loc="left", fontsize=10)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out pass@1")
    axes.set_ylim(0, 0.8)
    axes.set_xlim(left=0, right=1.42 * axes.dataLim.x1)  # room for the labels
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= axes.dataLim.x1])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw(panels: list[dict[str, Any]], path: Path) -> None:
    figure = new_figure((4.8 * len(panels), 3.8))
    for axes, panel in zip(figure.subplots(1, len(panels)), panels, strict=True):
        draw_panel(axes, panel)
    figure.savefig(path, dpi=140, metadata={NOTE: digest(panels)})


def is_stale(panels: list[dict[str, Any]], path: Path) -> bool:
    from PIL import Image  # comes with matplotlib

    with Image.open(path) as picture:
        return bool(picture.info.get(NOTE) != digest(panels))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    panels, path = read_panels(), RESULTS / "held-out.png"
    if not options.check:
        draw(panels, path)
        return 0
    if is_stale(panels, path):
        print(f"{path.name}: stale")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
