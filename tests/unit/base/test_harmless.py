from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.base.harmless import printable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ünïcode 🎲", "plain ünïcode 🎲"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;aGVsbG8=\x1b\\after", "after"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bPdevice\x1b\\after", "after"),
        ("\x1b\x1b[0m[31m", "[31m"),
        ("\x1b(0line", "line"),
        ("back\x08\x08\x7f\x00", "back"),
        ("\ud800x", "\ufffdx"),
        ("a\u202eb", "ab"),
        ("one\r\ntwo\tthree\u2028four", "one two three four"),
        ("overwrite\rme", "overwrite me"),
        ("\x1b]unfinished", "unfinished"),
    ],
)
def test_what_a_terminal_would_obey_is_gone(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_newlines_and_tabs_can_stay() -> None:
    assert printable("a\r\n\tb\x1b[A", keep_newlines=True) == "a\n\tb"


@given(st.text(st.characters(categories=None) | st.sampled_from("\x1b[]\\\x07\x9b\x9dmPX^_;0"), max_size=40))
def test_nothing_dangerous_is_left(text: str) -> None:
    result = printable(text)
    assert not [c for c in result if unicodedata.category(c) in ("Cc", "Cs")]
    result.encode("utf-8")
    assert printable(result) == result


@pytest.mark.parametrize("piece", ["\x1b]", "\x1b[", "\x1b[1;", "\x9d", "\x9b1", "\x1bP\x1b"])
def test_time_grows_with_length_and_no_faster(piece: str) -> None:
    started = time.perf_counter()
    printable(piece * 200_000)
    assert time.perf_counter() - started < 2
