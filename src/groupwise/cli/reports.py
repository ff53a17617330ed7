"""Commands about what a run has shown: its report."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser("report", help="one HTML page of runs and results, with a JSON twin")
    report.add_argument("paths", type=Path, nargs="+", metavar="RUN", help="run directories, and folders of results")
    report.add_argument("--out", type=Path, metavar="FILE", help="an .html file; default RUN/report.html of the first")
    report.add_argument("--plots", type=Path, metavar="FOLDER", help="also each chart as PNG and SVG, with CSV")
    report.add_argument("--csv", type=Path, metavar="FOLDER", help="also the data of each chart as CSV alone")
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    from groupwise.config import ConfigError
    from groupwise.reports.report import PAGE, make_report, write_report
    from groupwise.runlog.text import printable

    path = options.paths[0] / PAGE if options.out is None else options.out
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {path}: the report is a page; give it a name that ends in .html")
    report = make_report(options.paths)
    twin_path = write_report(report, path)
    for card in report.twin["sections"]["summary"]["cards"]:
        print(printable(f"{card['label']}: {card['headline']}. {card['sentence']}"))
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB), {twin_path}")
    if options.plots is not None:
        from groupwise.reports.plots import write_plots

        print(f"{len(write_plots(report.charts, report.runs, options.plots))} files in {options.plots}")
    if options.csv is not None:
        from groupwise.reports.csv_files import write_csv_files

        print(f"{len(write_csv_files(report.charts, report.runs, options.csv))} files in {options.csv}")
    return 0
