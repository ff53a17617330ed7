"""Scores of SQL: a query is right when it returns the same rows as the gold query on every database of the problem.

The answer is the last ```` ```sql ```` block, else the last block of any language, else the last `<answer>`, else
(`allow_bare`) the whole completion if it begins with SELECT or WITH. `sqlite_reader` runs it safely; a query that
cannot be run or needs too much is wrong, with a reason.

Two results are the same when

- they have as many columns, in the same order; names of columns do not matter;
- they have the same rows equally often. Order matters only where the gold query has its own ORDER BY outside brackets.
  Rows that are tied in it may come in any order; which tied rows a LIMIT keeps is the gold query's choice;
- values are equal: NULL is NULL; numbers by value (1 is 1.0), to a relative 1e-6 where either is a float; text and
  blobs exactly, and never equal to each other or to a number.

Reward: `correct` 1.0; or `executes` (default 0.1) for a wrong query that ran. A broken database and a gold query that
cannot be run or returns no rows on any database raise `GoldError`: none of that is the model's fault.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.rewards.extract import fenced_or_tagged
from groupwise.rewards.format import excerpt, score_correct
from groupwise.rewards.sql.sqlite_reader import (
    DatabaseError,
    QueryError,
    QueryLimits,
    QueryResult,
    Row,
    Signature,
    file_signature,
    run_query,
)
from groupwise.types import Score

DEFAULT_LIMITS = QueryLimits()
EXECUTES_REWARD = 0.1
RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-12
"""Rounding error of sums that should be zero."""
MAX_MATCHED_ROWS = 256
"""Maximum number of similar rows with several floats to match exactly; more are compared in sorted order."""

_LANGUAGES = frozenset(("sql", "sqlite", "sqlite3"))
_BARE = re.compile(r"\s*(?:SELECT|WITH)\b", re.IGNORECASE)
_SQL_TOKEN = re.compile(
    r"'(?:[^']|'')*+'|\"[^\"]*+\"|`[^`]*+`|\[[^\]]*+\]|(?P<comment>--[^\n]*+|/\*.*?(?:\*/|\Z))"
    r"|(?P<word>\w+)|(?P<open>\()|(?P<close>\))|(?P<end>;)|\S",
    re.DOTALL,
)


class GoldError(ValueError):
    """The problem's database or gold query is broken."""


class EmptyGoldError(GoldError):
    """The gold query returns no rows on any database, so a query for nothing would be right."""


@dataclass(frozen=True, slots=True)
class Gold:
    """The gold query's result on one database."""

    result: QueryResult
    blocks: tuple[tuple[int, int], ...]
    """Spans of rows within which the order is free."""


def score_sql(
    gold: str,
    databases: Sequence[str],
    completion: str,
    verifier: str,
    *,
    executes_reward: float = EXECUTES_REWARD,
    allow_bare: bool = True,
    limits: QueryLimits = DEFAULT_LIMITS,
) -> Score:
    query = find_query(completion, allow_bare=allow_bare)
    if query is None:
        return score_correct(None, verifier, "no query found", executes=0.0)
    golds = gold_results(gold, databases, limits)
    for database, expected in zip(databases, golds, strict=True):
        try:
            result = run_query(database, query, limits)
        except QueryError as error:
            return score_correct(False, verifier, f"{excerpt(str(error))}: {excerpt(query)}", executes=0.0)
        except DatabaseError as error:
            raise GoldError(str(error)) from None
        fault = difference(expected, result)
        if fault:
            return score_correct(False, verifier, f"{fault}: {excerpt(query)}", executes=executes_reward)
    return score_correct(True, verifier, excerpt(query), executes=0.0)


def find_query(completion: str, *, allow_bare: bool = True) -> str | None:
    """Return the query that a completion gives as its answer, unchanged; None where there is none."""
    query = fenced_or_tagged(completion, _LANGUAGES)
    if query is None and allow_bare and _BARE.match(completion):
        query = completion
    return query if query and query.strip() else None


def gold_results(gold: str, databases: Sequence[str], limits: QueryLimits = DEFAULT_LIMITS) -> list[Gold]:
    """Return the gold query's result on each database; run once per process, and again when a file changes.

    Raise `GoldError` if it cannot be run, and `EmptyGoldError` if it returns no rows on any of them.
    """
    if not databases:
        raise GoldError("no database to run the gold query on")
    try:
        golds = [_gold(database, file_signature(database), gold, limits) for database in databases]
    except DatabaseError as error:
        raise GoldError(str(error)) from None
    if not any(result.result.rows for result in golds):
        raise EmptyGoldError(f"the gold query returns no rows on {', '.join(databases)}: {excerpt(gold)}")
    return golds


@functools.lru_cache(maxsize=2048)
def _gold(database: str, _: Signature, gold: str, limits: QueryLimits) -> Gold:
    try:
        result = run_query(database, gold, limits)
    except QueryError as error:
        raise GoldError(f"the gold query cannot be run on {database}: {error}: {excerpt(gold)}") from None
    return Gold(result, _tie_blocks(database, gold, result, limits))


