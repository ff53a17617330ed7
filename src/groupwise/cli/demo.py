"""Watch a tiny model learn on the CPU in minutes, with no download.

Examples:
  groupwise demo
  groupwise demo --seed 3 --run-dir runs/my-demo
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from groupwise.base.harmless import printable
from groupwise.base.text_layout import duration, percent
from groupwise.cli.arguments import Options, argument, takes
from groupwise.cli.printing import print_table, say
from groupwise.config import find_recipe, load_recipe
from groupwise.runs.reader import Run

if TYPE_CHECKING:
    from rich.text import Text

    from groupwise.types import EvalRecord, ScoredGroup

NUM_SHOWN = 8
"""Completions in the table."""


@takes(
    argument("--seed", "seed of the run", default=0),
    argument("--run-dir", "directory of the run (default: a new one in runs/)", type=Path),
)
def run(options: Options) -> int:
    from groupwise.cli.train import train_here
    from groupwise.training.pipeline import RunRequest

    recipe = load_recipe(find_recipe("demo"), [f"seed={options.seed}"])
    run_dir = options.run_dir or Path("runs") / time.strftime(f"demo-s{options.seed}-%Y%m%d-%H%M%S")
    say(f"groupwise demo: {recipe.description}")
    say(f"Stages: {' → '.join(stage.name for stage in recipe.stages)}. Run directory: {run_dir}\n")
    return train_here(RunRequest(recipe, run_dir))


def show_result(run_dir: Path) -> None:
    """Show held-out pass@1 after each stage, the same problems before and after the last stage, and a picture.

    Everything is read from the run directory, so a resumed demo shows the same as an uninterrupted one.
    """
    from rich.table import Column

    run = Run(run_dir)
    evals = run.evals()
    if not evals:
        return
    after = {record.stage: record for record in evals}
    records = [("no training", evals[0])] if evals[0].step == 0 else []
    rows = [
        (label, str(record.step), percent(record.pass_at_1), f"{percent(record.low)} to {percent(record.high)}")
        for label, record in [*records, *after.items()]
    ]
    columns = [Column("after"), *(Column(name, justify="right") for name in ("step", "pass@1", "95 % interval"))]
    print()
    print_table(columns, [rows], title=f"Held-out pass@1 (greedy, {evals[0].num_problems} problems)")
    first, *_, last = [*after.values()] * 2
    _show_completions(run, first, last)
    picture = run_dir / "curves.png"
    run.plot().savefig(picture, dpi=120)
    seconds = sum(record.metrics.get("time/step_s", 0.0) for record in run.steps())
    say(f"Reward and held-out pass@1 over the {duration(seconds)} of training: {picture}")


def _show_completions(run: Run, before: EvalRecord, after: EvalRecord) -> None:
    """Print a table of held-out problems before and after, those whose verdict changed first."""
    from rich.table import Column

    pairs = list(zip(run.eval_rollouts(before.step), run.eval_rollouts(after.step), strict=True))
    pairs.sort(key=lambda pair: pair[0].scores[0].verdict is pair[1].scores[0].verdict)
    rows = [(old.group.prompt.problem.question, _cell(old), _cell(new)) for old, new in pairs[:NUM_SHOWN]]
    # At 80 columns a narrow first column leaves room for most completions on one line.
    columns = [Column("problem", max_width=16)]
    columns += [Column(f"after {record.stage}", overflow="fold") for record in (before, after)]
    print_table(columns, [rows], title=f"Real completions, before and after {after.stage}")


def _cell(scored: ScoredGroup) -> Text:
    from rich.text import Text

    verdict = scored.scores[0].verdict
    colour = {"correct": "green", "wrong": "red"}.get(verdict, "yellow")
    return Text(f"{printable(scored.group.rollouts[0].text)}\n{verdict}", style=colour)
