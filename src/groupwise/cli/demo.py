"""Watch a tiny model learn on the CPU in minutes, with no download.

Examples:
  groupwise demo
  groupwise demo --seed 3 --run-dir runs/my-demo
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from groupwise.cli.printing import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from groupwise.runs.reader import Run
    from groupwise.types import EvalRecord, ScoredGroup

NUM_SHOWN = 8
"""Completions in the final table."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="seed of the run")
    parser.add_argument("--run-dir", type=Path, help="directory of the run (default: a new one in runs/)")


def run(options: argparse.Namespace) -> int:
    from groupwise.cli.train import train_here
    from groupwise.config import find_recipe, load_recipe
    from groupwise.training.request import RunRequest

    recipe = load_recipe(find_recipe("demo"), [f"seed={options.seed}"])
    run_dir = options.run_dir or Path("runs") / time.strftime(f"demo-s{options.seed}-%Y%m%d-%H%M%S")
    say(f"groupwise demo: {recipe.description}")
    say(f"Stages: {' → '.join(stage.name for stage in recipe.stages)}. Run directory: {run_dir}\n")
    return train_here(RunRequest(recipe, run_dir))


def show_result(run_dir: Path, console: Console | None = None) -> None:
    """Show held-out pass@1 after each stage, the same problems before and after the last stage, and a picture.

    Everything is read from the run directory, so a resumed demo shows the same as an uninterrupted one.
    """
    from rich.console import Console
    from rich.table import Table

    from groupwise.runs.progress import duration
    from groupwise.runs.reader import Run

    run = Run(run_dir)
    evals = run.evals()
    if not evals:
        return
    after = {record.stage: record for record in evals}
    rows = [("no training", evals[0])] if evals[0].step == 0 else []
    table = Table(title=f"Held-out pass@1 (greedy, {evals[0].num_problems} problems)", title_justify="left")
    for column in ("after", "step", "pass@1", "95 % interval"):
        table.add_column(column, justify="left" if column == "after" else "right")
    for label, record in [*rows, *after.items()]:
        table.add_row(label, str(record.step), f"{record.pass_at_1:.1%}", f"{record.low:.1%} to {record.high:.1%}")
    console = console or Console(highlight=False)
    console.print()
    console.print(table)
    console.print(_completions(run, *[list(after.values())[place] for place in (0, -1)]))
    picture = run_dir / "curves.png"
    run.plot().savefig(picture, dpi=120)
    seconds = sum(record.metrics.get("time/step_s", 0.0) for record in run.steps())
    say(f"Reward and held-out pass@1 over the {duration(seconds)} of training: {picture}")


def _completions(run: Run, before: EvalRecord, after: EvalRecord) -> Table:
    """Return a table of held-out problems before and after, those whose verdict changed first."""
    from rich.table import Table

    from groupwise.base.harmless import printable

    pairs = list(zip(run.eval_rollouts(before.step), run.eval_rollouts(after.step), strict=True))
    pairs.sort(key=lambda pair: pair[0].scores[0].verdict is pair[1].scores[0].verdict)
    table = Table(title=f"Real completions, before and after {after.stage}", title_justify="left")
    for column in ("problem", f"after {before.stage}", f"after {after.stage}"):
        table.add_column(column, overflow="fold")
    for old, new in pairs[:NUM_SHOWN]:
        problem = old.group.prompt.problem
        table.add_row(printable(problem.messages[-1].content), _cell(old), _cell(new))
    return table


def _cell(scored: ScoredGroup) -> Text:
    from rich.text import Text

    from groupwise.base.harmless import printable

    verdict = scored.scores[0].verdict
    colour = {"correct": "green", "wrong": "red"}.get(verdict, "yellow")
    return Text(f"{printable(scored.group.rollouts[0].text)} {verdict}", style=colour)
