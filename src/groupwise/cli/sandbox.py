"""Run a program in the sandbox that completions run in.

Examples:
  groupwise sandbox run program.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from groupwise.base.harmless import printable
from groupwise.cli.arguments import Options, argument, json_option, takes
from groupwise.cli.printing import print_json, say
from groupwise.config import ConfigError


@takes(
    argument("file", "a Python program", type=Path),
    json_option("print JSON: status, stdout, stderr, seconds, …"),
    argument("--seconds", "CPU time limit", default=2.0, within="[0.001, 86400]"),
    argument("--memory-mb", "memory limit, in MB", default=256, within="[1, 1048576]"),
    argument("--stdin", "what the program reads from stdin", type=Path, metavar="FILE"),
    argument("--isolation", "auto, namespaces or landlock", default="auto"),
)
def run_program(options: Options) -> None:
    """Run one Python file in isolation.

    Examples:
      groupwise sandbox run program.py --stdin input.txt --seconds 5
      groupwise sandbox run program.py --json
    """
    from dataclasses import asdict

    from groupwise.rewards.code.score_code import check_options
    from groupwise.sandbox import ProgramLimits, Sandbox

    check_options(options.seconds, options.memory_mb, options.isolation)
    texts = []
    for path in (options.file, options.stdin):
        try:
            texts.append("" if path is None else path.read_text(encoding="utf-8", errors="surrogateescape"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    with Sandbox(options.isolation) as sandbox:
        limits = ProgramLimits(seconds=options.seconds, memory_mb=options.memory_mb)
        outcome = sandbox.run(texts[0], stdin=texts[1], limits=limits)
    if options.json:
        print_json(asdict(outcome))
        return
    # What the program wrote keeps its line breaks.
    print(printable(outcome.stdout, keep_newlines=True), end="", flush=True)
    print(printable(outcome.stderr, keep_newlines=True), end="", file=sys.stderr)
    say(f"[{outcome.status}, {outcome.seconds:.3f} s] {outcome.detail}".rstrip(), to=sys.stderr)


COMMANDS = {"run": run_program}
