"""Progress of a sweep: a live table in a terminal, plain lines elsewhere.

Contract: it draws on a `Screen`, so it never stops the sweep. Names and errors are stripped of control codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from groupwise.base.harmless import printable
from groupwise.base.screen import Screen
from groupwise.sweeps.run_jobs import JobProgress, summary_of

if TYPE_CHECKING:
    from rich.console import Group as Renderables
    from rich.table import Table
    from rich.text import Text

_STYLES = {"running": "bold", "failed": "red", "stopped": "yellow", "finished": "green", "waiting": "dim"}
"""Style by status, in the order in which runs are shown if there is no room for all."""
_ROOM = 4
"""Lines of the terminal that are not rows of the table."""


class Display:
    def __init__(self, num_runs: int, stream: TextIO | None = None) -> None:
        self._screen = Screen(stream, is_kept=False)
        self._num_runs = num_runs
        self._num_ended = 0

    def changed(self, now: JobProgress) -> None:
        """Show that a run started or ended."""
        is_ended = now.status in ("finished", "failed", "stopped")
        self._num_ended += is_ended
        if not self._screen.is_live:
            count = f"[{self._num_ended}/{self._num_runs}]" if is_ended else ""
            self.say(" ".join(filter(None, [now.job.name + ":", now.status, _detail(now), count])))

    def passed(self, runs: Sequence[JobProgress]) -> None:
        """Show the state of all runs."""
        if self._screen.is_live:
            self._screen.show(self._render(runs))

    def say(self, line: str) -> None:
        self._screen.say(printable(line))

    def close(self) -> None:
        self._screen.end()

    def _render(self, runs: Sequence[JobProgress]) -> Renderables:
        from rich.console import Group as Renderables

        room = max(1, self._screen.height - _ROOM)
        shown = sorted(runs, key=lambda run: list(_STYLES).index(run.status))[:room]
        counts = ", ".join(f"{count} {status}" for status, count in summary_of(runs).items() if count)
        more = len(runs) - len(shown)
        heading = f"{counts} ({more} not shown)" if more else counts
        return Renderables(_text(heading, "bold"), runs_table(shown, is_one_line_each=True))


def runs_table(runs: Sequence[JobProgress], is_one_line_each: bool = False) -> Table:
    """Return the table of runs. `is_one_line_each`: cut cells that do not fit, so that the height is known."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("arm", "seed", "", ""):
        table.add_column(name, no_wrap=name != "" or is_one_line_each)
    for run in runs:
        style = _STYLES[run.status]
        cells = (run.job.arm.name, str(run.job.seed), run.status, _detail(run))
        table.add_row(*(_text(cell, style if index >= 2 else "") for index, cell in enumerate(cells)))
    return table


def _text(cell: str, style: str = "") -> Text:
    from rich.text import Text

    # Text, not a plain string: rich would read [brackets] as markup.
    return Text(printable(cell), style=style)


def _detail(run: JobProgress) -> str:
    score = "" if run.score is None else f"held-out {run.score:.3f}"
    steps = f"step {run.step}/{run.job.total_steps}"
    if run.status == "waiting":
        return ""
    if run.status == "running":
        return steps
    if run.status == "finished":
        return score
    return f"at {steps}: {run.error}" if run.error else f"at {steps}"
