"""List the algorithms and what each one sets.

Examples:
  groupwise algorithms
  groupwise algorithms --json
"""

from __future__ import annotations

import argparse

from groupwise.cli.arguments import add_json
from groupwise.cli.printing import print_json, say_list


def add_options(parser: argparse.ArgumentParser) -> None:
    add_json(parser, "print JSON, with the recipe keys that each algorithm sets")


def run(options: argparse.Namespace) -> int:
    from groupwise.cli.recipes import as_json
    from groupwise.config import ALGORITHMS, SUMMARIES

    if options.json:
        rows = [(name, summary, as_json(ALGORITHMS.get(name, {}))) for name, summary in SUMMARIES.items()]
        print_json([{"name": name, "summary": summary, "sets": sets} for name, summary, sets in rows])
    else:
        say_list(SUMMARIES.items(), 16)
    return 0
