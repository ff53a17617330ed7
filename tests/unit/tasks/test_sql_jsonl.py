"""Questions with gold queries: how they are loaded, what is left out, and the real GeoQuery set."""

import json
import logging
import pickle
import sqlite3
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from groupwise.config.build import ConfigError
from groupwise.tasks import check_splits, make_task
from groupwise.tasks.rows import Row
from groupwise.tasks.sql_jsonl import SqlJsonl, query_form
from groupwise.tasks.task import Demonstrator, GoldWriter, RowScorer, Task
from groupwise.types import Verdict
from tests.real_data import FULL, needs_full_data

GEOQUERY = FULL / "geoquery"


def _database(path: Path, *names: str) -> str:
    path.parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE person (name TEXT)")
    connection.executemany("INSERT INTO person VALUES (?)", [(name,) for name in names])
    connection.commit()
    connection.close()
    return str(path)


def _write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _row(question: str, **changes: Any) -> dict[str, Any]:
    return {"question": question, "gold": "SELECT name FROM person", "database": "db/a.sqlite", **changes}


def _task(tmp_path: Path, *rows: object, **options: Any) -> SqlJsonl:
    if not (tmp_path / "db").exists():
        _database(tmp_path / "db" / "a.sqlite", "Ada", "Bob")
        _database(tmp_path / "db" / "b.sqlite", "Cyd")
        _database(tmp_path / "db" / "none.sqlite")
    train = _write(tmp_path / "train.jsonl", *rows)
    task = make_task("sql-jsonl", {"train": train, "held_out_share": 0.3, **options})
    assert isinstance(task, SqlJsonl)
    return task


def _all(task: Task) -> list[Any]:
    return [*task.problems("train"), *task.problems("held_out")]


def test_a_split_by_query_keeps_questions_of_one_query_together(tmp_path: Path) -> None:
    rows = [
        _row(
            f"Question {number} in words of {words}?", gold=f"SELECT name{', name' * (number - 1)} FROM person{ending}"
        )
        for number in range(1, 31)
        for words, ending in (("Ada", ""), ("Bob", "  ;"), ("Cyd", " WHERE name <> 'Dan'"), ("Eve", ' where name<>"F"'))
    ]
    sides = {}
    for split_by in ("question", "query"):
        train, held_out = check_splits(_task(tmp_path, *rows, split_by=split_by))
        assert len(train) + len(held_out) == 120
        assert 10 < len(held_out) < 60
        sides[split_by] = [{query_form(problem.answer) for problem in side} for side in (train, held_out)]
    assert set.intersection(*sides["question"])
    assert not set.intersection(*sides["query"])


def test_the_form_of_a_query_has_no_values() -> None:
    same = ['SELECT a1 FROM t WHERE s = "x y" AND n > 10.5 ;', "select a1 from t\nwhere s = 'z' and n > 3"]
    assert len({query_form(query) for query in same}) == 1
    assert query_form(same[0]) == "select a1 from t where s = ? and n > ?"
    assert query_form("SELECT a2 FROM t") != query_form("SELECT a1 FROM t")


def test_problems(tmp_path: Path) -> None:
    rows = [_row(f"Who are they, {number}?") for number in range(40)]
    task = _task(tmp_path, *rows)
    train, held_out = check_splits(task)
    assert len(train) + len(held_out) == 40
    assert 3 < len(held_out) < 25
    problem = train[0]
    assert problem.messages[0].content.startswith("CREATE TABLE person (name TEXT);\n\nWho are they, ")
    assert problem.messages[0].content.endswith("Answer with one SQLite query in a ```sql block.")
    assert problem.answer == "SELECT name FROM person"
    assert problem.meta == {"databases": [str(tmp_path / "db" / "a.sqlite")]}
    assert json.loads(json.dumps(problem.meta)) == problem.meta
    assert isinstance(task, Demonstrator)
    score = task.score(problem, task.demonstrate(problem))
    assert (score.verdict, score.reward, score.verifier) == (Verdict.CORRECT, 1.0, "sql/2")
    more, _ = check_splits(_task(tmp_path, *rows, _row("And who else?")))
    assert {problem.id for problem in train} <= {problem.id for problem in more}


