"""The demo: a tiny model learns on the CPU, with nothing to download; then a table of before and after, and a picture.

It runs the recipe `demo` like any other; what it shows is read back from the run directory.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from groupwise.api.watchers import watchers
from groupwise.base.harmless import printable
from groupwise.config import find_recipe, load_recipe
from groupwise.runs.progress import Progress
from groupwise.runs.reader import Run
from groupwise.types import EvalRecord, ScoredGroup

NUM_SHOWN = 8


def run_demo(seed: int, run_dir: Path | None) -> int:
    from groupwise.training import pipeline

    recipe = load_recipe(find_recipe("demo"), [f"seed={seed}"])
    run_dir = run_dir or Path("runs") / time.strftime(f"demo-s{seed}-%Y%m%d-%H%M%S")
    console = Console(highlight=False)
    stages = " → ".join(stage.name for stage in recipe.stages)
    console.print(f"[bold]groupwise demo[/]: {recipe.description}\nStages: {stages}. Run directory: {run_dir}\n")
    start = time.monotonic()
    if not pipeline.train(recipe, run_dir, [Progress(recipe.total_steps), *watchers()]):
        console.print(f"Stopped and saved. Go on with: groupwise train --resume {run_dir}")
        return 1
    show_result(Run(run_dir), console, time.monotonic() - start)
    return 0


def show_result(run: Run, console: Console, seconds: float) -> None:
    """Held-out pass@1 after each stage, the same problems before and after RL, and a picture."""
    evals = run.evals()
    after = {record.stage: record for record in evals}
    before_training = evals[0]
    table = Table(title=f"Held-out pass@1 (greedy, {before_training.num_problems} problems)", title_justify="left")
    for column in ("after", "step", "pass@1", "95 % interval"):
        table.add_column(column, justify="left" if column == "after" else "right")
    for label, record in [("nothing yet", before_training), *after.items()]:
        table.add_row(label, str(record.step), f"{record.pass_at_1:.1%}", f"{record.low:.1%} to {record.high:.1%}")
    console.print()
    console.print(table)
    first, last = next(iter(after.values())), list(after.values())[-1]
    console.print(_completions(run, first, last))
    picture = run.path / "curves.png"
    run.plot().savefig(picture, dpi=120)
    console.print(f"Reward and pass@1 over the steps: {picture}\nWhole run: {run.path}, {seconds:.0f} s.")


def _completions(run: Run, before: EvalRecord, after: EvalRecord) -> Table:
    """The same held-out problems: first those that changed, since they tell more."""
    pairs = list(zip(run.eval_rollouts(before.step), run.eval_rollouts(after.step), strict=True))
    pairs.sort(key=lambda pair: pair[0].scores[0].verdict is pair[1].scores[0].verdict)
    table = Table(title=f"Real completions, before and after {after.stage}", title_justify="left")
    for column in ("problem", f"after {before.stage}", f"after {after.stage}"):
        table.add_column(column, overflow="fold")
    for old, new in pairs[:NUM_SHOWN]:
        problem = old.group.prompt.problem
        table.add_row(printable(problem.messages[-1].content), _cell(old), _cell(new))
    return table


def _cell(scored: ScoredGroup) -> str:
    score = scored.scores[0]
    text = printable(scored.group.rollouts[0].text).replace("[", "\\[")
    colour = {"correct": "green", "wrong": "red"}.get(score.verdict, "yellow")
    return f"[{colour}]{text} {score.verdict}[/]"
