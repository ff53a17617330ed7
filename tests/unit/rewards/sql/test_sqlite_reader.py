"""Queries that want to do harm: none of them writes, hangs, raises anything else or spoils the next one."""

import contextlib
import hashlib
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.sql.score_sql import score_sql
from groupwise.rewards.sql.sqlite_reader import (
    MAX_MEMORY_BYTES,
    OPERATIONS_PER_LOOK,
    DatabaseError,
    QueryError,
    QueryLimits,
    run_query,
    schema_text,
)
from groupwise.types import Verdict

LIMITS = QueryLimits(max_operations=500_000, max_rows=1_000, max_bytes=50_000, max_cpu_s=0.5)
COUNTING = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c{}) "
LONG = (
    "WITH RECURSIVE d(x) AS (SELECT 'aaaaaaaaaaaaaaaa' UNION ALL SELECT x || x FROM d WHERE length(x) < 400000), "
    "c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT 9000), big AS MATERIALIZED (SELECT max(x) AS b FROM d) "
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("hostile") / "town.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE town (name TEXT, size INT); CREATE VIEW big_town AS SELECT name FROM town WHERE size > 50;"
        "CREATE VIEW today AS SELECT date('now') AS day;"
        "CREATE TABLE seq (id INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO seq VALUES (7);"
    )
    connection.executemany("INSERT INTO town VALUES (?, ?)", [(f"town {number}", number) for number in range(100)])
    connection.commit()
    connection.close()
    return str(path)


def copies_of_a_cte(num_levels: int, num_copies: int) -> str:
    """Each level names the one before several times: num_copies ** num_levels copies before anything runs."""
    parts = ["a0 AS (SELECT 1 AS x)"]
    for level in range(1, num_levels):
        sources = ", ".join(f"a{level - 1} t{copy}" for copy in range(num_copies))
        parts.append(f"a{level} AS (SELECT t0.x FROM {sources})")
    return f"WITH {', '.join(parts)} SELECT count(*) FROM a{num_levels - 1}"


