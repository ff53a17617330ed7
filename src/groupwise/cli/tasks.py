"""List the tasks, or the options of one.

Examples:
  groupwise tasks
  groupwise tasks countdown
"""

from __future__ import annotations

import argparse

from groupwise.cli.arguments import TASK, add_json
from groupwise.cli.printing import print_json, say, say_list

OWN = ("module:Class", "your own: a dataclass with `problems`, `score` and `verifier` (start with `groupwise new`)")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help=TASK)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from groupwise.cli.describe import describe_fields, task_options
    from groupwise.tasks import list_tasks, task_class

    if options.name is None:
        found = list_tasks()
        if options.json:
            print_json([{"name": name, "summary": summary} for name, summary in found.items()])
        else:
            say_list([*found.items(), OWN], 16)
    elif options.json:
        keys = ("key", "type", "default", "meaning")
        print_json([dict(zip(keys, field, strict=True)) for field in describe_fields(task_class(options.name))])
    else:
        say(task_options(options.name), indent="      ")
    return 0
