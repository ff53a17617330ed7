"""The command that says what is wrong with a run."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser("doctor", help="what is wrong with a run, and which key to change")
    doctor.add_argument("run", type=Path, help="a run directory; the run may still be going on")
    doctor.add_argument("--json", action="store_true", help="the findings as JSON")
    doctor.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    """0: healthy, or only things to watch. 1: something is sick."""
    import json

    from rich.console import Console

    from groupwise.doctor import examine, read_charts
    from groupwise.doctor.show_findings import show
    from groupwise.doctor.vitals import vital_signs
    from groupwise.runs import Run

    run = Run(options.run)
    charts = read_charts(run)
    findings = examine(charts)
    if options.json:
        stages = [
            {"name": chart.stage, "num_steps": len(chart.steps), "vital_signs": vital_signs(chart)} for chart in charts
        ]
        print(json.dumps({"run": run.name, "stages": stages, "findings": [found.to_json() for found in findings]}))
    else:
        show(run.name, charts, findings, Console(highlight=False, soft_wrap=True))
    return int(any(finding.severity == "sick" for finding in findings))