def _tie_blocks(database: str, gold: str, result: QueryResult, limits: QueryLimits) -> tuple[tuple[int, int], ...]:
    """Return the spans of rows that are tied in the gold query's ORDER BY.

    They are the shortest spans with the same rows when ties are broken in two opposite ways.
    """
    num_rows = len(result.rows)
    end = order_by_end(gold)
    if end is None or num_rows < 2:
        return ((0, num_rows),)
    results = []
    for direction in ("ASC", "DESC"):
        terms = "".join(f", {column} {direction}" for column in range(1, result.num_columns + 1))
        try:
            results.append(run_query(database, gold[:end] + terms + gold[end:], limits).rows)
        except QueryError:  # no room for more terms: treat the order as complete
            return tuple((position, position + 1) for position in range(num_rows))
    blocks, start = [], 0
    surplus: Counter[Row] = Counter()
    for position, (ascending, descending) in enumerate(zip(*results, strict=True)):
        for row, change in ((ascending, 1), (descending, -1)):
            surplus[row] += change
            if not surplus[row]:
                del surplus[row]
        if not surplus:
            blocks.append((start, position + 1))
            start = position + 1
    if start < num_rows:  # a LIMIT cuts through a tie
        blocks.append((start, num_rows))
    return tuple(blocks)


def order_by_end(query: str) -> int | None:
    """Return the end of the terms of the query's own ORDER BY; None without one outside brackets."""
    depth, previous, end, is_ordered = 0, "", 0, False
    for token in _SQL_TOKEN.finditer(query):
        if token["comment"]:
            continue
        word = (token["word"] or "").upper()
        if token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
        elif depth == 0:
            if token["end"] or (is_ordered and word == "LIMIT"):
                break
            is_ordered = is_ordered or (previous == "ORDER" and word == "BY")
        previous, end = word, token.end()
    return end if is_ordered else None


def difference(gold: Gold, result: QueryResult) -> str:
    """Describe how the result differs from the gold one; "" if it does not."""
    expected = gold.result
    if result.num_columns != expected.num_columns:
        return f"{result.num_columns} columns, not {expected.num_columns}"
    if len(result.rows) != len(expected.rows):
        return f"{len(result.rows)} rows, not {len(expected.rows)}"
    if result.rows == expected.rows:
        return ""
    for start, end in gold.blocks:
        if not has_same_rows(expected.rows[start:end], result.rows[start:end]):
            in_order = len(gold.blocks) > 1 and has_same_rows(expected.rows, result.rows)
            return "the right rows in another order" if in_order else "other rows"
    return ""


def has_same_rows(one: Sequence[Row], other: Sequence[Row]) -> bool:
    """Return whether two results have the same rows equally often, in any order."""
    if len(one) != len(other):
        return False
    if Counter(one) == Counter(other):  # 1 and 1.0 are equal and have the same hash
        return True
    ones, others = _by_shape(one), _by_shape(other)
    if ones.keys() != others.keys():
        return False
    return all(_has_same_numbers(numbers, others[shape]) for shape, numbers in ones.items())


def _by_shape(rows: Sequence[Row]) -> dict[Row, list[tuple[float, ...]]]:
    """Group the numbers of each row by its other values, since only numbers may differ slightly."""
    found = defaultdict(list)
    for row in rows:
        # A value that no result can contain marks a number.
        shape = tuple(_IS_NUMBER if isinstance(value, (int, float)) else value for value in row)
        found[shape].append(tuple(value for value in row if isinstance(value, (int, float))))
    return found


_IS_NUMBER = object()


def _has_same_numbers(one: list[tuple[float, ...]], other: list[tuple[float, ...]]) -> bool:
    if len(one) != len(other):
        return False
    one, other = sorted(one), sorted(other)
    if all(map(_is_close_row, one, other)):
        return True
    # Sorting decides for one column. With more, a rounding error in the first number can change the order of rows.
    return len(one[0]) > 1 and len(one) <= MAX_MATCHED_ROWS and _can_be_paired(one, other)


def _can_be_paired(one: list[tuple[float, ...]], other: list[tuple[float, ...]]) -> bool:
    """Find a perfect matching between close rows (Kuhn's augmenting paths; at most MAX_MATCHED_ROWS deep)."""
    close = [[right for right, row in enumerate(other) if _is_close_row(left_row, row)] for left_row in one]
    partner: dict[int, int] = {}

    def find_partner(left: int, seen: set[int]) -> bool:
        for right in close[left]:
            if right not in seen:
                seen.add(right)
                if right not in partner or find_partner(partner[right], seen):
                    partner[right] = left
                    return True
        return False

    return all(find_partner(left, set()) for left in range(len(one)))


def _is_close_row(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(map(_is_close, one, other))


def _is_close(one: float, other: float) -> bool:
    if one == other:
        return True
    if isinstance(one, int) and isinstance(other, int):
        return False
    return math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
