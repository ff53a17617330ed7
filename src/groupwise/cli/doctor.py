"""Diagnose a run, and name the recipe keys to change.

The exit status is 1 when a finding is a warning that needs action, else 0.

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

    from groupwise.doctor import examine, read_charts
    from groupwise.doctor.wording import show, vital_signs
    from groupwise.runs import Run

    run = Run(options.run_dir)
    charts = read_charts(run)
    findings = examine(charts)
    if options.json:
        stages = [
            {"name": chart.stage, "num_steps": len(chart.steps), "vital_signs": vital_signs(chart)} for chart in charts
        ]
        print_json({"run": run.name, "stages": stages, "findings": [found.to_json() for found in findings]})
    else:
        show(run.name, charts, findings, Console(highlight=False, soft_wrap=True))
    return int(any(finding.severity == "sick" for finding in findings))
