"""The `groupwise` command. Imports happen inside each command, so that --help is instant and nothing loads in vain."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from groupwise.cli import (
    doctor,
    evals,
    new,
    plan,
    reports,
    sampling,
    shell_completions,
    sweeps,
    train,
    verifiers,
    watch,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 for success, 1 for a failed run, 2 for input that cannot be used.

    As for other programs: 130 after Ctrl-C, 141 when whoever reads the output has gone.
    """
    options = _parser().parse_args(arguments)
    if not sys.stderr.isatty():
        # Loading bars of libraries would fill a log. Read when tqdm is imported, so before any of them.
        os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        status = int(options.command(options))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("groupwise: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # What is left in the buffer would fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, RuntimeError) as error:
        # Our own errors say what happened and what to do; a stranger's deserves its traceback.
        if not type(error).__module__.startswith("groupwise."):
            raise
        print(f"groupwise: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def _parser() -> argparse.ArgumentParser:
    from groupwise import __version__

    parser = argparse.ArgumentParser(prog="groupwise", description="Teach a language model to reason, and prove it.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for family in (train, evals, verifiers, sampling, reports, doctor, watch, plan, sweeps, new, shell_completions):
        family.add_commands(commands)
    return parser
