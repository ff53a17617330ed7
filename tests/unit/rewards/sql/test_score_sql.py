"""What makes two results the same, where the query is found, and whose fault a failure is."""

import itertools
import os
import pickle
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.sql import sqlite_reader
from groupwise.rewards.sql.score_sql import (
    EmptyGoldError,
    GoldError,
    find_query,
    gold_results,
    has_same_rows,
    order_by_end,
    score_sql,
)
from groupwise.rewards.sql.sqlite_reader import QueryLimits
from groupwise.types import Score, Verdict

PEOPLE = [("Ada", 36, 1.5), ("Bob", 36, 2.5), ("Cyd", 50, 0.1), ("Dan", 20, None), ("Eve", 50, 0.2)]


def make_database(path: Path, people: Sequence[tuple[Any, ...]] = PEOPLE) -> str:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE person (name TEXT, age INT, score REAL)")
    connection.executemany("INSERT INTO person VALUES (?, ?, ?)", people)
    connection.commit()
    connection.close()
    return str(path)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return make_database(tmp_path / "people.sqlite")


def score(gold: str, query: str, *databases: str, **options: Any) -> Score:
    return score_sql(gold, databases, f"```sql\n{query}\n```", "sql/1", **options)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("```sql\nSELECT 1\n```\nor\n```\nSELECT 2\n```", "SELECT 1"),
        ("```SQLite\nSELECT 1\n```\nor\n```text\nSELECT 2\n```", "SELECT 1"),
        ("```\nSELECT 2\n```", "SELECT 2"),
        ("<answer>SELECT 3</answer>", "SELECT 3"),
        ("<answer>SELECT 3</answer> ```sql\nSELECT 1\n```", "SELECT 1"),
        ("\n select 4", "select 4"),
        ("WITH a AS (SELECT 5) SELECT * FROM a", "WITH a AS (SELECT 5) SELECT * FROM a"),
        ("The query is SELECT 6", None),
        ("SELECTED", None),
        ("```sql\n \n```", None),
        ("<answer></answer>", None),
        ("", None),
    ],
)
def test_find_query(completion: str, expected: str | None) -> None:
    found = find_query(completion)
    assert (None if found is None else found.strip()) == expected


def test_a_bare_query_is_an_option(database: str) -> None:
    gold = "SELECT 1"
    assert score_sql(gold, [database], gold, "").verdict is Verdict.CORRECT
    assert score_sql(gold, [database], gold, "", allow_bare=False).verdict is Verdict.UNPARSED


@pytest.mark.parametrize(
    ("gold", "query", "is_right"),
    [
        ("SELECT name FROM person", "SELECT p.name AS n FROM person p ORDER BY age", True),
        ("SELECT name FROM person", "SELECT name, 1 FROM person", False),
        ("SELECT name, age FROM person", "SELECT age, name FROM person", False),
        ("SELECT age FROM person", "SELECT DISTINCT age FROM person", False),
        ("SELECT DISTINCT age FROM person", "SELECT age FROM person GROUP BY age", True),
        ("SELECT age FROM person", "SELECT age FROM person UNION ALL SELECT 36", False),
        ("SELECT COUNT(*) FROM person", "SELECT 5.0", True),
        ("SELECT COUNT(*) FROM person", "SELECT '5'", False),
        ("SELECT COUNT(*) FROM person", "SELECT 5.000001", True),
        ("SELECT COUNT(*) FROM person", "SELECT 5.0001", False),
        ("SELECT 10000001", "SELECT 10000002", False),
        ("SELECT AVG(score) FROM person", "SELECT SUM(score) / 4 FROM person", True),
        ("SELECT 0.1 + 0.2 - 0.3", "SELECT 0", True),
        ("SELECT 0.0000001", "SELECT 0.0000002", False),
        ("SELECT score FROM person WHERE name = 'Dan'", "SELECT NULL", True),
        ("SELECT score FROM person WHERE name = 'Dan'", "SELECT 0", False),
        ("SELECT score FROM person WHERE name = 'Dan'", "SELECT ''", False),
        ("SELECT 'Ada'", "SELECT X'416461'", False),
        ("SELECT X'416461'", "SELECT X'416461'", True),
        ("SELECT 'Ada'", "SELECT 'ada'", False),
        ("SELECT 'Ada'", "SELECT 'Ada '", False),
        ("SELECT 9e999", "SELECT 9e998", True),
        ("SELECT 9e999", "SELECT -9e999", False),
        ("SELECT 9007199254740993", "SELECT 9007199254740992", False),
        ("SELECT name FROM person WHERE age > 40", "SELECT name FROM person WHERE 0", False),
        ('SELECT name FROM person WHERE name = "Ada"', "SELECT name FROM person WHERE name = 'Ada';", True),
    ],
)
def test_results(database: str, gold: str, query: str, is_right: bool) -> None:
    found = score(gold, query, database)
    assert found.verdict is (Verdict.CORRECT if is_right else Verdict.WRONG)
    assert found.reward == sum(found.parts.values()) == (1.0 if is_right else 0.1)
    assert score(gold, gold, database).reward == 1.0


