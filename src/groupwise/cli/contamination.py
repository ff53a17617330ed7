"""Find held-out problems that are also, exactly or nearly, in a training split.

Examples:
  groupwise contamination gsm8k
  groupwise contamination gsm8k --held-out math
"""

from __future__ import annotations

import argparse
from typing import Any

from groupwise.cli.arguments import TASK, add_json, add_task_options
from groupwise.cli.printing import print_json, say

NUM_SHOWN = 10
"""Overlaps in the terminal; `--json` has all of them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", help=f"the task that is trained on: {TASK}")
    parser.add_argument("--held-out", metavar="TASK", help="the task with the held-out problems (default: the same)")
    add_task_options(parser, "set a task option; TASK.key=value for one of the two; repeatable")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from groupwise.base.harmless import printable
    from groupwise.config import apply_override
    from groupwise.evals.contamination import find_contamination
    from groupwise.tasks import make_task

    other = options.held_out or options.task
    tables: dict[str, dict[str, Any]] = {options.task: {}, other: {}}
    for override in options.options:
        first, _, rest = override.partition(".")
        for name in [first] if first in tables else tables:
            apply_override(tables[name], rest if first in tables else override)
    trained, held_out = (make_task(name, tables[name]) for name in (options.task, other))
    found = find_contamination(held_out.problems("held_out"), trained.problems("train"))
    if options.json:
        print_json(found.to_json())
        return 0
    say(str(found))
    for overlap in sorted(found.overlaps, key=lambda overlap: (overlap.kind, -overlap.share))[:NUM_SHOWN]:
        say(f"  {overlap.kind}, {100 * overlap.share:.0f} %: {overlap.problem_id} and {overlap.training_id}")
        for text in (overlap.problem, overlap.training):
            say(f"    {printable(text)}", indent="    ")
    return 0
