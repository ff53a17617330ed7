import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groupwise.config.build import ConfigError
from groupwise.tasks.rows import Row, load_rows, plain_text, share_of, stable_id


def test_jsonl_rows_know_their_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": "\\u00e9\xe2\x80\xa8"}')
    rows = load_rows(str(path), "train")
    assert [row.values for row in rows] == [{"a": 1}, {"a": "é\u2028"}]
    assert rows[1].where == f"task.options.train: {path}, row 3"


def test_a_json_list(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"a": 1}, {"a": 2}]))
    assert [row.get("a") for row in load_rows(str(path), "train")] == [1, 2]


def test_a_path_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data.jsonl").write_text("{}\n")
    assert len(load_rows("~/data.jsonl", "train")) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', r"task\.options\.held_out = '.*a\.jsonl', row 2: not valid JSON"),
        ("a.jsonl", b'{"a": 1}\n\n[1]\n', "row 3: expected an object, got a list"),
        ("a.jsonl", b'{"a": 1}\nnull\n', "row 2: expected an object, got null"),
        ("a.jsonl", b'{"a": "\xff"}\n', "row 1: not valid JSON: .*utf-8"),
        ("a.jsonl", b'{"a": NaN}\n', "row 1: not valid JSON: NaN is not JSON"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "row 1: not valid JSON: nested more than 100 deep"),
        ("a.jsonl", b'{"a": ' + b"9" * 5000 + b"}\n", "row 1: not valid JSON: an integer of 5,000 digits"),
        ("a.jsonl", b'{}\n{"a": "\\ud800"}\n', r"row 2: '\\ud800' is half of a character"),
        ("a.jsonl", b'{"a": 1, "b": 1, "a": 2}\n', "row 1: not valid JSON: the key 'a' is given twice"),
        ("a.jsonl", b"", "no rows"),
        ("a.jsonl", b"\n \n", "no rows"),
        ("a.json", b"[]", "no rows"),
        ("a.json", b'{"a": 1}', "expected a list of objects, got an object"),
        ("a.json", b"[{}, 1]", "row 2: expected an object, got a number"),
        ("a.json", b"[{}", "not valid JSON"),
        ("a.csv", b"a,b", r"expected a \.jsonl file"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_rows(str(tmp_path / name), "test", key="task.options.held_out")


@pytest.mark.parametrize(
    "source", ["missing.jsonl", "./missing", "/no/such/file", "folder/missing.json", "~/missing.x"]
)
def test_a_path_that_does_not_exist(source: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.options\.train = '.*missing.*|/no/such/file': no such file"):
        load_rows(source, "train")


def test_a_folder_is_not_a_source(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    for folder in (tmp_path, tmp_path / "a.jsonl"):
        with pytest.raises(ConfigError, match=rf"{folder}': cannot be read: {folder} is a folder"):
            load_rows(str(folder), "train")


@pytest.mark.parametrize("source", ["a\0.jsonl", f"{5000 * 'a'}.jsonl", "~nobody-of-this-name/a.jsonl"])
def test_a_path_that_no_file_can_have(source: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read|no such file"):
        load_rows(source, "train")


@pytest.mark.timeout(10)
def test_a_source_that_would_block_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(ConfigError, match=r"a\.jsonl is a FIFO, not a regular file"):
        load_rows(str(tmp_path / "a.jsonl"), "train")


def test_whole_pairs_of_surrogates_are_text(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(r'{"a": "\ud83d\ude00 \\ud800"}')
    assert load_rows(str(path), "train")[0].text("a") == "\N{GRINNING FACE} \\ud800"


def test_cells(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "x", "blank": " ", "number": 1}\n')
    row = load_rows(str(path), "train")[0]
    assert row.text("text") == "x"
    for key, message in [
        ("missing", "row 1: no key 'missing'; it has blank, number, text"),
        ("blank", "row 1: 'blank' is empty"),
        ("number", "row 1: 'number' is a number, expected a string"),
    ]:
        with pytest.raises(ConfigError, match=message):
            row.text(key)


def test_numbers_and_levels(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"one": 1, "text": "hard", "none": null, "infinite": 1e999, "list": [1]}\n')
    row = load_rows(str(path), "train")[0]
    assert (row.answer("one"), row.level("one"), row.level("text"), row.level("none")) == ("1", 1, "hard", None)
    for key, message in [
        ("infinite", "row 1: 'infinite' is inf, which is no number that can be compared"),
        ("list", "row 1: 'list' is a list, expected a string or a number"),
    ]:
        for read in (row.level, row.answer):
            with pytest.raises(ConfigError, match=message):
                read(key)
    with pytest.raises(ConfigError, match="'a' is an integer of about 5,000 digits"):
        Row({"a": 10**5000}, "row 1").answer("a")


def test_hub_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"task\.options\.train = 'openai/gsm8k'.*pip install 'groupwise\[hub\]'"):
        load_rows("openai/gsm8k", "train")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def load_dataset(source: str, name: str | None, split: str) -> list[dict[str, str]]:
        calls.append((source, name, split))
        if source == "no/such":
            raise FileNotFoundError("Dataset 'no/such' doesn't exist on the Hub")
        if split == "validation":
            raise ValueError('Unknown split "validation"')
        return [] if source == "empty/set" else [{"question": "q"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_hub_rows(hub: list[tuple[Any, ...]]) -> None:
    rows = load_rows("openai/gsm8k", "test", "main")
    assert hub == [("openai/gsm8k", "main", "test")]
    assert (rows[0].text("question"), rows[0].where) == ("q", "task.options.train: openai/gsm8k, row 1")


@pytest.mark.parametrize(
    ("source", "split", "message"),
    [
        ("no/such", "train", "could not load split 'train' from the hub: Dataset 'no/such'"),
        ("openai/gsm8k", "validation", "could not load split 'validation'"),
        ("empty/set", "train", "no rows"),
    ],
)
def test_hub_mistakes(hub: list[tuple[Any, ...]], source: str, split: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_rows(source, split)


def test_ids_depend_on_content_alone() -> None:
    assert stable_id("a", "x", 1) == stable_id("a", "x", 1) == "a-59402b0471b497c0"
    assert len({stable_id("a", "x", 1), stable_id("a", "x1"), stable_id("a", "x", "1"), stable_id("b", "x", 1)}) == 4
    stable_id("a", "\ud800\x00")


def test_shares_are_even() -> None:
    shares = [share_of(stable_id("a", number)) for number in range(2000)]
    assert 0.0 <= min(shares) < max(shares) < 1.0
    assert 160 < sum(share < 0.1 for share in shares) < 240


def test_plain_text() -> None:
    assert plain_text(" a \n\tb  ") == "a b"
