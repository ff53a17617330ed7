"""Write one HTML page about runs and results, with the same facts as JSON beside it.

Examples:
  groupwise report runs/mine
  groupwise report runs/a runs/b --out compared.html --plots charts
"""

from __future__ import annotations

from pathlib import Path

from groupwise.cli.arguments import Options, argument, takes
from groupwise.cli.printing import say, say_unread
from groupwise.config import ConfigError


@takes(
    argument("paths", "run directories, and folders of results", type=Path, nargs="+", metavar="RUN"),
    argument("--out", "the .html file to write (default: report.html in the first RUN)", type=Path, metavar="FILE"),
    argument("--plots", "also write each chart as PNG and SVG, with CSV", type=Path, metavar="FOLDER"),
    argument("--csv", "also write the data of each chart as CSV", type=Path, metavar="FOLDER"),
)
def run(options: Options) -> int:
    from groupwise.web.report.report import PAGE, make_report, write_report

    path = options.paths[0] / PAGE if options.out is None else options.out
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {path}: the report is a page; give it a name that ends in .html")
    report = make_report(options.paths)
    twin_path = write_report(report, path)
    for card in report.twin["sections"]["summary"]["cards"]:
        say(f"{card['label']}: {card['headline']}. {card['sentence']}")
    say(f"{path} ({path.stat().st_size / 1e6:.1f} MB), {twin_path}")
    if options.plots is not None:
        from groupwise.web.report.plots import write_plots

        say(f"{len(write_plots(report.charts, report.runs, options.plots))} files in {options.plots}")
    if options.csv is not None:
        from groupwise.web.report.plots import write_csv_files

        say(f"{len(write_csv_files(report.charts, report.runs, options.csv))} files in {options.csv}")
    return say_unread(report.errors)
