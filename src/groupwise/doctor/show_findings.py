"""The doctor in a terminal. Text of models, data sets and verifiers is stripped of control codes, never markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from groupwise.doctor.chart import StageHistory
from groupwise.doctor.checks import DISEASES
from groupwise.doctor.finding import Finding
from groupwise.doctor.sampling_checks import RECENT_STEPS
from groupwise.doctor.vitals import clean_bill, vital_signs
from groupwise.doctor.wording import say_change
from groupwise.runs import printable

STYLES = {"sick": "bold red", "watch": "bold yellow"}


def show(name: str, charts: Sequence[StageHistory], findings: Sequence[Finding], console: Console) -> None:
    _print(console, f"Doctor: {name}", "bold")
    for chart in charts:
        _print(console, f"\nstage {chart.stage}, steps {chart.steps[0].step} to {chart.steps[-1].step}", "bold")
        for line in vital_signs(chart):
            _print(console, f"  {line}")
        if len(chart.steps) < RECENT_STEPS:
            _print(console, f"  under {RECENT_STEPS} steps: too few for most of what the doctor looks for", "dim")
    if not charts:
        _print(console, "\nNo step is recorded yet: there is nothing to examine.")
    elif not findings:
        _print(console, f"\n{clean_bill(charts)}", "bold green")
    for finding in findings:
        place = f"stage {finding.stage}, steps {finding.first_step} to {finding.last_step}"
        _print(console, f"\n{finding.severity}: {DISEASES[finding.disease].title} ({place})", STYLES[finding.severity])
        _print(console, f"  seen    {finding.seen}")
        _print(console, f"  means   {finding.means}")
        _print(console, f"  change  {say_change(finding.change)}")


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(printable(text, keep_newlines=True), style=style))
