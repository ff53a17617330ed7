"""Printing: a terminal gets lines that break at spaces, a pipe gets them whole, commands to copy stay whole."""

from __future__ import annotations

import io

import pytest

from groupwise.cli import printing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


TEXT = "task.options.train = './a/long/path/to/the-data.jsonl': no such file; correct the path or use a hub name " * 3


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_gets_lines_that_break_at_spaces(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    terminal = Terminal()
    printing.say(f"{TEXT}\nsecond\x1b[31m line", indent="    ", to=terminal)
    lines = terminal.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[-1] == "second line"
    assert lines[1].startswith("    ")
    assert " ".join(lines).split() == f"{TEXT} second line".split()


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    printing.say(f"  {TEXT.strip()}\n\nend")
    assert capsys.readouterr().out == f"  {TEXT.strip()}\n\nend\n"


def test_commands_are_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setattr("sys.stdout", Terminal())
    printing.say_commands("groupwise train --resume runs/a", "groupwise report runs/a")
    assert printing.sys.stdout.getvalue() == "groupwise train --resume runs/a\ngroupwise report runs/a\n"


@pytest.mark.parametrize(
    ("width", "lines"), [(20, ["a long name", "  what it means"]), (200, ["a long name            what it means"])]
)
def test_a_meaning_goes_below_a_wide_name(width: int, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout", Terminal())
    printing.say_list([("a long name", "what it means")], 22)
    assert printing.sys.stdout.getvalue().splitlines() == lines


def test_cells_are_no_markup_and_break_at_spaces(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    printing.print_table(("name", "value"), [[("[red]one", "several words that need more lines")], [("two", "2")]])
    shown = capsys.readouterr().out
    assert "[red]one" in shown
    assert {"several", "words", "that", "need", "more", "lines"} <= set(shown.split())
