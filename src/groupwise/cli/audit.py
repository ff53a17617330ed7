"""Look for rewards that were not earned, and write a page of completions to label.

Examples:
  groupwise audit runs/mine
  groupwise audit runs/mine --labels labels.json
"""

from __future__ import annotations

from pathlib import Path

from groupwise.cli.arguments import SEEDS, Options, argument, json_option, takes
from groupwise.cli.printing import counted, print_json, say


@takes(
    argument("run_dir", "a run directory", type=Path, metavar="RUN"),
    json_option("print the findings as JSON"),
    argument("--held-out", "audit the newest evaluation instead of training rollouts", default=False),
    argument("--sample", "number of completions on the page", default=30, metavar="N", within="[1, 1e5]"),
    argument("--seed", "seed of that sample", default=0, within=SEEDS),
    argument("--labels", "store the labels that the page exported, and compare them", type=Path, metavar="FILE"),
)
def run(options: Options) -> None:
    from rich.console import Console

    from groupwise.audit.labels import agreement, merge_labels
    from groupwise.audit.show_audit import show_agreement, show_audit
    from groupwise.audit.survey import audit_run
    from groupwise.web.label_page import write_page

    if options.labels is not None:
        num_new = merge_labels(options.run_dir, options.labels)
        found = agreement(options.run_dir)
        if options.json:
            print_json({"new_labels": num_new} | found.to_json())
        else:
            say(counted(num_new, "new label"))
            show_agreement(found, Console())
        return
    audit = audit_run(
        options.run_dir, sample=options.sample, seed=options.seed, source="held_out" if options.held_out else "train"
    )
    page = write_page(audit, options.run_dir)
    if options.json:
        print_json(audit.to_json() | {"page": str(page)})
    else:
        show_audit(audit, Console())
        say(f"{counted(len(audit.chains), 'completion')} to label: {page}")
