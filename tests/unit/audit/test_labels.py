"""Labels: from an exported file into the run directory, and what they say of the verifier."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.audit.labels import LabelError, agreement, merge_labels, read_labels
from groupwise.audit.survey import audit_run
from groupwise.base.stats import wilson_interval
from groupwise.types import Verdict

C, W = Verdict.CORRECT, Verdict.WRONG
TEXTS = [("a", C), ("b", C), ("c", C), ("d", W), ("e", W)]


@pytest.fixture
def run_dir(make_run: Callable[..., Path]) -> Path:
    return make_run({1: [("cows", "How many?", TEXTS)]})


@pytest.fixture
def chain_ids(run_dir: Path) -> dict[str, str]:
    return {chain.completion: chain.id for chain in audit_run(run_dir).chains}


def label(chain: str, verdict: str | None = None, reasoning: str | None = None, time: str = "01", **more: Any) -> Any:
    stamp = f"2030-01-01T00:00:{time}Z"
    return {"chain": chain, "verdict": verdict, "reasoning": reasoning, "note": "", "time": stamp, **more}


def export(tmp_path: Path, *labels: Any, **changes: Any) -> Path:
    file = tmp_path / "labels.json"
    file.write_text(json.dumps({"format": "groupwise-audit-labels/1", "run": "run", "labels": labels, **changes}))
    return file


def test_merge_is_idempotent_and_appends(run_dir: Path, chain_ids: dict[str, str], tmp_path: Path) -> None:
    first = export(tmp_path, label(chain_ids["a"], "right"), label(chain_ids["b"], "wrong", note="no"))
    assert merge_labels(run_dir, first) == 2
    assert merge_labels(run_dir, first) == 0
    kept = (run_dir / "audit" / "labels.jsonl").read_bytes()
    assert kept.count(b"\n") == 2
    assert merge_labels(run_dir, export(tmp_path, label(chain_ids["a"], "wrong", time="02"))) == 1
    assert (run_dir / "audit" / "labels.jsonl").read_bytes().startswith(kept)
    labels = read_labels(run_dir)
    assert (labels[chain_ids["a"]].verdict, labels[chain_ids["b"]].note) == ("wrong", "no")


def test_the_newest_wins_in_whatever_order_files_come(run_dir: Path, chain_ids: dict[str, str], tmp_path: Path) -> None:
    assert merge_labels(run_dir, export(tmp_path, label(chain_ids["a"], "right", time="05"))) == 1
    assert merge_labels(run_dir, export(tmp_path, label(chain_ids["a"], "wrong", time="04"))) == 0
    # The same moment in another zone is not newer.
    other = {**label(chain_ids["a"], "unsure"), "time": "2030-01-01T02:00:05+02:00"}
    assert merge_labels(run_dir, export(tmp_path, other)) == 0
    assert read_labels(run_dir)[chain_ids["a"]].verdict == "right"


def test_an_empty_label_takes_one_back(run_dir: Path, chain_ids: dict[str, str], tmp_path: Path) -> None:
    merge_labels(run_dir, export(tmp_path, label(chain_ids["a"], "right")))
    assert merge_labels(run_dir, export(tmp_path, label(chain_ids["a"], time="02"))) == 1
    assert read_labels(run_dir) == {}


def test_a_half_line_of_a_kill_does_no_harm(run_dir: Path, chain_ids: dict[str, str], tmp_path: Path) -> None:
    merge_labels(run_dir, export(tmp_path, label(chain_ids["a"], "right")))
    with (run_dir / "audit" / "labels.jsonl").open("ab") as file:
        file.write(b'{"chain":"train-1')
    assert merge_labels(run_dir, export(tmp_path, label(chain_ids["b"], "right"))) == 1
    assert set(read_labels(run_dir)) == {chain_ids["a"], chain_ids["b"]}


GOOD_ID = "train-1-0-0-0123456789ab"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other/1"}, "format = 'other/1'"),
        ({"run": "another"}, "run = 'another', expected 'run'"),
        ({"labels": {}}, r"labels = \{\}, expected a list"),
        ({"labels": ["x"]}, r"labels\[0\]: 'x', expected an object"),
        ({"labels": [label("../../etc")]}, r"chain = '\.\./\.\./etc'"),
        ({"labels": [label(GOOD_ID), label(GOOD_ID, "yes")]}, r"labels\[1\]: verdict = 'yes', expected 'right'"),
        ({"labels": [label(GOOD_ID, reasoning="no")]}, "reasoning = 'no'"),
        ({"labels": [label(GOOD_ID, note=5)]}, "note = 5"),
        ({"labels": [label(GOOD_ID, note="x" * 10_001)]}, "at most 10000 characters"),
        ({"labels": [{**label(GOOD_ID), "time": "2030-01-01"}]}, "time = '2030-01-01', expected ISO 8601 with a zone"),
        ({"labels": [{**label(GOOD_ID), "time": None}]}, "time = None"),
    ],
)
def test_refusals_write_nothing(run_dir: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LabelError, match=message):
        merge_labels(run_dir, export(tmp_path, **changes))
    assert not (run_dir / "audit").exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_not_an_export(run_dir: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "labels.json"
    file.write_bytes(content)
    with pytest.raises(LabelError, match=r"labels\.json"):
        merge_labels(run_dir, file)
    with pytest.raises(LabelError, match="could not read"):
        merge_labels(run_dir, tmp_path / "nowhere.json")


def test_agreement(run_dir: Path, chain_ids: dict[str, str], tmp_path: Path) -> None:
    merge_labels(
        run_dir,
        export(
            tmp_path,
            label(chain_ids["a"], "right", "wrong"),
            label(chain_ids["b"], "wrong", "right", note="seven is not eight"),
            label(chain_ids["c"], "unsure"),
            label(chain_ids["d"], "right"),
            label("train-1-0-0-000000000000", "wrong"),
            label("train-9-0-0-000000000000", "wrong"),
            label("held_out-1-7-7-000000000000", "wrong"),
        ),
    )
    result = agreement(run_dir)
    assert {share.name: (share.agreed, share.total) for share in result.shares} == {
        "verdict right: all": (2, 3),
        "verdict right: correct": (1, 2),
        "verdict right: wrong": (1, 1),
        "reasoning sound: correct": (1, 2),
    }
    assert (result.shares[0].low, result.shares[0].high) == wilson_interval(2, 3)
    assert [(entry.chain.completion, entry.label.note) for entry in result.disagreements] == [
        ("b", "seven is not eight")
    ]
    assert (result.num_labels, result.num_unsure, result.num_lost) == (7, 1, 3)
    json.dumps(result.to_json(), allow_nan=False)


def test_no_labels(run_dir: Path) -> None:
    result = agreement(run_dir)
    assert (result.shares, result.disagreements, result.num_labels) == ((), (), 0)
