"""Plain text: paragraphs wrap at words, and columns are aligned."""

from __future__ import annotations

import pytest

from groupwise.base.json_values import dotted_items
from groupwise.base.text_layout import aligned, first_line, last_line, points, shortened, wrapped

TEXT = "Set model.gradient_checkpointing = true or run `groupwise bench step RECIPE --json`, then continue."


@pytest.mark.parametrize("width", [5, 20, 40, 80, 120])
def test_words_keys_and_commands_are_never_split(width: int) -> None:
    lines = wrapped(TEXT, indent="  ", width=width).splitlines()
    assert " ".join(line.strip() for line in lines) == TEXT
    for whole in ("model.gradient_checkpointing = true", "`groupwise bench step RECIPE --json`"):
        assert any(whole in line for line in lines)


def test_a_text_is_shortened_to_one_line() -> None:
    assert shortened("a\n b", 10) == "a b"
    assert shortened("abcdef", 4) == "abc…"


def test_columns_are_aligned() -> None:
    assert aligned([("a", "1"), ("long", "10")]) == ["a      1", "long  10"]
    assert aligned([("a", "1", "x"), ("b", "22", "note")], has_notes=True) == ["a   1  x", "b  22  note"]


def test_nested_tables_become_dotted_keys() -> None:
    table = {"stages": {"0": {"steps": 3}}, "a.b": 1, "empty": {}}
    assert dict(dotted_items(table)) == {"stages.0.steps": 3, "a.b": 1, "empty": {}}


def test_a_text_on_one_line() -> None:
    assert shortened(" two\n  words ", 9) == "two words"
    assert shortened("two words", 8) == "two wor…"


@pytest.mark.parametrize(("share", "said"), [(0.0414, "+4.1"), (-0.0414, "−4.1"), (-0.0004, "+0.0"), (0.0, "+0.0")])
def test_points_have_a_sign_and_zero_is_not_negative(share: float, said: str) -> None:
    assert points(share) == said


def test_the_first_and_the_last_line_of_an_error() -> None:
    error = ValueError("\n first\n  second \n\n")
    assert (first_line(error), last_line(error)) == ("first", "second")
    assert first_line(ValueError()) == last_line(ValueError(" ")) == "ValueError"
