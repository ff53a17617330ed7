"""The progress display of a training: live in a terminal, one plain line per step anywhere else.

Contract: a sink like any other, drawn on a `Screen` when a record arrives: a file or a pipe gets plain text, one line
per record. Control codes are removed from all names before they are printed. It never stops the run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from groupwise.base.harmless import printable
from groupwise.base.screen import Screen
from groupwise.base.text_layout import duration, percent
from groupwise.runs.records import DEAD_STEPS, has_no_gradient
from groupwise.types import EvalRecord, StepRecord

if TYPE_CHECKING:
    from rich.console import Group as Renderables

_WINDOW = 20
"""Number of recent steps that the time left is estimated from."""

_NOTE_STEPS = 3
"""Number of steps for which the live display keeps a note."""

ZERO_LOSS_NOTE = (
    "A loss of 0 in the first step is right: the advantages of each group cancel while the policy has not moved. "
    "It does learn; watch the reward."
)
NO_SIGNAL_NOTE = "No gradient in the first step: in every group all rewards were equal, so there was nothing to learn."
DEAD_NOTE = f"No gradient in the first {DEAD_STEPS} steps: the policy is unchanged. `groupwise doctor` says what to do."


class Progress:
    def __init__(
        self, total_steps: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total_steps = total_steps
        self._clock = clock
        self._record: StepRecord | None = None
        self._eval: EvalRecord | None = None
        self._note = ""
        self._num_dead = 0
        """Steps since the stage began, while none had a gradient."""
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._last_time: float | None = None
        self._screen = Screen(stream)
        self._show()

    def write(self, record: StepRecord) -> None:
        self._measure(record)
        note = self._note_on(record)
        self._record = record
        if note or record.stage_step > _NOTE_STEPS:
            self._note = note
        shown = [self._heading(), *(f"{label} {value}" for label, value in self._values())]
        self._show("  ".join(shown), f"note: {note}" if note else "")

    def write_eval(self, record: EvalRecord) -> None:
        self._eval = record
        count = f"{record.num_problems} problems x {record.rollouts_per_problem}"
        self._show(f"held-out after step {record.step}  {printable(record.stage)}  pass@1 {_interval(record)}  {count}")

    def close(self) -> None:
        self._screen.end()

    def _measure(self, record: StepRecord) -> None:
        """Take the time between records, with evals and checkpoints; for the first one, that of the step itself."""
        now = self._clock()
        if self._last_time is not None:
            self._seconds.append(now - self._last_time)
        elif "time/step_s" in record.metrics:
            self._seconds.append(record.metrics["time/step_s"])
        self._last_time = now

    def _note_on(self, record: StepRecord) -> str:
        metrics, step = record.metrics, record.stage_step
        self._num_dead = self._num_dead + 1 if has_no_gradient(record) and self._num_dead == step - 1 else 0
        if self._num_dead == DEAD_STEPS:
            return DEAD_NOTE
        is_still = metrics.get("policy/grad_norm") == 0 or metrics.get("groups/signal_share") == 0
        if step != 1 or not (is_still or abs(metrics.get("policy/loss", 1.0)) <= 1e-6):
            return ""
        return NO_SIGNAL_NOTE if is_still else ZERO_LOSS_NOTE

    def _show(self, *lines: str) -> None:
        """Redraw the live display. Without one, print the lines that are not empty."""
        if self._screen.is_live:
            self._screen.show(self._render())
            return
        for line in filter(None, lines):
            self._screen.say(line)

    def _heading(self) -> str:
        record = self._record
        stage = f"  {printable(record.stage)}" if record else ""
        return f"step {record.step if record else 0}/{self._total_steps}{stage}"

    def _values(self) -> list[tuple[str, str]]:
        metrics = self._record.metrics if self._record else {}
        values = []

        def add(label: str, name: str, form: str | Callable[[float], str]) -> bool:
            if name in metrics:
                values.append((label, form(metrics[name]) if callable(form) else format(metrics[name], form)))
            return name in metrics

        add("reward", "reward/mean", ".3f")
        add("sft loss", "sft/loss", ".3f")
        if self._eval is not None:
            values.append(("held-out", _interval(self._eval)))
        if not add("kl", "kl/ref_k3", ".2g"):
            add("kl step", "policy/approx_kl", ".2g")
        add("clip", "policy/clip_share", percent)
        add("length", "rollouts/length_mean_tokens", ".0f")
        add("tokens/s", "engine/tokens_per_s", ".0f")
        if self._record is not None and self._seconds:
            remaining = max(0, self._total_steps - self._record.step)
            values.append(("left", duration(remaining * sum(self._seconds) / len(self._seconds))))
        return values

    def _render(self) -> Renderables:
        from rich.console import Group as Renderables
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        done = self._record.step if self._record else 0
        top = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self._total_steps), completed=done, width=40)
        top.add_row(Text(self._heading(), style="bold"), bar)
        # Text and not a plain string: rich would read [brackets] in a stage's name as markup.
        line = Text(no_wrap=False)
        for index, (label, value) in enumerate(self._values()):
            line.append("   " if index else "")
            line.append(label + " ", style="dim")
            line.append(value, style="bold")
        return Renderables(top, line, *([Text(self._note, style="dim")] if self._note else []))


def _interval(record: EvalRecord) -> str:
    return f"{record.pass_at_1:.3f} [{record.low:.3f}, {record.high:.3f}]"
