"""Cursors over files that grow, are cut, rewritten and damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from groupwise.runs.files import write_atomic
from groupwise.web.dashboard.parameters import ParameterError
from groupwise.web.dashboard.tail import Cursor, News, last_records, parse_cursor, read_since


def numbers(news: News[Any]) -> list[int]:
    return [line["n"] for line in news.lines]


def line(number: int) -> bytes:
    return b'{"n":%d}\n' % number


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_each_line_comes_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    nothing = read_since(path, None, dict)
    assert (numbers(nothing), nothing.is_reset) == ([], True)
    append(path, line(1) + line(2))
    first = read_since(path, nothing.cursor, dict)
    assert (numbers(first), first.is_reset) == ([1, 2], False)
    append(path, line(3))
    second = read_since(path, parse_cursor(str(first.cursor)), dict)
    assert (numbers(second), second.is_reset) == ([3], False)
    assert numbers(read_since(path, second.cursor, dict)) == []


def test_a_half_line_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append(path, line(1) + b'{"n"')
    first = read_since(path, None, dict)
    assert numbers(first) == [1]
    append(path, b":2}")
    second = read_since(path, first.cursor, dict)
    assert numbers(second) == []
    append(path, b"\n")
    third = read_since(path, second.cursor, dict)
    assert (numbers(third), third.is_reset, third.warnings) == ([2], False, ())


def test_a_rewritten_file_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append(path, line(1) + line(2))
    cursor = read_since(path, None, dict).cursor
    write_atomic(path, [line(1), line(5), line(6)])
    news = read_since(path, cursor, dict)
    assert (numbers(news), news.is_reset) == ([1, 5, 6], True)


def test_a_file_that_was_cut_and_grew_again_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    append(path, line(1) + line(2))
    cursor = read_since(path, None, dict).cursor
    os.truncate(path, len(line(1)))
    shorter = read_since(path, cursor, dict)
    assert (numbers(shorter), shorter.is_reset) == ([1], True)
    append(path, line(7) + line(8))
    longer = read_since(path, cursor, dict)
    assert (numbers(longer), longer.is_reset) == ([1, 7, 8], True)
    path.unlink()
    gone = read_since(path, longer.cursor, dict)
    assert (numbers(gone), gone.is_reset) == ([], True)


def test_damage_is_told_once_by_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, line(1) + b"\n" + b"\x00\x00\n" + b"[1]\n" + line(2))
    news = read_since(path, None, dict)
    assert numbers(news) == [1, 2]
    assert [warning.split(" is ")[0] for warning in news.warnings] == ["metrics.jsonl, line 3", "metrics.jsonl, line 4"]
    append(path, line(3) + b"bad\n")
    later = read_since(path, news.cursor, dict)
    assert numbers(later) == [3]
    assert [warning.split(" is ")[0] for warning in later.warnings] == ["metrics.jsonl, line 7"]


@pytest.mark.parametrize("max_bytes", range(1, 60, 7))
def test_a_long_file_comes_in_parts(tmp_path: Path, max_bytes: int) -> None:
    path = tmp_path / "file"
    append(path, b"".join(line(number) for number in range(20)) + b'{"half"')
    cursor, seen, has_more = None, [], True
    while has_more:
        news = read_since(path, cursor, dict, max_bytes)
        cursor, has_more = news.cursor, news.has_more
        seen += numbers(news)
    assert seen == list(range(20))


@pytest.mark.parametrize("text", ["x", "1.2.3", "1.2.3.4.5", "-1.0.0.0", "../../etc/passwd", "1.2.3." + "f" * 9])
def test_a_cursor_of_others_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="omit it"):
        parse_cursor(text)
    assert parse_cursor(str(Cursor(1, 2, 3, 4))) == Cursor(1, 2, 3, 4)


def test_the_last_records_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert last_records(path, dict, 100) == ((), False)
    append(path, b"".join(line(number) for number in range(10, 99)) + b'{"n":99}')
    assert [entry["n"] for entry in last_records(path, dict, 40)[0]] == [96, 97, 98]
    assert len(last_records(path, dict, 10_000)[0]) == 89
