"""Arguments that several commands share, and a parser that suggests what was meant."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

RECIPE = "a TOML file, or a name from `groupwise recipes`"
TASK = "a name from `groupwise tasks`, or module:Class"

Commands = argparse._SubParsersAction  # what `add_subparsers` returns
Number = TypeVar("Number", int, float)


class CommandParser(argparse.ArgumentParser):
    """An argument parser that answers a mistyped command with the nearest one."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, Commands) and value not in action.choices:
            from groupwise.config import nearest

            raise argparse.ArgumentError(None, f"no command {value!r}; {nearest(value, action.choices)}")
        super()._check_value(action, value)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that adds defaults, keeps the lines of descriptions and examples, and breaks lines at spaces alone."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_plain = action.default in (None, "", argparse.SUPPRESS) or isinstance(action.default, (bool, list))
        if action.option_strings and not is_plain and "default" not in text:
            return f"{text} (default: %(default)s)"
        return text

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def add_command(
    commands: Commands[Any], name: str, doc: str | None, run: Callable[[argparse.Namespace], int] | None = None
) -> argparse.ArgumentParser:
    """Add a command whose help is the docstring `doc`: a summary, then "Examples:" and one command per line."""
    summary, _, examples = inspect.cleandoc(doc or "").partition("\n\nExamples:\n")
    first_line = summary.partition("\n")[0].rstrip(".")
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=first_line[:1].lower() + first_line[1:],
        description=summary,
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=HelpFormatter,
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_json(parser: argparse.ArgumentParser, meaning: str = "print JSON instead of text") -> None:
    parser.add_argument("--json", action="store_true", help=meaning)


def add_overrides(parser: argparse.ArgumentParser, meaning: str = "override a recipe key; repeatable") -> None:
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides", help=meaning)


def add_task_options(parser: argparse.ArgumentParser, meaning: str = "set a task option; repeatable") -> None:
    parser.add_argument("--set", action="append", default=[], metavar="key=value", dest="options", help=meaning)


def add_scoring_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `validate` and `verify`: the task's options, and limits for its verifier."""
    add_task_options(parser)
    parser.add_argument("--workers", type=int, default=2, help="number of scoring processes")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time limit per completion")
    parser.add_argument("--memory-mb", type=int, default=4096, help="memory limit per completion, in MB")


def scoring_arguments(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the task that `add_scoring_options` describes, and the keyword arguments `workers` and `limits`."""
    from groupwise.config import VerifierConfig, apply_override
    from groupwise.tasks import make_task
    from groupwise.workers import Limits

    table: dict[str, Any] = {}
    for option in options.options:
        apply_override(table, option)
    # The recipe's own config checks the values.
    wall_seconds = max(60.0, 2 * options.seconds)
    config = VerifierConfig(
        workers=options.workers, seconds=options.seconds, memory_mb=options.memory_mb, wall_seconds=wall_seconds
    )
    limits = Limits(config.seconds, config.wall_seconds, config.memory_mb)
    return make_task(options.task, table), {"workers": options.workers, "limits": limits}


def parse_numbers(text: str, option: str, example: str, kind: Callable[[str], Number]) -> list[Number]:
    """Parse comma-separated numbers."""
    from groupwise.config import ConfigError

    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected numbers, as in {example}") from None