@pytest.mark.parametrize(
    ("gold", "query", "is_right"),
    [
        ("SELECT name FROM person ORDER BY name", "SELECT name FROM person ORDER BY name DESC", False),
        ("SELECT name FROM person ORDER BY name", "SELECT name FROM person ORDER BY lower(name)", True),
        # Ada and Bob are 36, Cyd and Eve 50.
        ("SELECT name FROM person ORDER BY age", "SELECT name FROM person ORDER BY age, name DESC", True),
        ("SELECT name FROM person ORDER BY age", "SELECT name FROM person ORDER BY name", False),
        ("SELECT name FROM person ORDER BY age", "SELECT name FROM person ORDER BY age DESC", False),
        ("SELECT name FROM person ORDER BY age, name", "SELECT name FROM person ORDER BY age, name DESC", False),
        (
            "SELECT DISTINCT name FROM person ORDER BY age DESC",
            "SELECT name FROM person ORDER BY -age, name DESC",
            True,
        ),
        (
            "SELECT name FROM person WHERE age = 50 UNION SELECT 'Ann' ORDER BY 1",
            "SELECT name FROM (SELECT 'Ann' AS name UNION SELECT name FROM person WHERE age = 50) ORDER BY name DESC",
            False,
        ),
        # A LIMIT that cuts a tie: which row is kept is the gold's choice, and the rest has its order.
        ("SELECT name FROM person ORDER BY age DESC LIMIT 2", "SELECT 'Eve' UNION ALL SELECT 'Cyd'", True),
        ("SELECT name FROM person ORDER BY age LIMIT 4", "SELECT name FROM person ORDER BY age, name LIMIT 4", True),
        (
            "SELECT name FROM person ORDER BY age LIMIT 2",
            "SELECT name FROM person ORDER BY age, name DESC LIMIT 2",
            False,
        ),
        (
            "SELECT name FROM (SELECT name FROM person ORDER BY name)",
            "SELECT name FROM person ORDER BY name DESC",
            True,
        ),
        (
            "SELECT name, ROW_NUMBER() OVER (ORDER BY name) FROM person",
            "SELECT name, ROW_NUMBER() OVER (ORDER BY name) FROM person ORDER BY name DESC",
            True,
        ),
    ],
)
def test_order(database: str, gold: str, query: str, is_right: bool) -> None:
    assert score(gold, query, database).verdict is (Verdict.CORRECT if is_right else Verdict.WRONG)


def test_faults_are_named(database: str) -> None:
    assert score("SELECT name FROM person", "SELECT * FROM person", database).detail.startswith("3 columns, not 1: ")
    assert score("SELECT name FROM person", "SELECT 'Ada'", database).detail.startswith("1 rows, not 5: ")
    assert score("SELECT 'Ada'", "SELECT 'Bob'", database).detail == "other rows: SELECT 'Bob'"
    found = score("SELECT name FROM person ORDER BY name", "SELECT name FROM person ORDER BY name DESC", database)
    assert found.detail.startswith("the right rows in another order: SELECT name")


