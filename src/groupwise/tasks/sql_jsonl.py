"""Questions on SQLite databases, from a .jsonl file with gold queries (Spider, BIRD, GeoQuery, your own)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from groupwise.base.outside import local_path
from groupwise.config.build import Count, require
from groupwise.rewards.sql.score_sql import EmptyGoldError, GoldError, gold_results, score_sql
from groupwise.rewards.sql.sqlite_reader import DatabaseError, QueryLimits, schema_text
from groupwise.tasks.rows import Row, SkippedRow, load_rows, plain_text, read_distinct, stable_id
from groupwise.tasks.task import DataTask, ShareBelowOne
from groupwise.types import Message, Problem, Score

MAX_EMPTY_SHARE = 0.1
"""Published sets have some gold queries that return nothing (GeoQuery: 21 of 595)."""


@dataclass(frozen=True)
class SqlJsonl(DataTask):
    """Questions to answer with an SQL query that must return the rows of the gold query (SQLite).

    Reward: `correct` 1.0 when the rows are the same on every database, else `executes` for a query that runs. Order
    counts where the gold query has an ORDER BY. Questions whose gold query returns no rows on any database cannot be
    checked; they and repeated questions are skipped and counted in the log.
    """

    split_by: Literal["question", "query"] = "question"
    """What held_out_share keeps apart. `question`: a held-out question may have the same gold query as a training
    question in other words. `query`: questions whose gold queries differ only in values are in the same split."""
    database: str = ""
    """SQLite file for rows that name none, relative to the current folder."""
    question_key: str = "question"
    """Column of the question."""
    gold_key: str = "gold"
    """Column of the gold query."""
    database_key: str = "database"
    """Column of the SQLite file or of a list of files, relative to the folder of the .jsonl file. Several files have
    the same tables with other content, to catch queries that return the right rows by chance."""
    schema_key: str | None = None
    """Column of the text that describes the tables; without it, the CREATE statements of the (first) database."""
    max_schema_chars: Count = 8000
    """Maximum length of the CREATE statements in a prompt; the rest is dropped, and a comment says so."""
    instruction: str = "Answer with one SQLite query in a ```sql block."
    """Follows the question in the prompt."""
    executes_reward: ShareBelowOne = 0.1
    """Reward for a wrong query that runs; 0 turns it off."""
    allow_bare: bool = True
    """Accept a whole completion that begins with SELECT or WITH and has neither a block nor an `<answer>`."""
    max_operations: Count = 5_000_000
    """Maximum operations of SQLite's virtual machine per query and database; a query that needs more is wrong. Raise it
    for large databases."""
    max_rows: Count = 10_000
    """Maximum rows of a result; a query that returns more is wrong."""

    verifier: ClassVar[str] = "sql/2"

    def check(self) -> None:
        super().check()
        require(
            self.split_by != "query" or self.held_out_share > 0,
            'split_by = "query": only works with held_out_share; set that, or remove split_by',
        )

    @property
    def _limits(self) -> QueryLimits:
        return QueryLimits(max_operations=self.max_operations, max_rows=self.max_rows)

    def split_key(self, problem: Problem) -> str:
        return query_form(problem.answer) if self.split_by == "query" else problem.id

    def load(self, source: str, hub_split: str, key: str, is_held_out: bool) -> list[Problem]:
        rows = load_rows(source, hub_split, key=key)
        path = local_path(source)
        folder = path.parent if os.path.exists(path) else Path()
        return read_distinct(source, rows, lambda row: self._problem(row, folder), MAX_EMPTY_SHARE)

    def _problem(self, row: Row, folder: Path) -> Problem:
        question = row.text(self.question_key)
        try:
            gold, names, databases = self._verifiable(row, self.gold_key, self.database_key, folder)
        except EmptyGoldError:
            fix = f"check that the databases ({self.database_key!r} or task.options.database) belong to the queries"
            raise SkippedRow(f"{self.gold_key!r} returns no rows", fix) from None
        try:
            if self.schema_key is None:
                schema = schema_text(databases[0], self.max_schema_chars)
            else:
                schema = row.text(self.schema_key)
        except DatabaseError as error:
            raise row.error(str(error)) from None
        prompt = f"{schema.strip()}\n\n{question.strip()}\n{self.instruction}".strip()
        identifier = stable_id("sql", plain_text(question), names)
        return Problem(identifier, (Message("user", prompt),), gold, {"databases": databases})

    def _verifiable(self, row: Row, gold_key: str, database_key: str, folder: Path) -> tuple[str, list[str], list[str]]:
        """Return the gold query, its databases as the row names them, and their paths, after running the query."""
        gold = row.text(gold_key)
        own = row.values.get(database_key)
        if own is not None:
            names = _names(row, database_key, own)
            databases = [str((folder / local_path(name)).absolute()) for name in names]
        elif self.database:
            names, databases = [], [str(local_path(self.database).absolute())]
        else:
            raise row.error(f"no key {database_key!r}; name a SQLite file there, or one for all rows in `database`")
        try:
            gold_results(gold, databases, self._limits)
        except EmptyGoldError:
            raise
        except GoldError as error:
            raise row.error(str(error)) from None
        return gold, names, databases

    def score(self, problem: Problem, completion: str) -> Score:
        return score_sql(
            problem.answer,
            problem.meta["databases"],
            completion,
            self.verifier,
            executes_reward=self.executes_reward,
            allow_bare=self.allow_bare,
            limits=self._limits,
        )

    def bare_problem(self, row: Row) -> Problem:
        """Read a row {gold, database}: paths are relative to the current folder; the default is the option."""
        try:
            gold, names, databases = self._verifiable(row, "gold", "database", Path())
        except EmptyGoldError as error:
            raise row.error(f"'gold' cannot be checked: {error}; drop the row, or add a database with rows") from None
        return Problem(stable_id("sql", gold, names), (), gold, {"databases": databases})

    def gold_completion(self, problem: Problem) -> str:
        return f"```sql\n{problem.answer.strip()}\n```"

    demonstrate = gold_completion


def query_form(query: str) -> str:
    """Return the query with its values replaced, so that questions about different states compare equal."""
    return _VALUE.sub("?", plain_text(query.lower()).rstrip("; "))


_VALUE = re.compile(r"""'[^']*'|"[^"]*"|\b\d+(\.\d+)?\b""")


def _names(row: Row, key: str, value: Any) -> list[str]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise row.error(f"{key!r} is {value!r:.60}, expected the path of a SQLite file or a list of paths")
    if len(set(names)) < len(names):
        raise row.error(f"{key!r} names a file twice: {value!r:.60}")
    return names
