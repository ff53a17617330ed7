"""Commands about what runs have shown: their report, and how long they took to get there."""

from __future__ import annotations

import argparse
from pathlib import Path

from groupwise.cli.number_lists import parse_numbers


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser("report", help="one HTML page of runs and results, with a JSON twin")
    report.add_argument("paths", type=Path, nargs="+", metavar="RUN", help="run directories, and folders of results")
    report.add_argument("--out", type=Path, metavar="FILE", help="an .html file; default RUN/report.html of the first")
    report.add_argument("--plots", type=Path, metavar="FOLDER", help="also each chart as PNG and SVG, with CSV")
    report.add_argument("--csv", type=Path, metavar="FOLDER", help="also the data of each chart as CSV alone")
    report.set_defaults(command=_report)

    reach = commands.add_parser("reach", help="seconds of training until held-out pass@1 first reached a score")
    reach.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run directories or sweeps; seeds of a recipe are one row"
    )
    reach.add_argument("--scores", required=True, metavar="0.3,0.4", help="held-out pass@1, from 0 to 1")
    reach.add_argument("--json", action="store_true")
    reach.set_defaults(command=_reach)


def _report(options: argparse.Namespace) -> int:
    from groupwise.base.harmless import printable
    from groupwise.config import ConfigError
    from groupwise.web.report.report import PAGE, make_report, write_report

    path = options.paths[0] / PAGE if options.out is None else options.out
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {path}: the report is a page; give it a name that ends in .html")
    report = make_report(options.paths)
    twin_path = write_report(report, path)
    for card in report.twin["sections"]["summary"]["cards"]:
        print(printable(f"{card['label']}: {card['headline']}. {card['sentence']}"))
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB), {twin_path}")
    if options.plots is not None:
        from groupwise.web.report.plots import write_plots

        print(f"{len(write_plots(report.charts, report.runs, options.plots))} files in {options.plots}")
    if options.csv is not None:
        from groupwise.web.report.csv_files import write_csv_files

        print(f"{len(write_csv_files(report.charts, report.runs, options.csv))} files in {options.csv}")
    return 0


def _reach(options: argparse.Namespace) -> int:
    import json
    import math

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from groupwise.base.harmless import printable
    from groupwise.config import ConfigError
    from groupwise.evals.reach import time_to_scores
    from groupwise.web.report.sections.facts import duration

    scores = parse_numbers(options.scores, "--scores", "0.3,0.4", float)
    if not all(0 < score <= 1 for score in scores):
        raise ConfigError(f"--scores {options.scores}: pass@1 is from 0 to 1, so 40 % is 0.4")
    rows = time_to_scores(options.runs, scores)
    if options.json:
        print(json.dumps({"rows": [row.to_json() for row in rows]}))
        return 0
    table = Table("recipe", "score", "reached by", "training time", "95 % interval", "tokens", "device")
    for row in rows:
        seconds = row.seconds
        tokens = sum(run.tokens for run in row.runs) / len(row.runs)
        table.add_row(
            escape(printable(row.label)),
            f"{row.score:.0%} of {row.num_problems}",
            f"{row.num_reached} of {len(row.runs)}",
            "–" if seconds is None else duration(seconds[0]),
            "–" if seconds is None or math.isnan(seconds[2]) else f"{duration(seconds[1])} to {duration(seconds[2])}",
            f"{tokens:,.0f}",
            escape(printable(row.device)),
        )
    Console().print(table)
    return 0
