"""The audit in a terminal. Text of models and data sets is stripped of control codes and never read as markup."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from groupwise.audit.held_out_gain import SUSPICIOUS
from groupwise.audit.labels import Agreement
from groupwise.audit.survey import Audit
from groupwise.base.harmless import printable
from groupwise.base.text_layout import percent
from groupwise.rewards.format import excerpt

NUM_EXAMPLES = 2
"""Examples per finding; `--json` and the page have more."""


def show_audit(audit: Audit, console: Console) -> None:
    steps = f"steps {audit.first_step} to {audit.last_step}"
    console.print(_text(f"Audit of {audit.run}: {audit.num_rollouts} {audit.source} completions, {steps}", "bold"))
    verdicts = ", ".join(f"{count} {name}" for name, count in audit.verdicts.items() if count)
    console.print(_text(f"Verdicts: {verdicts}. Problems: {audit.num_problems}.\n"))
    table = Table(title="Findings (95 % intervals)", title_justify="left")
    for column in ("finding", "count", "of", "share", "interval"):
        table.add_column(column, justify="left" if column in ("finding", "of") else "right", overflow="fold")
    for finding in audit.findings:
        style = "yellow" if finding.count else "dim"
        table.add_row(*(_text(cell, style) for cell in (finding.title, *finding.words)))
    console.print(table)
    for finding in audit.findings:
        for number, example in enumerate(finding.examples[:NUM_EXAMPLES]):
            if number == 0:
                console.print(_text(f"\n{finding.title}", "bold"))
            place = f"step {example.step}, {example.problem_id}, rollout {example.rollout_number}, {example.verdict}"
            console.print(_text(f"  {place}: ", "dim") + _text(example.evidence, "yellow"))
            console.print(_text(f"    {example.excerpt}"))
    for gain in audit.held_out_gains:
        console.print(_text(f"\n{gain.sentence()}", "yellow" if gain.is_suspicious else ""))
        if gain.is_suspicious:
            console.print(_text(f"  {SUSPICIOUS}", "bold yellow"))


def show_agreement(result: Agreement, console: Console) -> None:
    if not result.num_labels:
        console.print(_text("No labels yet: open the page, label, export, and pass the file with --labels."))
        return
    counts = f"{result.num_labels} labels, {result.num_unsure} unsure"
    lost = f", {result.num_lost} of chains that this run no longer has" if result.num_lost else ""
    table = Table(title=f"People and the verifier ({counts}{lost})", title_justify="left")
    for column in ("question", "yes", "of", "share", "95 % interval"):
        table.add_column(column, justify="left" if column == "question" else "right")
    for share in result.shares:
        interval = f"{percent(share.low)} to {percent(share.high)}"
        table.add_row(share.name, str(share.agreed), str(share.total), percent(share.share), interval)
    console.print(table)
    for entry in result.disagreements:
        chain = entry.chain
        place = f"step {chain.step}, {chain.problem_id}, rollout {chain.rollout_number}"
        console.print(_text(f"\nDisagreement: {place}: the verifier says {chain.verdict}", "yellow"))
        console.print(_text(f"  {excerpt(chain.completion, 200)}"))
        if entry.label.note:
            console.print(_text(f"  note: {excerpt(entry.label.note, 400)}"))


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text, keep_newlines=True), style=style)
