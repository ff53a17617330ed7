"""The `groupwise` command. What is slow to import is imported by the command that needs it, so `--help` is instant."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from groupwise.cli.arguments import CommandParser
from groupwise.cli.printing import say

COMMANDS = (
    "train", "demo", "recipes", "tasks", "algorithms", "export", "merge", "eval", "compare", "contamination",
    "validate", "verify", "sandbox", "audit", "sample", "bench", "report", "reach", "doctor", "watch", "plan", "sweep",
    "new", "completions",
)  # fmt: skip
"""The commands in the order of `--help`, each a module of this package.

Its docstring is the help. `@takes` declares the arguments of its function `run`, which returns the exit status: None
is 0. A command that contains commands has a function for each of them, in `COMMANDS`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 for success, 1 for a failed run, 2 for unusable input.

    As in other programs, 130 follows Ctrl-C, and 141 a closed output pipe.
    """
    options = make_parser().parse_args(arguments)
    if not sys.stderr.isatty():
        # Keeps the progress bars of libraries out of logs; tqdm reads it when it is imported.
        os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        status = int(options.run(options) or 0)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        say("groupwise: interrupted", to=sys.stderr)
        return 130
    except BrokenPipeError:
        # Flushing the rest of the buffer at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        # Of a file or folder that somebody named; any other needs its traceback.
        if error.filename is None:
            raise
        say(f"groupwise: {error.filename}: {error.strerror}", to=sys.stderr)
        return 2
    except (ValueError, RuntimeError) as error:
        # Our own errors say what happened and what to do; any other needs its traceback.
        if not type(error).__module__.startswith("groupwise."):
            raise
        say(f"groupwise: {error}", to=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def make_parser() -> CommandParser:
    from groupwise import __version__

    parser = CommandParser(prog="groupwise", description="Teach a language model to reason, and prove it.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_commands((name, import_module(f"groupwise.cli.{name}")) for name in COMMANDS)
    return parser
