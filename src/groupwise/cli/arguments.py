"""How commands declare their arguments, the arguments that several commands share, and the parser of all commands."""

from __future__ import annotations

import argparse
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from groupwise.config import ConfigError, apply_override, nearest
from groupwise.config.build import MAX_SEED, Within, shown

Options = argparse.Namespace
"""The values of a command's arguments."""
Command = Callable[[Options], int | None]
Number = TypeVar("Number", int, float)

RECIPE = "a TOML file, or a name from `groupwise recipes`"
GIB = "(0, 1e6]"
SEEDS = f"[0, {MAX_SEED}]"
TASK = "a name from `groupwise tasks`, or module:Class"


class Argument(NamedTuple):
    """An argument of a command: its name, what argparse is told, and the values that a number may have."""

    name: str
    settings: dict[str, Any]
    limits: Within | None

    def check(self, options: Options) -> None:
        value = getattr(options, self.name.lstrip("-").replace("-", "_"), None)
        if self.limits is not None:
            for number in value if isinstance(value, list) else [value]:
                if number is not None:
                    self.limits.check(self.name, number)


def takes(*arguments: Argument) -> Callable[[Command], Command]:
    """Declare the arguments of the command that the decorated function runs."""

    def declare(command: Command) -> Command:
        @functools.wraps(command)
        def checked(options: Options) -> int | None:
            for one in arguments:
                one.check(options)
            return command(options)

        checked.arguments = arguments  # type: ignore[attr-defined]
        return checked

    return declare


def argument(name: str, meaning: str, *, default: Any = None, within: str = "", **settings: Any) -> Argument:
    """Describe an argument. Its default says what it takes: False makes a flag, [] lets it be given several times, and
    a number or path is parsed as one. A number needs an interval, `within`, as for `groupwise.config.build.Within`.
    Other settings are those of `argparse.ArgumentParser.add_argument`."""
    if default is False:
        settings.setdefault("action", "store_true")
    elif default == []:
        settings["action"] = "append"
    elif default is not None:
        settings["type"] = Path if isinstance(default, Path) else type(default)
    kind = settings.get("type")
    if (kind in (int, float)) != bool(within):
        raise TypeError(f"{name}: a number needs an interval, and only a number has one")
    if kind is Path:
        settings["type"] = _path
    return Argument(name, settings | {"help": meaning, "default": default}, Within(within) if within else None)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a path")
    return Path(text)


def json_option(meaning: str = "print JSON instead of text") -> Argument:
    return argument("--json", meaning, default=False)


def set_option(
    meaning: str = "override a recipe key; repeatable", metavar: str = "a.b=c", name: str = "--set"
) -> Argument:
    dest = "settings" if name == "--set" else name.lstrip("-").replace("-", "_")
    return argument(name, meaning, default=[], metavar=metavar, dest=dest)


def task_option(meaning: str = "set a task option; repeatable") -> Argument:
    return set_option(meaning, "key=value")


SCORING_OPTIONS = (
    task_option(),
    argument("--workers", "number of scoring processes", default=2, within="[1, 256]"),
    argument("--seconds", "CPU time limit per completion", default=5.0, within="(0, 1e6]"),
    argument("--memory-mb", "memory limit per completion, in MB", default=4096, within="[64, 1e8]"),
)
"""Arguments of `validate` and `verify`: the task's options, and limits for its verifier."""


def scoring_arguments(options: Options) -> tuple[Any, dict[str, Any]]:
    """Return the task that SCORING_OPTIONS describe, and the keyword arguments `workers` and `limits`."""
    from groupwise.tasks import make_task
    from groupwise.workers import Limits

    limits = Limits(options.seconds, max(60.0, 2 * options.seconds), options.memory_mb)
    return make_task(options.task, table_of(options.settings)), {"workers": options.workers, "limits": limits}


def table_of(settings: Iterable[str]) -> dict[str, Any]:
    """Return the table that settings such as `key=value` make."""
    table: dict[str, Any] = {}
    for setting in settings:
        apply_override(table, setting)
    return table


def parse_numbers(text: str, option: str, example: str, kind: Callable[[str], Number], within: str) -> list[Number]:
    """Parse comma-separated numbers of an interval."""
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {shown(text)}: expected numbers, as in {example}") from None
    for number in numbers:
        Within(within, f"as in {example}").check(option, number)
    return numbers


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


class CommandParser(argparse.ArgumentParser):
    """A parser with commands, which answers a mistyped one with the nearest."""

    def add_commands(self, commands: Iterable[tuple[str, Any]]) -> None:
        """Add commands: a module with `run`, a module with `COMMANDS` of its own, or a function.

        The docstring is the help: a summary, then "Examples:" and one example per line.
        """
        parsers = self.add_subparsers(required=True, metavar="COMMAND")
        for name, command in commands:
            summary, _, examples = inspect.cleandoc(command.__doc__).partition("\n\nExamples:\n")
            first_line = summary.partition("\n")[0].rstrip(".")
            parser = parsers.add_parser(
                name,
                help=first_line[0].lower() + first_line[1:],
                description=summary,
                epilog=f"examples:\n{examples}",
                formatter_class=HelpFormatter,
            )
            if hasattr(command, "COMMANDS"):
                parser.add_commands(command.COMMANDS.items())
                continue
            run = getattr(command, "run", command)
            parser.set_defaults(run=run)
            for one in getattr(run, "arguments", ()):
                parser.add_argument(one.name, **one.settings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise argparse.ArgumentError(None, f"no command {value!r}; {nearest(value, action.choices)}")
        super()._check_value(action, value)