FORBIDDEN = {
    "drop": ("DROP TABLE town", "only reading"),
    "insert": ("INSERT INTO town VALUES ('x', 1)", "only reading"),
    "insert returning": ("INSERT INTO town VALUES ('x', 1) RETURNING *", "only reading"),
    "update": ("UPDATE town SET size = 0", "only reading"),
    "delete behind with": ("WITH a AS (SELECT 1) DELETE FROM town", "only reading"),
    "create": ("CREATE TABLE other (a)", "only reading"),
    "create temporary": ("CREATE TEMP TABLE other AS SELECT * FROM town", "only reading"),
    "attach": ("ATTACH '{folder}/other.sqlite' AS other", "only reading"),
    "detach": ("DETACH main", "only reading"),
    "vacuum": ("VACUUM", "only reading"),
    "vacuum into": ("VACUUM INTO '{folder}/copy.sqlite'", "only reading"),
    "pragma": ("PRAGMA writable_schema = 1", "only reading"),
    "pragma table": ("SELECT * FROM pragma_database_list", "only reading"),
    "pragma count": ("SELECT count(*) FROM pragma_function_list", "."),
    "begin": ("BEGIN", "only reading"),
    "savepoint": ("SAVEPOINT s", "only reading"),
    "analyze": ("ANALYZE", "only reading"),
    "reindex": ("REINDEX", "no query"),
    "master": ("SELECT sql FROM sqlite_master", "sqlite_master may not be read"),
    "master count": ("SELECT count(*) FROM sqlite_schema", "may not be read"),
    "sequence": ("SELECT * FROM sqlite_sequence", "sqlite_sequence may not be read"),
    "statements": ("SELECT * FROM sqlite_stmt", "."),
    "dbstat": ("SELECT * FROM dbstat", "."),
    "series": ("SELECT * FROM json_each('[1]')", "."),
    "load extension": ("SELECT load_extension('x')", "not a"),
    "readfile": ("SELECT readfile('/etc/passwd')", "no such function"),
    "random": ("SELECT random()", "function random is not allowed"),
    "random order": ("SELECT name FROM town ORDER BY random()", "function random is not allowed"),
    "randomblob": ("SELECT randomblob(1000000000)", "function randomblob is not allowed"),
    "zeroblob": ("SELECT zeroblob(1000000000)", "function zeroblob is not allowed"),
    "printf": ("SELECT printf('%.*c', 1000000000, 'x')", "function printf is not allowed"),
    "tokenizer": ("SELECT fts3_tokenizer('simple')", "."),
    "version": ("SELECT sqlite_version()", "function sqlite_version is not allowed"),
    "current time": ("SELECT CURRENT_TIMESTAMP", "function current_timestamp is not allowed"),
    "stacked": ("SELECT 1; DROP TABLE town", "one statement"),
    "stacked behind a comment": ("SELECT 1 /* ; */ ; -- x\n DELETE FROM town", "one statement"),
    "parameter": ("SELECT ?", "."),
    "named parameter": ("SELECT :name", "."),
    "NUL": ("SELECT 1\0; DROP TABLE town", "NUL"),
    "lone surrogate": ("SELECT '\ud800'", "surrogate"),
    "nothing": (" ; ", "."),
    "comment": ("-- SELECT 1", "no query"),
    "open comment": ("SELECT 1 /* ", None),
    "open string": ("SELECT 'x", "unrecognized token"),
    "not SQL": ("I cannot say.", "syntax error"),
    "other dialect": ("SELECT TOP 3 name FROM town", "syntax error"),
    "glob": ("SELECT 'aaaa' GLOB '*a*a*a*b'", "function glob is not allowed"),
    "aggregate of JSON": ("SELECT json_group_array(name) FROM town", "not allowed"),
}
CLOCKS = [
    "date('now')",
    "date('n' || 'ow')",
    "datetime(lower('NOW'))",
    "datetime(x'6e6f77')",
    "date('now' || char(0) || 'x')",
    "date((SELECT 'now'))",
    "julianday()",
    "julianday(/**/)",
    "unixepoch('now', '+1 day')",
    "strftime('%s')",
    "strftime('%s', 'no' || 'w')",
    "datetime('subsec')",
    "date(name) FROM (SELECT substr(name || 'now', -3) AS name FROM town)",
    "timediff('now', '2020-01-01')",
    "time('12:00', 'local' || 'time')",
    "datetime(0, 'unixepoch', \"LocalTime\")",
    "date('2020-01-01', 'utc')",
    "CURRENT_DATE",
    "CURRENT_TIME",
    "CURRENT_TIMESTAMP",
    "*, random() FROM town",
    "1 LIMIT abs(random()) % 2",
    "day FROM today",
]
BOMBS = {
    "endless rows": COUNTING.format("") + "SELECT i FROM c",
    "endless count": COUNTING.format("") + "SELECT count(*) FROM c",
    "endless sum": COUNTING.format("") + "SELECT sum(i) FROM c",
    "cartesian": "SELECT count(*) FROM town a, town b, town c, town d, town e",
    "cartesian rows": "SELECT a.name FROM town a, town b, town c",
    "cartesian sort": "SELECT a.name || b.name || c.name AS x FROM town a, town b, town c ORDER BY x",
    "sixty tables": "SELECT count(*) FROM " + ", ".join(f"town t{number}" for number in range(60)),
    "sixty joins": "SELECT count(*) FROM town t0"
    + "".join(f" JOIN town t{number} ON t{number}.name = t{number - 1}.name" for number in range(1, 60))
    + " JOIN town x JOIN town y JOIN town z",
    "copies of a table expression": copies_of_a_cte(40, 2),
    "more copies": copies_of_a_cte(8, 50),
    "doubling": "WITH RECURSIVE d(x) AS (SELECT 'ab' UNION ALL SELECT x || x FROM d) SELECT length(x) FROM d",
    "group_concat": "SELECT group_concat(a.name || b.name || c.name) FROM town a, town b, town c",
    "group_concat window": "SELECT max(g) FROM (SELECT group_concat(a.name) OVER (ORDER BY 1) g FROM town a, town b)",
    "hex": LONG + "SELECT sum(length(hex(b)) + i) FROM c, big",
    "upper": LONG + "SELECT sum(length(upper(b || i))) FROM c, big",
    "quote": LONG + "SELECT sum(length(quote(b || i))) FROM c, big",
    "substr": LONG + "SELECT sum(length(substr(b, i))) FROM c, big",
    "compare": LONG + "SELECT sum((b || i < b || (i + 1)) + (b || -i > b || (i + 2)) + (b || i = b || +i)) FROM c, big",
    "distinct": LONG + "SELECT count(DISTINCT b || i) FROM c, big",
    "sort": LONG + "SELECT b || i FROM c, big ORDER BY b || i DESC",
    "json": LONG + "SELECT sum(json_valid('[\"' || b || i || '\"]')) FROM c, big",
    "instr": LONG + "SELECT sum(instr(b, substr(b, 1, 200000) || 'b' || i)) FROM c, big",
    "replace": LONG + "SELECT length(replace(b, 'a', b)) FROM big",
    "replace of much": LONG + "SELECT sum(length(replace(b, substr(b, 1, 200000) || 'b', i))) FROM c, big",
    "trim": LONG + "SELECT sum(length(trim(b || i, 'abcdefghijkl'))) FROM c, big",
    "trim of much": LONG + "SELECT length(trim(b, substr(b, 1, 5000) || 'a')) FROM big",
    "like": LONG + "SELECT sum(b LIKE '%a%a%a%a%a%a%a%a%b' || i) FROM c, big",
    "like with gaps": LONG + "SELECT sum(b LIKE '%a_a%a_a%a_a%a_ab' || i) FROM c, big",
    "like of much": LONG + "SELECT b LIKE b FROM big",
    "parentheses": "SELECT " + "(" * 4_000 + "1" + ")" * 4_000,
    "nested selects": "SELECT " + "(SELECT " * 900 + "1" + ")" * 900,
    "nested from": "SELECT * FROM " + "(SELECT * FROM " * 500 + "town" + ")" * 500,
    "nested case": "SELECT " + "CASE WHEN 1 THEN " * 400 + "1" + " END" * 400,
    "minuses": "SELECT " + "- " * 4_000 + "1",
    "sums": "SELECT " + "1+" * 4_000 + "1",
    "unions": " UNION ALL ".join(["SELECT 1"] * 400),
    "arguments": f"SELECT max({','.join(['1'] * 2_000)})",
    "length": "SELECT " + " " * 200_000 + "1",
}


