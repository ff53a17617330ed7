"""List the tasks, or the options of one.

Examples:
  groupwise tasks
  groupwise tasks countdown
"""

from __future__ import annotations

from groupwise.cli.arguments import TASK, Options, argument, json_option, takes
from groupwise.cli.printing import print_json, say, say_list

OWN = ("module:Class", "your own: a dataclass with `problems`, `score` and `verifier` (start with `groupwise new`)")


@takes(argument("name", TASK, nargs="?"), json_option())
def run(options: Options) -> None:
    from groupwise.cli.describe import describe_fields, task_options
    from groupwise.tasks import list_tasks, task_class

    if options.name is None:
        found = list_tasks()
        if options.json:
            print_json([{"name": name, "summary": summary} for name, summary in found.items()])
        else:
            say_list([*found.items(), OWN], 16)
    elif options.json:
        print_json([field._asdict() for field in describe_fields(task_class(options.name))])
    else:
        say(task_options(options.name))
