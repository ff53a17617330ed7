"""Run a program in the sandbox that completions run in.

Examples:
  groupwise sandbox run program.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from groupwise.cli.arguments import add_command, add_json
from groupwise.cli.printing import print_json, say


def add_options(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = add_command(commands, "run", run_program.__doc__, run_program)
    command.add_argument("file", type=Path, help="a Python program")
    add_json(command, "print JSON: status, stdout, stderr, seconds, …")
    command.add_argument("--seconds", type=float, default=2.0, help="CPU time limit")
    command.add_argument("--memory-mb", type=int, default=256, help="memory limit, in MB")
    command.add_argument("--stdin", type=Path, metavar="FILE", help="what the program reads from stdin")
    command.add_argument("--isolation", default="auto", help="auto, namespaces or landlock")


def run_program(options: argparse.Namespace) -> int:
    """Run one Python file in isolation.

    Examples:
      groupwise sandbox run program.py --stdin input.txt --seconds 5
      groupwise sandbox run program.py --json
    """
    from dataclasses import asdict

    from groupwise.base.harmless import printable
    from groupwise.config import ConfigError
    from groupwise.sandbox import ProgramLimits, Sandbox

    texts = []
    for path in (options.file, options.stdin):
        try:
            texts.append("" if path is None else path.read_text(encoding="utf-8", errors="surrogateescape"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if options.seconds <= 0 or options.memory_mb <= 0:
        raise ConfigError("sandbox run: --seconds and --memory-mb must be above 0")
    with Sandbox(options.isolation) as sandbox:
        limits = ProgramLimits(seconds=options.seconds, memory_mb=options.memory_mb)
        outcome = sandbox.run(texts[0], stdin=texts[1], limits=limits)
    if options.json:
        print_json(asdict(outcome))
        return 0
    # What the program wrote keeps its line breaks.
    print(printable(outcome.stdout, keep_newlines=True), end="", flush=True)
    print(printable(outcome.stderr, keep_newlines=True), end="", file=sys.stderr)
    say(f"[{outcome.status}, {outcome.seconds:.3f} s] {outcome.detail}".rstrip(), to=sys.stderr)
    return 0