@pytest.mark.parametrize(
    ("query", "before"),
    [
        ("SELECT a FROM t ORDER BY a", "ORDER BY a"),
        ("SELECT a FROM t order  by a desc ;", "order  by a desc"),
        ("SELECT a FROM t ORDER BY a LIMIT 3", "ORDER BY a"),
        ("SELECT a FROM t ORDER BY max(a, 2), b -- LIMIT\n LIMIT 3 OFFSET 1", "max(a, 2), b"),
        ("SELECT a FROM t ORDER/* x */BY a -- ;", "BY a"),
        ("SELECT a FROM t ORDER BY 'LIMIT'", "'LIMIT'"),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", None),
        ("SELECT 'ORDER BY a' FROM t -- ORDER BY a", None),
        ('SELECT "ORDER BY" FROM [ORDER BY]', None),
        ("SELECT a FROM t", None),
    ],
)
def test_order_by_end(query: str, before: str | None) -> None:
    end = order_by_end(query)
    assert (end is None) == (before is None)
    if end is not None and before is not None:
        assert query[:end].endswith(before)


NUMBERS = st.sampled_from([1, 1.0, 1.0000005, 1.000001, 2, 2.0, 2.000001, 0, 0.0])
ROWS = st.lists(st.tuples(st.sampled_from(["a", None, b"a"]), NUMBERS, NUMBERS), max_size=5)


