"""Look for rewards that were not earned, and write a page of completions to label.

Examples:
  groupwise audit runs/mine
  groupwise audit runs/mine --labels labels.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from groupwise.cli.arguments import add_json
from groupwise.cli.printing import counted, print_json, say


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN", help="a run directory")
    add_json(parser, "print the findings as JSON")
    add("--held-out", action="store_true", help="audit the newest evaluation instead of training rollouts")
    add("--sample", type=int, default=30, metavar="N", help="number of completions on the page")
    add("--seed", type=int, default=0, help="seed of that sample")
    add("--labels", type=Path, metavar="FILE", help="store the labels that the page exported, and compare them")


def run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from groupwise.audit.labels import agreement, merge_labels
    from groupwise.audit.show_audit import show_agreement, show_audit
    from groupwise.audit.survey import audit_run
    from groupwise.web.label_page import write_page

    console = Console()
    if options.labels is not None:
        num_new = merge_labels(options.run_dir, options.labels)
        found = agreement(options.run_dir)
        if options.json:
            print_json({"new_labels": num_new} | found.to_json())
        else:
            say(counted(num_new, "new label"))
            show_agreement(found, console)
        return 0
    audit = audit_run(
        options.run_dir, sample=options.sample, seed=options.seed, source="held_out" if options.held_out else "train"
    )
    page = write_page(audit, options.run_dir)
    if options.json:
        print_json(audit.to_json() | {"page": str(page)})
    else:
        show_audit(audit, console)
        say(f"{counted(len(audit.chains), 'completion')} to label: {page}")
    return 0
