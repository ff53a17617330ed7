"""The quick reading of a line against the JSON parser, on lines that try to mislead it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from groupwise.runs.files import encode_line
from groupwise.runs.records import group_to_json
from groupwise.web.dashboard.group_outline import GroupOutline, completions_of, outline_by_parsing, outline_of


def table_of(sample: Any, seed: int, size: int = 4) -> dict[str, Any]:
    group = sample.group(random.Random(seed), f"p{seed}", size=size)
    return {"step": 3, "stage": 'gr"po', **group_to_json(group)}


def read_both(line: bytes) -> tuple[GroupOutline, GroupOutline]:
    quick, slow = outline_of(line), outline_by_parsing(line)
    assert quick is not None
    assert slow is not None
    return quick, slow


@pytest.mark.parametrize("seed", range(60))
def test_pieces_and_parser_agree(sample: Any, seed: int) -> None:
    table = table_of(sample, seed, size=1 + seed % 5)
    line = encode_line(table)
    quick, slow = read_both(line)
    assert quick.text_spans is not None, "a line of our own writer is read in pieces"
    # NaN is not equal to itself; its text is.
    assert repr(replace(quick, text_spans=None)) == repr(slow)
    texts = [rollout["text"] for rollout in json.loads(line)["rollouts"]]
    assert list(completions_of(line, quick)) == list(completions_of(line, slow)) == texts
    assert quick.num_tokens == tuple(len(rollout["token_ids"]) for rollout in table["rollouts"])


def test_what_an_outline_holds(sample: Any) -> None:
    table = table_of(sample, 1, size=3)
    table["rewards"] = [1.0, 0.5, 9.0]
    for score, verdict in zip(table["scores"], ("correct", "wrong", "error"), strict=True):
        score["verdict"] = verdict
    table["problem"]["messages"][-1]["content"] = "Ä" * 300
    outline, _ = read_both(encode_line(table))
    assert (outline.mean_reward, outline.spread) == (0.75, 0.5), "an error says nothing of the completion"
    assert outline.prompt == "Ä" * 200
    assert "ä" * 300 in outline.problem_texts


@pytest.mark.parametrize(
    "write",
    [
        lambda table: json.dumps(table, indent=None).encode(),
        lambda table: json.dumps(dict(reversed(table.items())), separators=(",", ":")).encode(),
        lambda table: json.dumps(table | {"new": "key"}, separators=(",", ":")).encode(),
        lambda table: json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"),
        lambda table: encode_line(table).replace(b"Think", b"\\u0054hi\\u006ek"),
        lambda table: encode_line(table)[:-2] + b',"stage":"told twice"}\n',
        lambda table: encode_line(table)[:-2] + b',"rollouts":[]}\n',
    ],
    ids=["spaced", "reversed", "longer", "utf-8", "escaped", "stage-twice", "rollouts-twice"],
)
@pytest.mark.parametrize("seed", range(8))
def test_lines_of_other_writers_are_read_right(sample: Any, write: Any, seed: int) -> None:
    line = write(table_of(sample, seed))
    quick, slow = read_both(line)
    assert repr(replace(quick, text_spans=None)) == repr(slow)
    assert list(completions_of(line, quick)) == [rollout["text"] for rollout in json.loads(line)["rollouts"]]


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b"\x00" * 50, b'{"step":1,"stage":"a","problem":{}}', b'{"step":1,"stage":"' + b"[" * 9999],
)
def test_damage_is_none(line: bytes) -> None:
    assert outline_of(line) is None


def test_a_line_cut_anywhere_is_damaged_and_never_misread(sample: Any) -> None:
    line = encode_line(table_of(sample, 5, size=2))
    for end in range(0, len(line) - 2):
        assert outline_of(line[:end]) is None
