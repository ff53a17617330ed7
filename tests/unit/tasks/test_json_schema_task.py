"""Requests with schemas: how they are loaded, and which rows are refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from groupwise.config.build import ConfigError
from groupwise.tasks import check_splits, make_task
from groupwise.tasks.json_schema_task import JsonSchema
from groupwise.tasks.rows import Row
from groupwise.tasks.task import GoldWriter, RowScorer, Task
from groupwise.types import Verdict

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def _row(prompt: str, **changes: Any) -> dict[str, Any]:
    return {"prompt": prompt, "schema": SCHEMA, **changes}


def _write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _task(tmp_path: Path, *rows: object, **options: Any) -> JsonSchema:
    task = make_task("json-schema", {"train": _write(tmp_path / "a.jsonl", *rows), "held_out_share": 0.3, **options})
    assert isinstance(task, JsonSchema)
    return task


def _only(task: Task) -> Any:
    (problem,) = [*task.problems("train"), *task.problems("held_out")]
    return problem


def test_problems(tmp_path: Path) -> None:
    task = _task(tmp_path, *(_row(f"Give {number}.") for number in range(40)))
    train, held_out = check_splits(task)
    assert len(train) + len(held_out) == 40
    assert 3 < len(held_out) < 25
    problem = train[0]
    assert problem.messages[0].content.startswith("Give ")
    assert problem.messages[0].content.endswith(f"against this JSON schema:\n{json.dumps(SCHEMA)}")
    assert problem.meta == {"schema": json.dumps(SCHEMA)}
    assert problem.answer == ""
    assert task.gold_completion(problem) is None
    score = task.score(problem, 'Here: {"a": 5}')
    assert (score.verdict, score.reward, score.verifier) == (Verdict.CORRECT, 1.0, "json-schema/2")
    assert task.score(problem, '{"b": 5}').verdict is Verdict.WRONG
    assert pickle.loads(pickle.dumps(task)) == task


def test_schema_as_text_and_own_columns(tmp_path: Path) -> None:
    text = '{"type": "object",\n "required": ["a", "b"]}'
    row = {"ask": "Give {schema}.", "shape": text, "value": {"b": 1, "a": None}}
    options = {"prompt_key": "ask", "schema_key": "shape", "answer_key": "value", "paths_reward": 0.3}
    task = _task(tmp_path, row, **options, instruction="As {schema}")
    problem = _only(task)
    assert problem.messages[0].content == f"Give {{schema}}.\nAs {text}"
    assert problem.meta == {"schema": text}
    gold = task.gold_completion(problem)
    assert gold == '```json\n{"b": 1, "a": null}\n```'
    assert task.score(problem, gold).verdict is Verdict.CORRECT
    other = task.score(problem, '{"b": 1, "a": false}')
    assert (other.verdict, other.reward) == (Verdict.WRONG, 0.3)
    assert task.score(problem, '{"b": 1}').reward == pytest.approx(0.15)


def test_an_answer_of_null_is_an_answer(tmp_path: Path) -> None:
    task = _task(tmp_path, {"prompt": "p", "schema": {}, "answer": None}, answer_key="answer")
    problem = _only(task)
    assert task.gold_completion(problem) == "```json\nnull\n```"
    assert task.score(problem, "```json\n0\n```").verdict is Verdict.WRONG


def test_a_file_to_hold_out(tmp_path: Path) -> None:
    held_out = _write(tmp_path / "b.jsonl", _row("other"))
    train, other = check_splits(_task(tmp_path, _row("one"), held_out=held_out, held_out_share=0.0))
    assert (len(train), len(other)) == (1, 1)


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"prompt": "p"}, {}, "row 1: no key 'schema'"),
        ({"schema": {}}, {}, "row 1: no key 'prompt'"),
        (_row("p", schema=5), {}, "row 1: 'schema' is 5, expected a JSON schema"),
        (_row("p", schema=True), {}, "row 1: 'schema' is True, expected a JSON schema"),
        (_row("p", schema="{"), {}, "row 1: 'schema' cannot be used: not JSON"),
        (_row("p", schema={"type": "objekt"}), {}, "row 1: 'schema' cannot be used: not a valid schema at type"),
        (
            _row("p", schema={"$ref": "file:///etc/passwd"}),
            {},
            "row 1: 'schema' cannot be used: .*only references within",
        ),
        (_row("p", schema={"pattern": "(?!a)"}), {}, "row 1: 'schema' cannot be used: the pattern at pattern"),
        (_row("p"), {"answer_key": "answer"}, "row 1: no key 'answer'"),
        (
            _row("p", answer={"a": "x"}),
            {"answer_key": "answer"},
            "row 1: 'answer' cannot be used: .*give the value",
        ),
        (_row("p", answer='{"a": 1}'), {"answer_key": "answer"}, "row 1: 'answer' cannot be used: at"),
        (
            _row("p", answer={"a": 10**80}),
            {"answer_key": "answer"},
            "row 1: 'answer' cannot be used: not JSON: a number",
        ),
    ],
)
def test_bad_rows(tmp_path: Path, row: object, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _task(tmp_path, row, **options).problems("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out_share": -0.1}, "held_out_share = -0.1"),
        ({"held_out": "b.jsonl", "held_out_share": 0.1}, "set either held_out"),
        ({"paths_reward": 1.0}, "paths_reward = 1.0: must be at least 0 and below 1"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task("json-schema", options)


def test_without_data_only_rows_can_be_scored() -> None:
    task = make_task("json-schema", {})
    with pytest.raises(ConfigError, match=r"task\.options\.train: missing; set it to"):
        task.problems("train")
    with pytest.raises(ConfigError, match="set either held_out"):
        make_task("json-schema", {"train": "x.jsonl"}).problems("train")
    assert isinstance(task, RowScorer)
    assert isinstance(task, GoldWriter)
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        problem = task.bare_problem(Row({"schema": schema}, "row 1"))
        assert task.gold_completion(problem) is None
        assert task.score(problem, '{"a": 7}').verdict is Verdict.CORRECT
    problem = task.bare_problem(Row({"schema": SCHEMA, "answer": {"a": 1}}, "row 1"))
    gold = task.gold_completion(problem)
    assert gold is not None
    assert task.score(problem, gold).verdict is Verdict.CORRECT
    assert task.score(problem, '{"a": 7}').verdict is Verdict.WRONG
    with pytest.raises(ConfigError, match="row 1: no key 'schema'"):
        task.bare_problem(Row({}, "row 1"))
    with pytest.raises(ConfigError, match="row 1: 'schema' cannot be used"):
        task.bare_problem(Row({"schema": {"type": 5}}, "row 1"))