def test_the_id_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        ids.append([problem.id for problem in _all(_task(tmp_path / name, _row("Who?")))])
    assert ids[0] == ids[1]


def test_several_databases_and_a_default(tmp_path: Path) -> None:
    two = _row("Who?", database=["db/a.sqlite", "db/b.sqlite"])
    bare = {"question": "Who else?", "gold": "SELECT name FROM person"}
    default = str(tmp_path / "db" / "b.sqlite")
    task = _task(tmp_path, two, bare, database=default)
    first, second = sorted(_all(task), key=lambda problem: len(problem.meta["databases"]), reverse=True)
    assert [Path(path).name for path in first.meta["databases"]] == ["a.sqlite", "b.sqlite"]
    assert second.meta["databases"] == [default]
    assert task.score(first, "SELECT 'Ada' UNION SELECT 'Bob'").verdict is Verdict.WRONG
    assert task.score(second, "SELECT 'Cyd'").verdict is Verdict.CORRECT


def test_options_reach_the_score(tmp_path: Path) -> None:
    row = _row("Who?", tables="person(name)")
    task = _task(tmp_path, row, schema_key="tables", instruction="Go.", executes_reward=0.0, allow_bare=False)
    (problem,) = _all(task)
    assert problem.messages[0].content == "person(name)\n\nWho?\nGo."
    assert task.score(problem, "```sql\nSELECT 1\n```").reward == 0.0
    assert task.score(problem, "SELECT name FROM person").verdict is Verdict.UNPARSED
    counting = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 9000) SELECT count(*) FROM c"
    assert _task(tmp_path, row).score(problem, counting).reward == 0.1
    assert "operations" in _task(tmp_path, row, max_operations=9_000).score(problem, counting).detail
    assert "more than 2 rows" in _task(tmp_path, row, max_rows=2).score(problem, "```VALUES (1), (2), (3)```").detail
    cut = _task(tmp_path, _row("Who?"), max_schema_chars=5)
    assert _all(cut)[0].messages[0].content.startswith("-- 1 more tables are not shown")


def test_empty_golds_and_repeats_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    empty = [_row("Nobody?", database="db/none.sqlite"), _row("No?", gold="SELECT 1 WHERE 0")]
    half = _row("Some?", database=["db/none.sqlite", "db/a.sqlite"])
    task = _task(tmp_path, _row("Who?"), _row(" Who? "), half, *empty)
    with caplog.at_level(logging.WARNING):
        problems = _all(task)
    assert sorted(problem.messages[0].content.split("\n")[2] for problem in problems) == ["Some?", "Who?"]
    assert "skipped 2 rows: 'gold' returns no rows" in caplog.text
    assert "skipped 1 rows that repeat a problem" in caplog.text


