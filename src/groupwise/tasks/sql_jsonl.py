"""Questions on SQLite databases, from a .jsonl file with the gold query of each (Spider, BIRD, GeoQuery, one's own)."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from groupwise.config.build import ConfigError
from groupwise.rewards.sql.score_sql import EmptyGoldError, GoldError, gold_results, score_sql
from groupwise.rewards.sql.sqlite_reader import DatabaseError, QueryLimits, schema_text
from groupwise.tasks.rows import Row, load_rows, load_split, plain_text, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem, Score

logger = logging.getLogger(__name__)

MAX_EMPTY_SHARE = 0.1
"""Published sets have some gold queries that find nothing (GeoQuery: 21 of 595); more than this is a broken file."""
MAX_SKIPPED = 4
"""As many are a blemish in a small file too."""


@dataclass(frozen=True)
class SqlJsonl:
    """Questions to answer with an SQL query, which must give the rows of the gold query (SQLite).

    Reward: `correct` 1.0 when the rows are the same on every database of the row, else `executes` for a query that
    runs. Order counts where the gold query has an ORDER BY. Rows whose gold query gives no rows on any database cannot
    be checked, and rows that repeat a question are no new ones: both are left out and counted in the log.
    """

    train: str = ""
    """A .jsonl path or hub name to train on; empty to score rows that come from elsewhere."""
    held_out: str | None = None
    """The same for held-out problems; or set held_out_share."""
    held_out_share: float = 0.0
    """Share of `train` to hold out, chosen by a hash: adding rows moves no other row."""
    split_by: Literal["question", "query"] = "question"
    """What held_out_share keeps apart. `question`: what is held out may be answered by a query of training, asked for
    in other words. `query`: questions whose gold queries are the same, but for values, are on one side."""
    database: str = ""
    """SQLite file of the rows that name none, relative to the current folder."""
    question_key: str = "question"
    """Column of the question."""
    gold_key: str = "gold"
    """Column of the gold query."""
    database_key: str = "database"
    """Column of the SQLite file, or of a list of them: the same tables with other content, so that a query which only
    happens to give the right rows on one is wrong on another. Relative to the folder of the .jsonl file."""
    schema_key: str | None = None
    """Column of the text that tells the model of the tables; else the CREATE statements of the (first) database."""
    max_schema_chars: int = 8000
    """Of the CREATE statements in a prompt; tables beyond are left out, and a comment says so."""
    instruction: str = "Answer with one SQLite query in a ```sql block."
    """Follows the question in the prompt."""
    executes_reward: float = 0.1
    """For a wrong query that runs; 0 switches it off."""
    allow_bare: bool = True
    """Take the whole completion where it begins with SELECT or WITH and has no block and no `<answer>`."""
    max_operations: int = 5_000_000
    """Of SQLite's virtual machine, for a query on one database; beyond, it is wrong. Raise it for large databases."""
    max_rows: int = 10_000
    """Of a result; beyond, the query is wrong."""

    verifier: ClassVar[str] = "sql/1"

    def __post_init__(self) -> None:
        if not 0.0 <= self.held_out_share < 1.0:
            raise ConfigError(f"held_out_share = {self.held_out_share}: expected a share of at least 0 and below 1")
        if self.held_out is not None and self.held_out_share:
            raise ConfigError("set either held_out (a file of its own) or held_out_share (as in 0.1), and not both")
        if self.split_by == "query" and not self.held_out_share:
            raise ConfigError(
                'split_by = "query": says how held_out_share splits train; set that, or leave split_by out'
            )
        if not 0.0 <= self.executes_reward < 1.0:
            raise ConfigError(f"executes_reward = {self.executes_reward}: expected at least 0 and below 1")
        for key in ("max_operations", "max_rows", "max_schema_chars"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} = {getattr(self, key)}: expected at least 1")

    @property
    def _limits(self) -> QueryLimits:
        return QueryLimits(max_operations=self.max_operations, max_rows=self.max_rows)

    def problems(self, split: Split) -> Sequence[Problem]:
        sides = (self.train, self.held_out, self.held_out_share)
        return load_split(self._load, split == "held_out", *sides, self._kind)

    def _kind(self, problem: Problem) -> str:
        return query_form(problem.answer) if self.split_by == "query" else problem.id

    def _load(self, source: str, hub_split: str, key: str) -> list[Problem]:
        rows = load_rows(source, hub_split, key=key)
        path = Path(source).expanduser()
        folder = path.parent if path.exists() else Path()
        problems: dict[str, Problem] = {}
        num_repeated, empty = 0, []
        for row in rows:
            try:
                problem = self._problem(row, folder)
            except EmptyGoldError:
                empty.append(row)
                continue
            num_repeated += problem.id in problems
            problems.setdefault(problem.id, problem)
        if len(empty) > max(MAX_SKIPPED, MAX_EMPTY_SHARE * len(rows)):
            raise empty[0].error(
                f"{self.gold_key!r} gives no rows, and so in {len(empty)} of {len(rows)} rows; "
                f"check that the databases ({self.database_key!r} or task.options.database) belong to the queries"
            )
        if empty or num_repeated:
            logger.warning(
                "%s: skipped %d rows whose gold query gives no rows and %d that repeat a question",
                *(source, len(empty), num_repeated),
            )
        return list(problems.values())

    def _problem(self, row: Row, folder: Path) -> Problem:
        question = row.text(self.question_key)
        gold, names, databases = self._verifiable(row, self.gold_key, self.database_key, folder)
        if self.schema_key is not None:
            schema = row.text(self.schema_key)
        else:
            schema = _schema_of(row, databases[0], self.max_schema_chars)
        prompt = f"{schema.strip()}\n\n{question.strip()}\n{self.instruction}".strip()
        identifier = stable_id("sql", plain_text(question), names)
        return Problem(identifier, (Message("user", prompt),), gold, {"databases": databases})

    def _verifiable(self, row: Row, gold_key: str, database_key: str, folder: Path) -> tuple[str, list[str], list[str]]:
        """The gold query, its databases as the row names them, and their paths; the query was run on all of them."""
        gold = row.text(gold_key)
        own = row.values.get(database_key)
        if own is not None:
            names = _names(row, database_key, own)
            databases = [str((folder / Path(name).expanduser()).absolute()) for name in names]
        elif self.database:
            names, databases = [], [str(Path(self.database).expanduser().absolute())]
        else:
            raise row.error(f"no key {database_key!r}; name a SQLite file there, or for all rows in `database`")
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
        """From `gold` and `database` (a path or a list of them, relative to the current folder; else the option)."""
        try:
            gold, names, databases = self._verifiable(row, "gold", "database", Path())
        except EmptyGoldError as error:
            raise row.error(f"'gold' cannot be checked: {error}; drop the row, or add a database with rows") from None
        return Problem(stable_id("sql", gold, names), (), gold, {"databases": databases})

    def gold_completion(self, problem: Problem) -> str:
        return f"```sql\n{problem.answer.strip()}\n```"

    def demonstrate(self, problem: Problem) -> str:
        """The gold query, as the instruction asks for it."""
        return self.gold_completion(problem)


def query_form(query: str) -> str:
    """Without its values: what two questions about different states have in common."""
    return _VALUE.sub("?", plain_text(query.lower()).rstrip("; "))


_VALUE = re.compile(r"""'[^']*'|"[^"]*"|\b\d+(\.\d+)?\b""")


def _names(row: Row, key: str, value: Any) -> list[str]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise row.error(f"{key!r} is {value!r:.60}, expected the path of a SQLite file or a list of paths")
    if len(set(names)) < len(names):
        raise row.error(f"{key!r} names a file twice: {value!r:.60}")
    return names


def _schema_of(row: Row, database: str, max_chars: int) -> str:
    try:
        return schema_text(database, max_chars)
    except DatabaseError as error:
        raise row.error(str(error)) from None