def _digest(database: str) -> tuple[str, list[str]]:
    folder = Path(database).parent
    return hashlib.sha256(Path(database).read_bytes()).hexdigest(), sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden(database: str, name: str) -> None:
    before = _digest(database)
    query, reason = FORBIDDEN[name]
    query = query.replace("{folder}", str(Path(database).parent))
    if reason is None:
        run_query(database, query, LIMITS)
    else:
        with pytest.raises(QueryError, match=reason):
            run_query(database, query, LIMITS)
    assert _digest(database) == before
    assert run_query(database, "SELECT count(*) FROM town", LIMITS).rows == ((100,),)


@pytest.mark.parametrize("clock", CLOCKS)
def test_what_depends_on_the_clock_or_on_chance_is_wrong(database: str, clock: str) -> None:
    with pytest.raises(QueryError, match=r"depends on the day or the machine|is not allowed"):
        run_query(database, f"SELECT {clock}", LIMITS)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(database: str, name: str) -> None:
    before = _digest(database)
    started = time.process_time()
    completion = f"```sql\n{BOMBS[name]}\n```"
    score = score_sql("SELECT 1 UNION SELECT 2", [database], completion, "sql/1", limits=LIMITS)
    assert time.process_time() - started < 10.0
    assert (score.verdict, score.reward) == (Verdict.WRONG, 0.0)
    assert 0 < len(score.detail) < 200
    score.detail.encode()
    assert _digest(database) == before
    assert run_query(database, "SELECT count(*) FROM town", LIMITS).rows == ((100,),)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from(
            [
                "SELECT",
                "1",
                "*",
                "FROM",
                "town",
                ",",
                "(",
                ")",
                "WITH",
                "AS",
                "'",
                '"',
                ";",
                "--",
                "\n",
                "x",
                "NULL",
                "\0",
            ]
        ),
        max_size=12,
    ).map(" ".join)
)
def test_any_text_is_rows_or_a_query_error(database: str, query: str) -> None:
    with contextlib.suppress(QueryError):
        assert run_query(database, query, LIMITS).num_columns


