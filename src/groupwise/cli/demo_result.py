"""What the demo shows when it ends: scores after each stage, completions before and after, and a picture."""

from __future__ import annotations

from pathlib import Path

from rich.table import Column
from rich.text import Text

from groupwise.base.harmless import printable
from groupwise.base.text_layout import duration, percent
from groupwise.cli.printing import print_table, say
from groupwise.runs.reader import Run
from groupwise.types import EvalRecord, ScoredGroup

NUM_SHOWN = 8
"""Completions in the table."""


def show_result(run_dir: Path) -> None:
    """Show held-out pass@1 after each stage, the same problems before and after the last stage, and a picture.

    Everything is read from the run directory, so a resumed demo shows the same as an uninterrupted one.
    """
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
    pairs = list(zip(run.eval_rollouts(before.step), run.eval_rollouts(after.step), strict=True))
    pairs.sort(key=lambda pair: pair[0].scores[0].verdict is pair[1].scores[0].verdict)
    rows = [(old.group.prompt.problem.question, _cell(old), _cell(new)) for old, new in pairs[:NUM_SHOWN]]
    # At 80 columns a narrow first column leaves room for most completions on one line.
    columns = [Column("problem", max_width=16)]
    columns += [Column(f"after {record.stage}", overflow="fold") for record in (before, after)]
    print_table(columns, [rows], title=f"Real completions, before and after {after.stage}")


def _cell(scored: ScoredGroup) -> Text:
    verdict = scored.scores[0].verdict
    colour = {"correct": "green", "wrong": "red"}.get(verdict, "yellow")
    return Text(f"{printable(scored.group.rollouts[0].text)}\n{verdict}", style=colour)
