"""Find held-out problems that are also, exactly or nearly, in a training split.

Examples:
  groupwise contamination gsm8k
  groupwise contamination gsm8k --held-out math
"""

from __future__ import annotations

from groupwise.base.harmless import printable
from groupwise.base.text_layout import percent
from groupwise.cli.arguments import TASK, Options, argument, json_option, takes, task_option
from groupwise.cli.printing import print_json, say

NUM_SHOWN = 10
"""Overlaps in the terminal; `--json` has all of them."""


@takes(
    argument("task", f"the task that is trained on: {TASK}"),
    argument("--held-out", "the task with the held-out problems (default: the same)", metavar="TASK"),
    task_option("set a task option; TASK.key=value for one of the two; repeatable"),
    json_option(),
)
def run(options: Options) -> None:
    from groupwise.evals.contamination import find_contamination
    from groupwise.evals.evaluate import task_name, task_options
    from groupwise.tasks import make_task

    names = (options.task, options.held_out or options.task)
    trained, held_out = (
        make_task(task_name(name), task_options(name, names, options.settings, None)) for name in names
    )
    found = find_contamination(held_out.problems("held_out"), trained.problems("train"))
    if options.json:
        print_json(found.to_json())
        return
    say(str(found))
    for overlap in sorted(found.overlaps, key=lambda overlap: (overlap.kind, -overlap.share))[:NUM_SHOWN]:
        say(f"  {overlap.kind}, {percent(overlap.share, 0)}: {overlap.problem_id} and {overlap.training_id}")
        for text in (overlap.problem, overlap.training):
            say(f"    {printable(text)}", indent="    ")
