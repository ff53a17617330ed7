"""The doctor's report in a terminal. Text of models, data sets and verifiers loses its control codes; no markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from groupwise.base.harmless import printable
from groupwise.base.text_layout import wrapped
from groupwise.doctor.chart import RECENT_STEPS, SEVERITY_WORDS, Finding, StageHistory
from groupwise.doctor.checks import CHECKS
from groupwise.doctor.wording import clean_bill, say_override, vital_signs

STYLES = {"sick": "bold red", "watch": "bold yellow"}


def show(name: str, charts: Sequence[StageHistory], findings: Sequence[Finding], console: Console) -> None:
    """Print the vital signs of each stage, then the findings; `--set` lines stand alone and are never split."""

    def write(text: str, style: str = "", first: str = "", rest: str | None = None) -> None:
        lines = wrapped(printable(text), " " * len(first) if rest is None else rest, console.width, first=first)
        console.print(Text(lines, style=style), soft_wrap=True)

    write(f"Doctor: {name}", "bold")
    for chart in charts:
        console.print()
        write(f"stage {chart.stage}, steps {chart.steps[0].step} to {chart.steps[-1].step}", "bold")
        for line in vital_signs(chart):
            write(line, first="  ", rest="    ")
        if len(chart.steps) < RECENT_STEPS:
            write(f"fewer than {RECENT_STEPS} steps: too few for most checks", "dim", "  ")
    if not findings:
        console.print()
        write(clean_bill(charts) if charts else "No step is recorded yet: there is nothing to examine.", "bold")
    for finding in findings:
        place = f"stage {finding.stage}, steps {finding.first_step} to {finding.last_step}"
        title = f"{SEVERITY_WORDS[finding.severity]}: {CHECKS[finding.check].title} ({place})"
        console.print()
        write(title, STYLES[finding.severity])
        write(finding.seen, first="  seen    ")
        write(finding.means, first="  means   ")
        if override := say_override(finding.change):
            console.print(Text(f"  change  {printable(override)}"), soft_wrap=True)
        write(finding.change.advice, first=" " * 10 if override else "  change  ")
