"""Diagnose a run, and name the recipe keys to change.

The exit status is 1 when a finding is a problem, else 0.

Examples:
  groupwise doctor runs/mine
"""

from __future__ import annotations

from pathlib import Path

from groupwise.cli.arguments import Options, argument, json_option, takes
from groupwise.cli.printing import print_json


@takes(
    argument("run_dir", "a run directory; the run may still be training", type=Path, metavar="RUN"),
    json_option("print the findings as JSON"),
)
def run(options: Options) -> int:
    from rich.console import Console

    from groupwise.doctor import examine, read_stages
    from groupwise.doctor.wording import show, vital_signs
    from groupwise.runs import Run

    run = Run(options.run_dir)
    stages = read_stages(run)
    findings = examine(stages)
    if options.json:
        shown = [
            {"name": stage.name, "num_steps": len(stage.steps), "vital_signs": vital_signs(stage)} for stage in stages
        ]
        print_json({"run": run.name, "stages": shown, "findings": [found.to_json() for found in findings]})
    else:
        show(run.name, stages, findings, Console(highlight=False, soft_wrap=True))
    return int(any(finding.severity == "problem" for finding in findings))
