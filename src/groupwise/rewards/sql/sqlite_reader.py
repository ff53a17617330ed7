"""Untrusted queries on a SQLite file: they can read a bounded amount of its tables, and nothing else.

The restrictions, in the order in which they apply:

- the text: length, NUL and lone surrogates;
- SQLite's own limits on expressions, compound selects, arguments, parameters, attached files and sizes of values;
- an authorizer for four actions (select, read, function, recursive), the file's own tables and `FUNCTIONS`;
- functions of dates that refuse the current time and the machine's time zone, whatever a query makes them from;
- a budget of virtual-machine operations, so that the same query always ends the same way on the same SQLite. LIKE,
  instr, replace and trim, whose built-in forms can take more than linear time in one operation, are replaced by linear
  ones that draw on the same budget. A CPU limit far above the budget is for queries with expensive single operations;
- a memory limit for all of SQLite in this process, which also stops queries that explode while being prepared (views
  and common table expressions are copied wherever they are named); temporary tables stay in that memory;
- limits on rows and bytes of the result.

The file is opened read-only and immutable: no locks, no journal, no write. Connections are kept per process and thread
and never used across a fork. For a hard deadline, run this in a killable process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sqlite3
import threading
import time
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = tuple[Any, ...]

MAX_QUERY_CHARS = 10_000
MAX_VALUE_BYTES = 1_000_000
"""Maximum size of one string, blob or table row."""
MAX_MEMORY_BYTES = 96 * 2**20
"""Memory of all SQLite connections of this process together. It can only be lowered."""
MAX_CONNECTIONS = 16
"""Open files per thread; the least recently used one is closed. Each may cache 2 MB of pages."""
OPERATIONS_PER_LOOK = 1_000
"""Interval between checks of the budget; a query may exceed it by this many operations."""
OPERATIONS_OF_A_CALL = 20
"""Cost of a call of a replaced function, plus one operation per CHARS_PER_OPERATION characters."""
CHARS_PER_OPERATION = 10
MAX_TRIM_CHARS = 100
MAX_LIKE_CHARS = 1_000

FUNCTIONS = frozenset(
    (
        *("count", "sum", "total", "avg", "min", "max", "group_concat", "string_agg"),
        *("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead"),
        *("first_value", "last_value", "nth_value"),
        *("abs", "round", "ceil", "ceiling", "floor", "trunc", "sign", "mod", "pow", "power", "sqrt", "exp", "ln"),
        *("log", "log10", "log2", "pi", "degrees", "radians", "sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
        *("coalesce", "ifnull", "nullif", "iif", "if", "likely", "unlikely", "likelihood", "typeof"),
        *("length", "octet_length", "lower", "upper", "substr", "substring", "trim", "ltrim", "rtrim", "instr"),
        *("replace", "like", "hex", "quote", "unicode", "char", "concat", "concat_ws"),
        *("date", "time", "datetime", "julianday", "strftime", "unixepoch", "timediff"),
        *("json_extract", "json_array_length", "json_type", "json_valid", "->", "->>"),
    )
)
"""Functions that a query may call. Excluded: functions that access files, load code, are random, read the clock,
describe the engine, or turn little into much (printf, zeroblob, json_group_array), and GLOB."""

_DATE_FUNCTIONS = ("date", "time", "datetime", "julianday", "strftime", "unixepoch", "timediff")
_CLOCK_WORDS = frozenset(("now", "localtime", "utc"))
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4 * MAX_QUERY_CHARS,  # in bytes
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 250,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 32,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: MAX_LIKE_CHARS,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_BROKEN = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_BUSY")
_ACTIONS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
_INTERNAL = ("sqlite_", "pragma_")
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class QueryError(Exception):
    """The query cannot be run, or needs too much."""


class DatabaseError(Exception):
    """The file cannot be read as a database."""


@dataclass(frozen=True, slots=True)
class QueryLimits:
    max_operations: int = 5_000_000
    """Operations of SQLite's virtual machine; a plain query on a few hundred rows takes a few thousand."""
    max_rows: int = 10_000
    max_bytes: int = 1_000_000
    """Size of all values of the result together; a number counts as 8."""
    max_cpu_s: float = 2.0
    """A safety net: ten times the time of `max_operations` plain operations."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    rows: tuple[Row, ...]
    num_columns: int


Signature = tuple[int, int, int]
"""Inode, size and time of change of a file, to detect that it was replaced."""


def file_signature(path: str) -> Signature:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise DatabaseError(f"{path}: cannot be read: {error}") from None
    return status.st_ino, status.st_size, status.st_mtime_ns


def run_query(path: str, query: str, limits: QueryLimits) -> QueryResult:
    """Return all rows of a query; whatever it is, raise only `QueryError` or `DatabaseError`."""
    _check_text(query)
    return _reader(path).run(query, limits)


def schema_text(path: str, max_chars: int) -> str:
    """Return the CREATE statements of the file's tables and views, with a comment on those that do not fit."""
    statements = _reader(path).statements
    kept: list[str] = []
    for statement in statements:
        if sum(map(len, kept)) + len(statement) > max_chars:
            break
        kept.append(f"{statement};")
    if len(kept) < len(statements):
        kept.append(f"-- {len(statements) - len(kept)} more tables are not shown")
    return "\n".join(kept)


