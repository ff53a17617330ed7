"""Show how long training took until held-out pass@1 first reached a score.

Examples:
  groupwise reach runs/a runs/b --scores 0.4,0.6
"""

from __future__ import annotations

import math
from pathlib import Path

from groupwise.base.text_layout import duration, percent
from groupwise.cli.arguments import Options, argument, json_option, parse_numbers, takes
from groupwise.cli.printing import print_json, print_table, say_unread


@takes(
    argument("runs", "runs or sweeps; seeds of a recipe share a row", type=Path, nargs="+", metavar="RUN"),
    argument("--scores", "held-out pass@1, from 0 to 1", required=True, metavar="0.3,0.4"),
    json_option(),
)
def run(options: Options) -> int:
    from groupwise.evals.reach import time_to_scores

    scores = parse_numbers(options.scores, "--scores", "0.3,0.4", float, "(0, 1]")
    found, errors = time_to_scores(options.runs, scores)
    if options.json:
        print_json({"rows": [row.to_json() for row in found], "errors": errors})
        return say_unread(errors)
    rows = []
    for row in found:
        middle, low, high = row.seconds or (math.nan,) * 3
        rows.append(
            (
                row.label,
                f"{percent(row.score, 0)} of {row.num_problems}",
                f"{row.num_reached} of {len(row.runs)}",
                "–" if row.seconds is None else duration(middle),
                "–" if math.isnan(high) else f"{duration(low)} to {duration(high)}",
                f"{sum(run.tokens for run in row.runs) / len(row.runs):,.0f}",
                row.device,
            )
        )
    print_table(("recipe", "score", "reached by", "training time", "95 % interval", "tokens", "device"), [rows])
    return say_unread(errors)
