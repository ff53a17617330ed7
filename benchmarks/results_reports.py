"""The reports of docs/results, of the runs that are kept there.

    python benchmarks/results_reports.py          # writes them
    python benchmarks/results_reports.py --check  # status 1 where what a page shows is not what its runs show

`[reports]` of docs/results/tables.toml says which runs. Reports of sweeps are not among them: these were made of
rollouts, which are not kept.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

from groupwise.reports.report import make_report

RESULTS = Path(__file__).parent.parent / "docs" / "results"
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def data_of(page: str) -> str:
    """What a page shows, without how it looks."""
    found = DATA.search(page)
    return "" if found is None else found[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    is_stale = False
    reports: dict[str, list[str]] = tomllib.loads((RESULTS / "tables.toml").read_text(encoding="utf-8"))["reports"]
    for name, runs in reports.items():
        page = RESULTS / name
        made = make_report([RESULTS / run for run in runs]).html
        before = page.read_text(encoding="utf-8") if page.exists() else ""
        if data_of(before) != data_of(made):
            is_stale = True
            print(f"{name}: {'stale' if options.check else 'written'}")
        if not options.check:
            page.write_text(made, encoding="utf-8")
    return int(options.check and is_stale)


if __name__ == "__main__":
    sys.exit(main())