def _check_text(query: str) -> None:
    if len(query) > MAX_QUERY_CHARS:
        raise QueryError(f"longer than {MAX_QUERY_CHARS} characters")
    if "\0" in query:
        raise QueryError("contains a NUL character")
    try:
        query.encode()
    except UnicodeEncodeError:
        raise QueryError("contains half a surrogate pair") from None


class _Open(threading.local):
    """The connections of one thread of one process."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.readers: OrderedDict[str, _Reader] = OrderedDict()
        self.inherited: list[object] = []


_open = _Open()


def _reader(path: str) -> _Reader:
    if _open.process_id != os.getpid():
        # After a fork the parent's connections are neither used nor closed here: they are the parent's.
        _open.inherited.append(_open.readers)
        _open.process_id, _open.readers = os.getpid(), OrderedDict()
    signature = file_signature(path)
    reader = _open.readers.pop(path, None)
    if reader is not None and reader.signature != signature:
        reader.close()
        reader = None
    while len(_open.readers) >= MAX_CONNECTIONS:
        _open.readers.popitem(last=False)[1].close()
    _open.readers[path] = reader = reader or _Reader(path, signature)
    return reader


class _Reader:
    def __init__(self, path: str, signature: Signature) -> None:
        self.path, self.signature = path, signature
        self._operations_left = 0
        self._cpu_deadline_s = 0.0
        self._end = ""
        uri = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro&immutable=1"
        try:
            # No statement cache: a fresh statement counts its operations from zero, so budgets are reproducible.
            self.connection = sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=0)
        except sqlite3.Error as error:
            raise DatabaseError(f"{path}: cannot be opened: {error}") from None
        self.dates = sqlite3.connect(":memory:")  # has the functions that are replaced
        self.dates.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        try:
            self.tables, self.statements = self._prepare()
        except (sqlite3.Error, MemoryError) as error:
            self.close()
            raise DatabaseError(f"{path}: not a SQLite database: {error}") from None

    def close(self) -> None:
        self.connection.close()
        self.dates.close()

    def _prepare(self) -> tuple[frozenset[str], tuple[str, ...]]:
        connection = self.connection
        # Some data sets contain text in other encodings, which must not end the query.
        connection.text_factory = functools.partial(str, encoding="utf-8", errors="surrogateescape")
        connection.execute(f"PRAGMA hard_heap_limit = {MAX_MEMORY_BYTES}").fetchall()
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA query_only = ON")
        found = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') AND substr(name, 1, 7) <> 'sqlite_'"
        ).fetchall()
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        functions: list[tuple[str, int, Any]] = [("like", 2, self._like), ("like", 3, self._like)]
        functions += [("instr", 2, self._instr), ("replace", 3, self._replace)]
        strips = {"trim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}
        functions += [(name, 2, functools.partial(self._trim, strip)) for name, strip in strips.items()]
        functions += [(name, -1, functools.partial(self._date, name)) for name in _DATE_FUNCTIONS]
        for name, num_arguments, function in functions:
            connection.create_function(name, num_arguments, function, deterministic=True)
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self._progress, OPERATIONS_PER_LOOK)
        return frozenset(str(name).lower() for name, _ in found), tuple(sql for _, sql in found if sql)

    def run(self, query: str, limits: QueryLimits) -> QueryResult:
        self._operations_left = limits.max_operations
        self._cpu_deadline_s = time.thread_time() + limits.max_cpu_s
        self._end = ""
        try:
            with contextlib.closing(self.connection.execute(query)) as cursor:
                return _fetch(cursor, limits)
        except MemoryError:
            raise QueryError("needs too much memory") from None
        except sqlite3.Warning as error:  # several statements, on some versions of Python
            raise QueryError(str(error)) from None
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(_BROKEN) and "NOMEM" not in name:
                raise DatabaseError(f"{self.path}: {error} ({name})") from None
            raise QueryError(self._end or str(error)) from None

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action in _ACTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            name = (first or "").lower()
            # Without a column it may be a common table expression, whose size alone can be read.
            is_known = name in self.tables or (not second and not name.startswith(_INTERNAL))
            return self._allow(is_known, f"table {first} may not be read")
        if action == sqlite3.SQLITE_FUNCTION:
            return self._allow((second or "").lower() in FUNCTIONS, f"function {second} is not allowed")
        return self._allow(False, "only reading is allowed")

    def _allow(self, is_allowed: bool, otherwise: str) -> int:
        if is_allowed:
            return sqlite3.SQLITE_OK
        self._end = self._end or otherwise
        return sqlite3.SQLITE_DENY

    def _progress(self) -> int:
        self._operations_left -= OPERATIONS_PER_LOOK
        if self._operations_left < 0:
            self._end = "takes too many operations"
        elif time.thread_time() > self._cpu_deadline_s:
            self._end = "takes too long"
        return 1 if self._end else 0

    def _charge(self, num_chars: int) -> None:
        """Charge before the work is done, so that one call never does more than the whole budget allows."""
        self._operations_left -= OPERATIONS_OF_A_CALL + num_chars // CHARS_PER_OPERATION
        if self._operations_left < 0:
            raise self._refusal("takes too many operations")

    def _refusal(self, reason: str) -> QueryError:
        """Keep the reason: SQLite reports that a function raised, but not what."""
        self._end = reason
        return QueryError(reason)

    def _like(self, pattern: Any, value: Any, escape: Any = None) -> int | None:
        if pattern is None or value is None:
            return None
        if isinstance(pattern, bytes) or isinstance(value, bytes):
            return 0
        pattern, mark = _as_text(pattern), None if escape is None else _as_text(escape)
        if len(pattern) > MAX_LIKE_CHARS or (mark is not None and len(mark) != 1):
            raise self._refusal("LIKE with a pattern too long or an ESCAPE that is not one character")
        text, segments = _lower(_as_text(value)), _like_segments(pattern, mark)
        # Only segments with `_` are compared at every position; plain ones are found in linear time.
        self._charge(len(text) * (1 + sum(segment.length for segment in segments if segment.has_gaps)))
        return int(_matches(segments, text))

    def _instr(self, value: Any, part: Any) -> int | None:
        if value is None or part is None:
            return None
        if not (isinstance(value, bytes) and isinstance(part, bytes)):
            value, part = _as_text(value), _as_text(part)
        self._charge(len(value) + len(part))
        return int(value.find(part)) + 1

    def _replace(self, value: Any, old: Any, new: Any) -> Any:
        if value is None or old is None:
            return None
        if _as_text(old) == "":
            return value
        if new is None:
            return None
        text, old, new = _as_text(value), _as_text(old), _as_text(new)
        self._charge(len(text) + len(old))
        if len(text) + text.count(old) * (len(new) - len(old)) > MAX_VALUE_BYTES:
            raise self._refusal("makes a string that is too big")
        return text.replace(old, new)

    def _trim(self, strip: Callable[[str, str], str], value: Any, characters: Any) -> str | None:
        if value is None or characters is None:
            return None
        value, characters = _as_text(value), _as_text(characters)
        if len(characters) > MAX_TRIM_CHARS:
            raise self._refusal(f"trims more than {MAX_TRIM_CHARS} different characters")
        self._charge(len(value))
        return strip(value, characters) if characters else value

    def _date(self, name: str, *values: Any) -> Any:
        texts = [_as_text(value).lower() for value in values]
        times = [text.partition("\0")[0] for text in (texts[1:] if name == "strftime" else texts)]
        # `subsec` in the place of a time is the current one.
        if not times or times[0] in ("subsec", "subsecond") or not _CLOCK_WORDS.isdisjoint(times):
            raise self._refusal(f"{name}({', '.join(times)}) depends on the day or the machine")
        self._charge(sum(map(len, texts)))
        try:
            return self.dates.execute(f"SELECT {name}({', '.join('?' * len(values))})", values).fetchone()[0]
        except sqlite3.Error as error:
            raise self._refusal(str(error)) from None


def _fetch(cursor: sqlite3.Cursor, limits: QueryLimits) -> QueryResult:
    if cursor.description is None:
        raise QueryError("no query")
    rows: list[Row] = []
    num_bytes = 0
    for row in cursor:
        rows.append(row)
        num_bytes += sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row)
        if len(rows) > limits.max_rows:
            raise QueryError(f"returns more than {limits.max_rows} rows")
        if num_bytes > limits.max_bytes:
            raise QueryError(f"returns more than {limits.max_bytes} bytes")
    return QueryResult(tuple(rows), len(cursor.description))


def _as_text(value: Any) -> str:
    """Convert a value to text as SQLite does."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            return "Inf" if value > 0 else "-Inf"
        # Adding zero removes the sign of -0.0.
        mantissa, mark, exponent = format(value + 0.0, ".15g").partition("e")
        return f"{mantissa}{'' if '.' in mantissa else '.0'}{mark}{exponent}"
    return str(value)