@pytest.mark.parametrize(
    "query",
    [
        "SELECT name FROM big_town WHERE name LIKE 'TOWN 9_'",
        "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 9) SELECT count(*) FROM c",
        "SELECT t.name, rank() OVER (ORDER BY size DESC) FROM town t LIMIT 3",
        "SELECT strftime('%Y', '2020-01-02'), date('2020-01-31', '+1 month'), round(1.26, 1), upper('a')",
        "SELECT size / 10, group_concat(name, char(10)) FROM town GROUP BY 1 HAVING count(*) > 1",
        "SELECT json_extract('{\"a\": [1, 2]}', '$.a[1]'), iif(1, 'x', 'y'), coalesce(NULL, 2), length('abc')",
        "SELECT name FROM town WHERE size IN (SELECT max(size) FROM town) OR EXISTS (SELECT 1 WHERE size > 200)",
        "VALUES (1, 'a')",
        "SELECT 'now', name FROM town WHERE name <> 'localtime' AND CASE WHEN size < 0 THEN date('now') ELSE 1 END",
        "SELECT datetime(1700000000, 'unixepoch'), date(2460000.5), time(x'31323a3330'), julianday('2020-02-30')",
        "SELECT strftime('%Y-%W %f', '2020-05-06 07:08:09.123', 'start of year'), datetime(NULL), date(5)",
    ],
)
def test_ordinary_queries_run_as_they_would_unguarded(database: str, query: str) -> None:
    connection = sqlite3.connect(database)
    expected = connection.execute(query).fetchall()
    connection.close()
    assert list(run_query(database, query, LIMITS).rows) == expected
    assert expected


def test_caps(database: str) -> None:
    query = "SELECT name FROM town"
    assert len(run_query(database, query, QueryLimits(max_rows=100)).rows) == 100
    with pytest.raises(QueryError, match="more than 99 rows"):
        run_query(database, query, QueryLimits(max_rows=99))
    num_bytes = sum(len(f"town {number}") for number in range(100))
    run_query(database, query, QueryLimits(max_bytes=num_bytes))
    with pytest.raises(QueryError, match=r"more than .* bytes"):
        run_query(database, query, QueryLimits(max_bytes=num_bytes - 1))


def _ends_well(database: str, query: str, max_operations: int) -> bool:
    try:
        run_query(database, query, QueryLimits(max_operations=max_operations))
    except QueryError as error:
        assert "too many operations" in str(error)  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize("num_rows", [1010, 1025, 1040, 1055])
def test_the_budget_ends_a_query_at_the_same_place_whatever_ran_before(database: str, num_rows: int) -> None:
    query = COUNTING.format(f" LIMIT {num_rows}") + "SELECT sum(i) FROM c"
    low, high = OPERATIONS_PER_LOOK, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _ends_well(database, query, middle) else (middle, high)
    assert 5 * num_rows < high < 50 * num_rows
    for other in ("SELECT 1", "SELECT name FROM town", COUNTING.format("") + "SELECT count(*) FROM c"):
        _ends_well(database, other, 12_345)
        assert [_ends_well(database, query, limit) for limit in (low, high) * 5] == [False, True] * 5


