"""Files that may be anything, and JSON and TOML of any depth: read in bounded time, or refused with a reason."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.base.outside import MAX_DEPTH, UnreadableFile, file_bytes, file_text, json_value, toml_table

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(plain_values)
def test_json_is_read_as_the_standard_library_reads_it(value: Any) -> None:
    assert json_value(json.dumps(value)) == value
    assert json_value(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")) == value


@given(st.binary())
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    try:
        json_value(data)
    except ValueError:
        return
    json.loads(data)


@given(st.text())
def test_any_text_is_a_table_or_a_value_error(text: str) -> None:
    for source in (text, f"key = {text}", f"[{text}]"):
        with contextlib.suppress(ValueError):
            assert isinstance(toml_table(source), dict)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000,
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        '{"a":' * 500 + "1" + "}" * 500,
        '["' + "]" * 500 + '", ' + "[" * 100 + "]" * 101,
        "1" * 400,
        "-" + "1" * 5000,
        '{"a": [1, ' + "7" * 309 + "]}",
    ],
)
def test_json_beyond_the_limits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested more than 100 deep|an integer of"):
        json_value(text)


@pytest.mark.parametrize("text", ["[" * MAX_DEPTH + "]" * MAX_DEPTH, json.dumps("[" * 500), json.dumps("1" * 500)])
def test_json_within_the_limits_is_read(text: str) -> None:
    assert json_value(text) == json.loads(text)


def test_long_integers_are_read_where_they_are_meant() -> None:
    assert json_value("1" * 4000, max_digits=4300) == int("1" * 4000)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "[" * 101 + "]" * 101,
        ".".join(["a"] * 20_000) + " = 1",
        "[" + " . ".join(['"a"'] * 20_000) + "]",
        "a = " + "1" * 5000,
        "a = [" + "1" * 400 + "]",
    ],
)
def test_toml_beyond_the_limits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"100|more than 308 digits"):
        toml_table(text)


def test_toml_within_the_limits_is_read() -> None:
    assert toml_table('a = "' + "b." * 500 + '"')["a"] == "b." * 500
    assert toml_table("a = [" + "0.5," * 500 + "]")["a"] == [0.5] * 500


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "a FIFO"),
        (Path.mkdir, "a folder"),
        (_socket, "a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (_sparse, "1,099,511,627,776 bytes"),
    ],
)
def test_only_regular_files_of_a_sane_size_are_opened(
    make: Callable[[Path], None], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make(Path("odd"))
    with pytest.raises(UnreadableFile, match=reason):
        file_bytes("odd")


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_bytes(tmp_path / "none")


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xef\xbb\xbfseed = 1")
    assert file_text(tmp_path / "recipe.toml") == "seed = 1"
