"""Any file of rows is read or refused with its name and line, in bounded time; what is read are texts that can be used.

`outcome_of_rows` is one deterministic trial.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from groupwise.config import ConfigError
from groupwise.tasks import make_task
from groupwise.tasks.jsonl_task import Jsonl
from groupwise.tasks.rows import Row, load_rows
from groupwise.tasks.task import DataTask, RowScorer
from groupwise.types import Problem
from tests.fuzz import examples

MAX_S = 5.0
GOOD: dict[str, dict[str, Any]] = {
    "arithmetic": {"answer": 7},
    "countdown": {"numbers": [1, 2, 3], "target": 6},
    "jsonl": {"prompt": "1 + 1 =", "answer": 2, "level": "easy", "demonstration": "<answer>2</answer>"},
    "code-jsonl": {
        "prompt": "Write f.",
        "tests": ["assert f(1) == 1"],
        "entry_point": "f",
        "solution": "f = abs",
    },
    "json-schema": {"prompt": "Write one.", "schema": {"type": "integer"}, "answer": 3},
    "sql-jsonl": {"question": "One?", "gold": "SELECT 1", "database": "none.sqlite"},
    "math": {"problem": "1 + 1", "solution": "\\boxed{2}", "level": "Level 1", "subject": "Algebra"},
    "gsm8k": {"question": "1 + 1", "answer": "2 #### 2"},
    "mbpp": {"task_id": 601, "text": "Write f.", "code": "def f(): ...", "test_list": ["assert f() is None"] * 3},
    "humaneval": {
        "task_id": "HumanEval/0",
        "prompt": "def f():\n    pass\n",
        "test": "def check(f):\n    assert f() is None",
        "entry_point": "f",
    },
}
"""A row of each task with data."""
OPTIONS: dict[str, dict[str, Any]] = {
    "jsonl": {"level_key": "level", "demonstration_key": "demonstration", "match": "number"},
}
TASKS = {name: make_task(name, OPTIONS.get(name, {})) for name in GOOD}
ODD_VALUES = [
    *("null", "true", "-1", "0", "1e999", "-1e999", "1e-999", "NaN", "Infinity", "9" * 300, "9" * 400, "9" * 5000),
    *('""', '" "', '"\\u0000"', '"\\ud800"', '"\\udc00x"', '"\\ud83d\\ude00"', '"' + 700 * "x" + '"', '"~nobody/x"'),
    *("[]", "{}", "[[]]", '[""]', "[null]", '["a", 1]', '{"a": {"a": []}}', '{"type": {}}', '{"$ref": "#"}'),
    *(
        5000 * "[",
        200 * "[" + 200 * "]",
        90 * "[" + 90 * "]",
        90 * '{"a": ' + "1" + 90 * "}",
        "[" + 3000 * "1, " + "1]",
    ),
    *('[{"role": "user", "content": "x"}]', '[{"role": 1}]', '"\\u2028"', '"assert"', '"def f("', "", "'a'", "#"),
]
PLAIN_VALUES = ["1", "2.5", '"a"', '"2"', '["assert f(1) == 2"]', '"SELECT 1"', "[1, 2, 3]", '{"type": "string"}']


def random_rows(seed: int) -> tuple[str, bytes]:
    """Return a task and file number `seed` for it: from nearly right to noise."""
    rng = random.Random(f"rows/{seed}")
    task = rng.choice(list(GOOD))
    if rng.random() < 0.05:
        return task, rng.randbytes(rng.randrange(1000))
    lines = [json.dumps(GOOD[task])] * rng.randrange(3) + [_row(rng, task) for _ in range(rng.randrange(4))]
    rng.shuffle(lines)
    data = rng.choice((b"\n", b"\n", b"\r\n", b"\n\n", b"\r", b"")).join(line.encode() for line in lines)
    if rng.random() < 0.1:
        place = rng.randrange(len(data) + 1)
        data = data[:place] + rng.randbytes(rng.randrange(4)) + data[place + rng.randrange(3) :]
    return task, rng.choice((*[b""] * 9, b"\xef\xbb\xbf", b"\xff\xfe", b"\0")) + data


def outcome_of_rows(seed: int) -> str:
    """Return what became of file number `seed`: "read", or the message of its refusal. Raise for all else."""
    return outcome_of(*random_rows(seed))


def outcome_of(task: str, content: bytes) -> str:
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_bytes(content)
        outcome = _outcome(task, path)
    taken = time.perf_counter() - begin
    assert taken < MAX_S, f"{taken:.1f} s"
    return outcome


def _outcome(name: str, path: Path) -> str:
    outcome = "read"
    try:
        for row in load_rows(str(path), "train"):
            outcome = max(outcome, read_row(name, row), key=len)
    except ConfigError as error:
        return _clear(error, str(path)).replace(str(path), path.name)
    return outcome.replace(str(path), path.name)


def read_row(name: str, row: Row) -> str:
    """Make problems of a row in every way that its task has. Return "read", or why one cannot be made."""
    task = TASKS[name]
    assert isinstance(task, RowScorer)
    ways = [task.bare_problem]
    if isinstance(task, DataTask) and name != "sql-jsonl":
        ways += [lambda row: task.problem(row, is_held_out=False), lambda row: task.problem(row, is_held_out=True)]
    outcome = "read"
    for way in ways:
        try:
            _check_usable(way(row))
        except ConfigError as error:
            outcome = _clear(error, row.where)
    return outcome


def _check_usable(problem: Problem) -> None:
    """Check what the sampler, the tokenizer and the logs do with a problem."""
    assert isinstance(hash(problem.id), int)
    texts = (problem.id, problem.prompt_text, problem.answer)
    json.dumps([*texts, problem.meta], ensure_ascii=False, allow_nan=False).encode("utf-8")
    level = problem.meta.get("level")
    assert level is None or isinstance(level, str) or math.isfinite(float(level))


def _clear(error: ConfigError, where: str) -> str:
    message = str(error)
    assert where in message
    assert len(message) < 2000
    return message


def _row(rng: random.Random, task: str) -> str:
    """A row of the task with other values, fewer keys or more."""
    values = {key: json.dumps(value) for key, value in GOOD[task].items()}
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        key = rng.choice((*values, *values, "id", "answer", "extra"))
        if rng.random() < 0.2:
            values.pop(key, None)
        else:
            values[key] = rng.choice(PLAIN_VALUES if rng.random() < 0.4 else ODD_VALUES)
    return "{" + ", ".join(f'"{key}": {value}' for key, value in values.items()) + "}"


@examples(400)
@given(seed=st.integers(0, 2**32))
@example(seed=14681)
def test_damaged_rows_are_read_or_refused(seed: int) -> None:
    outcome_of_rows(seed)


@examples(100)
@given(task=st.sampled_from(list(GOOD)), content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_refused(task: str, content: bytes) -> None:
    assert outcome_of(task, content) != "read"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@examples(300)
@given(name=st.sampled_from(list(GOOD)), data=st.data())
def test_any_values_are_read_or_refused(name: str, data: st.DataObject) -> None:
    """Also those that no JSON has: rows of the hub are Python objects."""
    changes = data.draw(st.dictionaries(st.sampled_from([*GOOD[name], "id", "answer"]), JSON, max_size=3))
    values = GOOD[name] | changes
    gone = data.draw(st.sets(st.sampled_from(list(values)), max_size=2))
    read_row(name, Row({key: value for key, value in values.items() if key not in gone}, "data, row 1"))


def test_trials_can_be_repeated_and_differ() -> None:
    outcomes = [outcome_of_rows(seed) for seed in range(100)]
    assert outcomes == [outcome_of_rows(seed) for seed in range(100)]
    assert "read" in outcomes
    assert len(set(outcomes)) > 40


@pytest.mark.parametrize("task", sorted(set(GOOD) - {"sql-jsonl"}))
def test_what_is_not_damaged_is_read(task: str) -> None:
    assert outcome_of(task, json.dumps(GOOD[task]).encode()) == "read"


def test_conversations_are_read() -> None:
    task = Jsonl(train="x", held_out_share=0.5)
    row = Row({"prompt": [{"role": "user", "content": "1 + 1"}], "answer": 2}, "data, row 1")
    _check_usable(task.problem(row, is_held_out=False))