def test_many_empty_golds_are_a_broken_file(tmp_path: Path) -> None:
    rows = [_row(f"{number}?", database="db/none.sqlite") for number in range(5)]
    with pytest.raises(ConfigError, match=r"row 1: 'gold' returns no rows, as in 5 of 5 rows; check that"):
        _task(tmp_path, *rows).problems("train")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "database": "db/a.sqlite"}, "row 1: no key 'gold'"),
        (_row("q", gold=" "), "row 1: 'gold' is empty"),
        (_row(""), "row 1: 'question' is empty"),
        (_row("q", database=None), "row 1: no key 'database'; name a SQLite file there"),
        (_row("q", database=[]), r"row 1: 'database' is \[\], expected the path"),
        (_row("q", database=[1]), "row 1: 'database' is"),
        (_row("q", database=["db/a.sqlite"] * 2), "row 1: 'database' names a file twice"),
        (_row("q", database="db/x.sqlite"), r"row 1: .*x\.sqlite: cannot be read"),
        (_row("q", database="train.jsonl"), "row 1: .*not a SQLite database"),
        (_row("q", gold="SELECT nme FROM person"), "row 1: the gold query cannot be run .*no such column: nme"),
        (_row("q", gold="DROP TABLE person"), "row 1: the gold query cannot be run .*only reading"),
        (_row("q", gold="SELECT date('now')"), "row 1: the gold query cannot be run .*depends on the day"),
    ],
)
def test_bad_rows(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _task(tmp_path, row).problems("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out_share": 1.0}, "held_out_share = 1.0"),
        ({"held_out_share": 0.0, "split_by": "query"}, 'split_by = "query"'),
        ({"held_out": "b.jsonl", "held_out_share": 0.1}, "set either held_out"),
        ({"executes_reward": 1.0}, "executes_reward = 1.0: must be at least 0 and below 1"),
        ({"max_operations": 0}, "max_operations = 0: must be from 1"),
        ({"max_rows": -1}, "max_rows = -1"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_task("sql-jsonl", options)


def test_without_data_only_rows_can_be_scored(tmp_path: Path) -> None:
    database = _database(tmp_path / "a.sqlite", "Ada")
    task = make_task("sql-jsonl", {})
    with pytest.raises(ConfigError, match=r"task\.options\.train: missing; set it to"):
        task.problems("train")
    with pytest.raises(ConfigError, match="set either held_out"):
        make_task("sql-jsonl", {"train": "x.jsonl"}).problems("train")
    assert isinstance(task, RowScorer)
    assert isinstance(task, GoldWriter)
    problem = task.bare_problem(Row({"gold": "SELECT name FROM person", "database": database}, "row 1"))
    gold = task.gold_completion(problem)
    assert gold is not None
    assert task.score(problem, gold).verdict is Verdict.CORRECT
    assert task.score(problem, "SELECT 'Bob'").verdict is Verdict.WRONG
    with pytest.raises(ConfigError, match=r"row 1: 'gold' cannot be checked: .*returns no rows.*drop the row"):
        task.bare_problem(Row({"gold": "SELECT 1 WHERE 0", "database": database}, "row 1"))
    with pytest.raises(ConfigError, match="row 1: no key 'gold'"):
        task.bare_problem(Row({"database": database}, "row 1"))
    default = SqlJsonl(database=database)
    assert default.bare_problem(Row({"gold": "SELECT 1"}, "row 1")).meta == {"databases": [database]}


def test_a_task_can_be_sent_to_a_worker(tmp_path: Path) -> None:
    task = _task(tmp_path, _row("Who?"))
    (problem,) = _all(task)
    assert task.score(problem, "SELECT 1").verdict is Verdict.WRONG
    copy, copied_problem = pickle.loads(pickle.dumps((task, problem)))
    assert copy == task
    assert copy.score(copied_problem, "SELECT name FROM person").verdict is Verdict.CORRECT


@needs_full_data
def test_every_gold_query_of_geoquery(caplog: pytest.LogCaptureFixture) -> None:
    options = {
        "train": str(GEOQUERY / "pairs_train_dev.jsonl"),
        "held_out_share": 0.1,
        "database": str(GEOQUERY / "geography.sqlite"),
        "gold_key": "sql",
    }
    task = make_task("sql-jsonl", options)
    assert isinstance(task, Demonstrator)
    with caplog.at_level(logging.WARNING):
        train, held_out = check_splits(task)
    assert "skipped 21 rows: 'sql' returns no rows" in caplog.text
    assert "repeat a problem" not in caplog.text
    assert len(train) + len(held_out) == 595 - 21
    for problem in [*train, *held_out]:
        score = task.score(problem, task.demonstrate(problem))
        assert (score.verdict, score.reward) == (Verdict.CORRECT, 1.0), problem
    for problem, other in pairwise(train[:200]):
        is_same = problem.answer == other.answer
        assert is_same <= (task.score(problem, task.demonstrate(other)).verdict is Verdict.CORRECT)
        assert task.score(problem, "SELECT 'nothing like it'").reward == 0.1
