"""Help: every command has examples that parse, every argument a meaning; typos are answered with a suggestion."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from groupwise.cli import COMMANDS, main, make_parser

WIDTH = 80


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield inner
                yield from parsers(inner)


ALL = [pytest.param(parser, id=parser.prog) for parser in parsers(make_parser())]


@pytest.mark.parametrize("parser", ALL)
def test_every_argument_has_a_meaning(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, f"{parser.prog}: {action.option_strings or action.dest} has no help text"


@pytest.mark.parametrize("parser", ALL)
def test_every_command_has_examples_and_they_parse(parser: argparse.ArgumentParser) -> None:
    heading, *examples = (parser.epilog or "").splitlines()
    assert heading == "examples:"
    assert examples
    for example in examples:
        assert example.startswith(f"  {parser.prog}")
        assert len(example) <= WIDTH
        arguments = shlex.split(example.partition(" >")[0])[1:]
        assert callable(make_parser().parse_args(arguments).run)


def test_help_shows_every_command_and_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert tuple(re.findall(r"^    (\w+)", shown, flags=re.MULTILINE)) == COMMANDS
    assert len(COMMANDS) == 24
    with pytest.raises(SystemExit):
        main(["bench", "step", "--help"])
    shown = capsys.readouterr().out
    assert "Measure where the time" in shown
    assert "--steps STEPS         number of steps (default: 12)\n" in shown
    assert "default: False" not in shown


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["trian"], "no command 'trian'; did you mean 'train'?"),
        (["bench", "stpe"], "no command 'stpe'; did you mean 'step'?"),
        (["xyzzy"], "no command 'xyzzy'; known: algorithms, audit"),
    ],
)
def test_a_typo_gets_a_suggestion(typed: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed)
    assert ended.value.code == 2
    assert answer in capsys.readouterr().err
