"""List the algorithms and what each one sets.

Examples:
  groupwise algorithms
  groupwise algorithms --json
"""

from __future__ import annotations

from groupwise.base.json_values import plain
from groupwise.cli.arguments import Options, json_option, takes
from groupwise.cli.printing import print_json, say_list
from groupwise.config import ALGORITHMS, SUMMARIES


@takes(json_option("print JSON, with the recipe keys that each algorithm sets"))
def run(options: Options) -> None:
    if options.json:
        rows = [(name, summary, plain(ALGORITHMS.get(name, {}), str)) for name, summary in SUMMARIES.items()]
        print_json([{"name": name, "summary": summary, "sets": sets} for name, summary, sets in rows])
    else:
        say_list(SUMMARIES.items(), 16)