def _lower(text: str) -> str:
    """Lower only ASCII letters, as LIKE does."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


class _Segment(NamedTuple):
    """A fixed number of characters between two `%` of a LIKE pattern."""

    length: int
    pattern: re.Pattern[str]
    has_gaps: bool
    """It contains `_`."""


@functools.lru_cache(maxsize=1024)
def _like_segments(pattern: str, escape: str | None) -> tuple[_Segment, ...]:
    segments: list[list[str]] = [[]]  # "" stands for `_`
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if not escaped:
                return ()  # an escape of nothing matches nothing
            segments[-1].append(_lower(escaped))
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append("" if character == "_" else _lower(character))
    return tuple(map(_segment, segments))


def _segment(characters: list[str]) -> _Segment:
    pattern = "".join(re.escape(character) or "." for character in characters)
    return _Segment(len(characters), re.compile(pattern, re.DOTALL), "" in characters)


def _matches(segments: tuple[_Segment, ...], text: str) -> bool:
    """Match segments leftmost first, which is always best between two `%`."""
    if not segments:
        return False
    first, last = segments[0], segments[-1]
    if len(segments) == 1:
        return first.pattern.fullmatch(text) is not None
    end = len(text) - last.length
    if end < first.length or not first.pattern.match(text) or not last.pattern.match(text, end):
        return False
    position = first.length
    for segment in segments[1:-1]:
        found = segment.pattern.search(text, position, end)
        if found is None:
            return False
        position = found.end()
    return True
