"""How many completions a second the SQL and the JSON-schema rewards judge, in one process.

    python benchmarks/sql_json_bench.py [--seconds 2] [--geoquery FOLDER]

Prints a line for each case: completions per second of wall time and of processor time. The second is what counts on a
machine that does other work as well. Targets on one core: 5,000 small queries/s and 100,000 small documents/s.
`--geoquery` takes the folder of the GeoQuery set (geography.sqlite, pairs_train_dev.jsonl) and runs its gold queries.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from groupwise.rewards.json.score_json import compile_schema, score_document, score_json
from groupwise.rewards.sql.score_sql import score_sql
from groupwise.tasks.sql_jsonl import SqlJsonl
from groupwise.types import Score, Verdict

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
DOCUMENT = '{"name": "Ada Lovelace", "age": 36, "tags": ["mathematics", "engines"]}'
INVALID = '{"name": "Ada Lovelace", "age": "36", "tags": ["mathematics", "engines"], "more": 1}'
GOLD = "SELECT name FROM person WHERE age > 40 ORDER BY age DESC LIMIT 3"
QUERIES = {
    "right": "SELECT p.name FROM person AS p WHERE p.age > 40 ORDER BY p.age DESC LIMIT 3",
    "wrong rows": "SELECT name FROM person WHERE age > 41 AND city_id = 3",
    "does not run": "SELECT name FROM persons",
    "join and group": "SELECT c.name, COUNT(*) FROM person p JOIN city c ON c.id = p.city_id GROUP BY c.id",
}


def measure(name: str, calls: Sequence[Callable[[], object]], seconds: float) -> None:
    """Calls in turn for so long; the first round is not counted."""
    for call in calls:
        call()
    num_calls, started, cpu_started = 0, time.perf_counter(), time.process_time()
    for call in itertools.cycle(calls):
        call()
        num_calls += 1
        if num_calls % 64 == 0 and time.perf_counter() - started > seconds:
            break
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    print(f"{name:46} {num_calls / wall_s:10,.0f} /s wall {num_calls / cpu_s:10,.0f} /s cpu")


def make_database(path: Path) -> str:
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE city (id INTEGER PRIMARY KEY, name TEXT);"
        "CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, age INT, city_id INT);"
    )
    connection.executemany("INSERT INTO city VALUES (?, ?)", [(number, f"city {number}") for number in range(8)])
    people = [(number, f"person {number}", (number * 37) % 90, number % 8) for number in range(60)]
    connection.executemany("INSERT INTO person VALUES (?, ?, ?, ?)", people)
    connection.commit()
    connection.close()
    return str(path)


def bench_sql(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = make_database(Path(folder) / "people.sqlite")
        for name, query in QUERIES.items():
            completion = f"I think of ages.\n```sql\n{query}\n```"

            def call(completion: str = completion) -> Score:
                return score_sql(GOLD, [database], completion, "sql/1")

            assert (call().verdict is Verdict.CORRECT) == (name == "right"), call()
            measure(f"sql: {name}", [call], seconds)


def bench_geoquery(folder: Path, seconds: float) -> None:
    task = SqlJsonl(
        train=str(folder / "pairs_train_dev.jsonl"),
        held_out_share=0.1,
        database=str(folder / "geography.sqlite"),
        gold_key="sql",
    )
    calls = []
    for problem in task.problems("train"):

        def call(problem=problem, completion: str = task.demonstrate(problem)) -> Score:  # type: ignore[no-untyped-def]
            return task.score(problem, completion)

        assert call().verdict is Verdict.CORRECT, problem
        calls.append(call)
    measure(f"sql: {len(calls)} gold queries of GeoQuery", calls, seconds)


def bench_json(seconds: float) -> None:
    fenced, bare = f"Here it is:\n```json\n{DOCUMENT}\n```\n", f"Here it is: {DOCUMENT}"
    parsed = json.loads(DOCUMENT)
    compiled = compile_schema(SCHEMA)
    assert score_json(SCHEMA, "", fenced, "").verdict is Verdict.CORRECT
    assert score_json(SCHEMA, "", bare, "").verdict is Verdict.CORRECT
    assert 0 < score_document(SCHEMA, "", INVALID, "").reward < 0.6
    cases: dict[str, Callable[[], object]] = {
        "validation alone": lambda: compiled.validator.is_valid(parsed),
        "reward of a document (parse, validate)": lambda: score_document(SCHEMA, "", DOCUMENT, "json-schema/1"),
        "reward of a fenced document (find, parse, validate)": lambda: score_json(SCHEMA, "", fenced, "json-schema/1"),
        "reward of a bare document in prose": lambda: score_json(SCHEMA, "", bare, "json-schema/1"),
        "reward of a document with an answer": lambda: score_document(SCHEMA, DOCUMENT, DOCUMENT, "json-schema/1"),
        "reward of an invalid document (partial credit)": lambda: score_document(SCHEMA, "", INVALID, "json-schema/1"),
    }
    for name, call in cases.items():
        measure(f"json: {name}", [call], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=2.0, help="of each case")
    parser.add_argument("--geoquery", type=Path, help="folder of the GeoQuery set")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}, one process")
    bench_json(options.seconds)
    bench_sql(options.seconds)
    if options.geoquery:
        bench_geoquery(options.geoquery, options.seconds)


if __name__ == "__main__":
    main()