def _is_close(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        is_number = isinstance(one, (int, float)) and isinstance(other, (int, float))
        return is_number and abs(one - other) <= max(1e-6 * max(abs(one), abs(other)), 1e-12)
    return type(one) is type(other) and one == other


def _has_same_rows_slowly(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """All orders of the one against the other."""
    return len(one) == len(other) and any(
        all(all(map(_is_close, row, other_row)) for row, other_row in zip(order, other, strict=True))
        for order in itertools.permutations(one)
    )


@settings(deadline=None, max_examples=300)
@given(ROWS, ROWS, st.randoms(use_true_random=False))
def test_rows_agree_with_the_slow_comparison(one: list[Any], other: list[Any], random: Any) -> None:
    assert has_same_rows(one, other) == _has_same_rows_slowly(one, other)
    moved = [(row[0], row[1] * (1 + 4e-7), row[2]) for row in one]
    random.shuffle(moved)
    assert has_same_rows(one, moved)


def test_rows_that_sorting_puts_out_of_step() -> None:
    one = [(1.0, 5.0), (1.0000001, 3.0)]
    other = [(1.0000001, 5.0), (1.0, 3.0)]
    assert has_same_rows(one, other)
    assert not has_same_rows(one, [(1.0, 5.0), (1.0, 3.1)])
    # The first of the one is close to both of the other, the second only to the first: it must give it up.
    one = [(1.0, 2.0), (1.0000001, 2.000003)]
    assert has_same_rows(one, [(1.0, 2.0000015), (1.0000001, 1.999999)])
    assert not has_same_rows(one, [(1.0, 1.9999995), (1.0000001, 1.999999)])


def test_a_constant_does_not_pass_on_two_databases(tmp_path: Path, database: str) -> None:
    other = make_database(tmp_path / "other.sqlite", PEOPLE[:3])
    gold = "SELECT COUNT(*) FROM person"
    assert score(gold, "SELECT 5", database).verdict is Verdict.CORRECT
    assert score(gold, "SELECT 5", database, other).verdict is Verdict.WRONG
    assert score(gold, "SELECT COUNT(name) FROM person", database, other).verdict is Verdict.CORRECT


def test_executes_reward(database: str) -> None:
    gold = "SELECT name FROM person"
    wrong, broken = "SELECT age FROM person", "SELECT nme FROM person"
    assert score(gold, wrong, database).parts == {"correct": 0.0, "executes": 0.1}
    assert score(gold, wrong, database, executes_reward=0.0).reward == 0.0
    assert score(gold, broken, database).parts == {"correct": 0.0, "executes": 0.0}
    assert "no such column: nme" in score(gold, broken, database).detail
    assert score(gold, gold, database).parts == {"correct": 1.0, "executes": 0.0}


def test_whose_fault(tmp_path: Path, database: str) -> None:
    gold = "SELECT name FROM person"
    with pytest.raises(EmptyGoldError, match=r"returns no rows on .*people\.sqlite"):
        score("SELECT name FROM person WHERE 0", gold, database)
    with pytest.raises(GoldError, match=r"gold query cannot be run on .*no such table: persons"):
        score("SELECT name FROM persons", gold, database)
    with pytest.raises(GoldError, match="only reading"):
        score("DELETE FROM person", gold, database)
    with pytest.raises(GoldError, match=r"missing\.sqlite: cannot be read"):
        score(gold, gold, str(tmp_path / "missing.sqlite"))
    with pytest.raises(GoldError, match="no database"):
        score(gold, gold)
    text = tmp_path / "text.sqlite"
    text.write_text("not a database at all" * 100)
    with pytest.raises(GoldError, match="not a SQLite database"):
        score(gold, gold, str(text))
    with pytest.raises(GoldError):
        score(gold, gold, str(tmp_path))


def test_a_damaged_page_is_not_the_models_fault(tmp_path: Path) -> None:
    path = tmp_path / "damaged.sqlite"
    make_database(path, [(f"person {number}" * 20, number, 0.5) for number in range(500)])
    content = bytearray(path.read_bytes())
    content[3 * 4096 : 20 * 4096] = b"\xff" * (17 * 4096)
    path.write_bytes(content)
    with pytest.raises(GoldError, match="malformed"):
        score("SELECT 1", "SELECT SUM(length(name)) FROM person", str(path))


def test_empty_on_one_of_two_databases_is_a_problem_still(tmp_path: Path, database: str) -> None:
    other = make_database(tmp_path / "other.sqlite", [("Zoe", 1, 0.0)])
    gold = "SELECT name FROM person WHERE age > 40"
    assert [len(found.result.rows) for found in gold_results(gold, [database, other])] == [2, 0]
    assert score(gold, gold, database, other).verdict is Verdict.CORRECT


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path, database: str) -> None:
    gold = "SELECT COUNT(*) FROM person"
    assert score(gold, "SELECT 5", database).verdict is Verdict.CORRECT
    os.unlink(database)
    make_database(Path(database), PEOPLE[:2])
    assert score(gold, "SELECT 5", database).verdict is Verdict.WRONG
    assert score(gold, "SELECT 2", database).verdict is Verdict.CORRECT


def test_odd_paths_and_odd_text(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20?mode=rw#c'é"
    folder.mkdir()
    path = make_database(folder / "x&y.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO person VALUES (CAST(X'ff41' AS TEXT), 99, 0)")
    connection.commit()
    connection.close()
    gold = "SELECT name FROM person WHERE age = 99"
    found = score(gold, gold, path)
    assert found.verdict is Verdict.CORRECT
    assert score("SELECT 'A'", gold, path).verdict is Verdict.WRONG


def test_connections_are_few_and_not_used_across_a_fork(tmp_path: Path) -> None:
    paths = [make_database(tmp_path / f"{number}.sqlite") for number in range(sqlite_reader.MAX_CONNECTIONS + 5)]
    gold = "SELECT COUNT(*) FROM person"
    for path in paths:
        assert score(gold, gold, path).verdict is Verdict.CORRECT
    assert len(sqlite_reader._open.readers) == sqlite_reader.MAX_CONNECTIONS
    parents = {id(reader) for reader in sqlite_reader._open.readers.values()}
    child = os.fork()
    if child == 0:
        is_right = score(gold, "SELECT COUNT(name) FROM person", paths[-1]).verdict is Verdict.CORRECT
        is_own = parents.isdisjoint(id(reader) for reader in sqlite_reader._open.readers.values())
        os._exit(0 if is_right and is_own and len(sqlite_reader._open.readers) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert score(gold, gold, paths[-1]).verdict is Verdict.CORRECT
    assert {id(reader) for reader in sqlite_reader._open.readers.values()} == parents


def test_other_threads(database: str) -> None:
    gold, found = "SELECT COUNT(*) FROM person", []
    threads = [threading.Thread(target=lambda: found.append(score(gold, gold, database).verdict)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Verdict.CORRECT] * 3


def test_gold_is_run_once(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gold = "SELECT COUNT(*) + 0 FROM person"
    score(gold, "SELECT 5", database)
    queries: list[str] = []
    run = sqlite_reader._Reader.run

    def spy(reader: Any, query: str, limits: QueryLimits) -> Any:
        queries.append(query.strip())
        return run(reader, query, limits)

    monkeypatch.setattr(sqlite_reader._Reader, "run", spy)
    score(gold, "SELECT 6", database)
    assert queries == ["SELECT 6"]
    assert pickle.loads(pickle.dumps(QueryLimits())) == QueryLimits()
