"""Score a file of completions with a task's verifier.

Examples:
  groupwise verify math completions.jsonl
  groupwise verify gsm8k completions.jsonl --json > scores.jsonl
"""

from __future__ import annotations

import sys
from pathlib import Path

from groupwise.base.harmless import printable
from groupwise.cli.arguments import SCORING_OPTIONS, TASK, Options, argument, json_option, scoring_arguments, takes
from groupwise.cli.printing import print_json, say
from groupwise.config.build import require


@takes(
    argument("task", TASK),
    argument("file", ".jsonl with `completion`, and with the verifier's fields or the problem's id", type=Path),
    *SCORING_OPTIONS,
    argument("--process", "also score the reasoning: arithmetic, or module:function", default="", metavar="NAME"),
    json_option("print a JSON line per completion instead of a summary"),
)
def run(options: Options) -> int:
    from groupwise.scoring.scorer import load_process_scorer
    from groupwise.scoring.verify import VerifySummary, verify_file

    load_process_scorer(options.process)
    task, how = scoring_arguments(options)
    summary = VerifySummary()
    for result in verify_file(task, options.file, process=options.process, **how):
        summary.add(result)
        if options.json:
            print_json(result.to_json())
        elif result.score.is_error:
            say(printable(f"row {result.row}: {result.score.verdict}: {result.score.detail}"), to=sys.stderr)
    require(bool(summary.verdicts), f"{options.file}: no rows; give a file that has some")
    if not options.json:
        say(str(summary))
    return 2 if summary.num_unread else 0