def test_what_one_call_costs_counts(database: str) -> None:
    """The text is long and the operations few: without the charge these would pass."""
    for call in ("instr(b, 'c')", "replace(b, 'c', 'd')", "trim(b, 'c')", "b LIKE '%c%'"):
        with pytest.raises(QueryError, match="too many operations"):
            run_query(database, LONG + f"SELECT max({call}) FROM (SELECT i FROM c LIMIT 30), big", LIMITS)


def test_memory_is_limited(database: str, unguarded: sqlite3.Connection) -> None:
    run_query(database, "SELECT 1", LIMITS)
    assert unguarded.execute("PRAGMA hard_heap_limit").fetchone() == (MAX_MEMORY_BYTES,)


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(10**9), 10**9).map(lambda thousandths: thousandths / 1000),
    st.sampled_from([1e20, -2.5e-7, 1e15, 123456789012345.0, 1e-300]),
    st.text("aAbB%_\\éÉ \n1.", max_size=8),
)
PATTERNS = st.text("aAbB%_\\éÉ1.", max_size=8)


@pytest.fixture(scope="module")
def unguarded() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"CAST('{value!r}' AS REAL)" if isinstance(value, float) else f"({value})"


@settings(deadline=None, max_examples=400)
@given(VALUES, st.one_of(PATTERNS, VALUES), st.one_of(PATTERNS, VALUES))
def test_replaced_functions_agree_with_the_built_in_ones(
    database: str, unguarded: sqlite3.Connection, value: Any, other: Any, third: Any
) -> None:
    x, y, z = _literal(value), _literal(other), _literal(third)
    query = (
        f"SELECT {x} LIKE {y}, {x} LIKE {y} ESCAPE '\\', {x} LIKE {y} ESCAPE 'a', {x} NOT LIKE {y}, instr({x}, {y}), "
        f"replace({x}, {y}, {z}), trim({x}, {y}), ltrim({x}, {y}), rtrim({x}, {y})"
    )
    assert run_query(database, query, LIMITS).rows == tuple(unguarded.execute(query).fetchall())


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("a", "a%a"),
        ("aa", "a%a"),
        ("a", "%a%a%"),
        ("aba", "%a%a%"),
        ("ab", "%a_%b%"),
        ("aab", "%a_b"),
        ("xaybz", "x%_b%"),
        ("É", "é"),
        ("Éa", "ÉA"),
        ("İ", "i%"),
        ("a\nb", "a_b"),
        ("a.b", "a.b"),
        ("axb", "a.b"),
        ("", "%"),
        ("", ""),
        ("a", ""),
        ("a%", "a\\%"),
        ("ab", "a\\%"),
        ("a", "a\\"),
    ],
)
def test_like(database: str, unguarded: sqlite3.Connection, text: str, pattern: str) -> None:
    query = f"SELECT '{text}' LIKE '{pattern}', '{text}' LIKE '{pattern}' ESCAPE '\\'"
    assert run_query(database, query, LIMITS).rows == tuple(unguarded.execute(query).fetchall())


def test_another_process_may_hold_a_lock(database: str) -> None:
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        assert run_query(database, "SELECT count(*) FROM town", LIMITS).rows == ((100,),)
    finally:
        writer.close()


def test_replaced_functions_on_blobs(database: str) -> None:
    query = "SELECT instr(X'616263', X'63'), instr('abc', X'63'), replace(X'616263', 'b', 'x'), trim(X'6161', 'a')"
    assert run_query(database, query, LIMITS).rows == ((3, 3, "axc", ""),)


def test_schema_text(database: str, tmp_path: Path) -> None:
    text = schema_text(database, 10_000)
    assert text.splitlines()[0] == "CREATE TABLE town (name TEXT, size INT);"
    assert "CREATE VIEW big_town" in text
    assert "sqlite_sequence" not in text
    short = schema_text(database, 50)
    assert short == "CREATE TABLE town (name TEXT, size INT);\n-- 3 more tables are not shown"
    with pytest.raises(DatabaseError, match="cannot be read"):
        schema_text(str(tmp_path / "missing"), 100)
