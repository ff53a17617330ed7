"""Test a task's verifier on gold answers and on wrong ones.

Examples:
  groupwise validate countdown
  groupwise validate my_task:MyTask --limit 100
"""

from __future__ import annotations

from groupwise.base.harmless import printable
from groupwise.cli.arguments import SCORING_OPTIONS, TASK, Options, argument, json_option, scoring_arguments, takes
from groupwise.cli.printing import print_json, say

NUM_SHOWN = 50
"""Failures in the terminal; `--json` has all of them."""


@takes(
    argument("task", TASK),
    *SCORING_OPTIONS,
    argument("--limit", "use the first N problems per split; 0: all", default=0, metavar="N", within="[0, 1e9]"),
    json_option(),
)
def run(options: Options) -> int:
    from groupwise.scoring.validate import validate

    task, how = scoring_arguments(options)
    found = validate(task, limit=options.limit, **how)
    table = found.to_json()
    status = 0 if found.is_sound else 1
    if options.json:
        print_json(table)
        return status
    say(f"gold answers:  {found.num_gold - table['gold_failed']} of {found.num_gold} are judged correct")
    say(f"wrong answers: {found.num_wrong - table['wrong_failed']} of {found.num_wrong} are judged not correct")
    if found.num_gold < found.num_problems:
        say(f"{found.num_problems - found.num_gold} of {found.num_problems} problems have no gold answer to test with")
    for failure in found.failures[:NUM_SHOWN]:
        score = failure.score
        text = f"{failure.split} {failure.problem_id}: {failure.kind}: {score.verdict} {score.reward:g}: {score.detail}"
        say(printable(text)[:400], indent="  ")
    if len(found.failures) > NUM_SHOWN:
        say(f"... and {len(found.failures) - NUM_SHOWN} more; use --json to see all")
    return status
