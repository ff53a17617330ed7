"""Rows of data from a local file (.jsonl, or .json with a list) or from the Hugging Face hub.

A source is a path if it exists or cannot be a hub name (see base/hub). Anything else is a hub name, read with the
optional `datasets` package. Every mistake is a `ConfigError` that names the recipe's key, the file and the row (from 1:
the line of a .jsonl, the item of a .json, the row of a hub split). A bad row is never dropped silently: `read_distinct`
counts those that a published data set is known to have.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from groupwise.base.hub import hub_or_cache, is_hub_name
from groupwise.base.outside import MAX_DIGITS, file_lines, json_value, local_path, open_file
from groupwise.config.build import ConfigError, require, shown
from groupwise.types import Message, Problem

logger = logging.getLogger(__name__)

MAX_SKIPPED = 4
"""Published data sets have a few rows that cannot be checked; more, and more than a share of all rows, mean a broken
file."""


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class SkippedRow(Exception):
    """A row that cannot be checked. Its arguments: the reason, and what to change if there are many."""


@dataclass(frozen=True, slots=True)
class Row:
    values: Mapping[str, Any]
    where: str
    """Key, file and row for error messages: "task.options.train: data.jsonl, row 12"."""

    def error(self, why: str) -> ConfigError:
        return ConfigError(f"{self.where}: {why}")

    def get(self, key: str) -> Any:
        if key not in self.values:
            raise self.error(f"no key {key!r}; it has {', '.join(sorted(self.values)) or 'no keys'}")
        return self.values[key]

    def text(self, key: str, expected: str = "a string") -> str:
        """Return a string that is not blank."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(f"{key!r} is {_kind(value)}, expected {expected}")
        if not value.strip():
            raise self.error(f"{key!r} is empty")
        return value

    def messages(self, key: str) -> tuple[Message, ...]:
        """Return a conversation: a list of {"role", "content"}."""
        entries = self.get(key)
        if isinstance(entries, list) and entries and all(isinstance(entry, dict) for entry in entries):
            pairs = [(entry.get("role"), entry.get("content")) for entry in entries]
            if pairs[-1][1] and all(role and isinstance(role, str) and isinstance(text, str) for role, text in pairs):
                return tuple(Message(role, text) for role, text in pairs)
        raise self.error(f"{key!r} is {_kind(entries)}, but not one of messages with a role and a content")

    def answer(self, key: str) -> str:
        """Return a string that is not blank, or a number as text."""
        return str(self._cell(key))

    def level(self, key: str) -> str | int | float | None:
        """Return a difficulty: a number or a string that is not blank; None for null."""
        return None if self.get(key) is None else self._cell(key)

    def _cell(self, key: str) -> str | int | float:
        value = self.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return self.text(key, "a string or a number")
        if not abs(value) < 10**MAX_DIGITS:
            raise self.error(f"{key!r} is {shown(value)}, which is no number that can be compared")
        return value

    def whole_number(self, key: str) -> int:
        """Return an integer, also from a string."""
        text = self.answer(key)
        if not re.fullmatch(r"\s*[-+]?[0-9]{1,300}\s*", text):
            raise self.error(f"{key!r} is {text!r:.60}, expected an integer")
        return int(text)

    def optional(self, key: str) -> Any:
        """Return a value, or None where it is missing, null or empty."""
        return self.values.get(key) or None

    def optional_text(self, key: str) -> str:
        """Return a string, or "" where it is missing, null or empty."""
        return "" if self.optional(key) is None else self.text(key)


def as_row(values: Any, where: str) -> Row:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected an object, got {_kind(values)}")
    return Row(values, where)


def load_rows(source: str, split: str, name: str | None = None, *, key: str = "task.options.train") -> list[Row]:
    """Return all rows of `source` in order.

    `split` and `name` (the data set's configuration) apply to the hub only. `key` is the recipe's key for the source.
    """
    path, where = local_path(source), f"{key} = {source!r}"
    is_file = os.path.exists(path) or not is_hub_name(source)
    numbered = _read_file(path, where) if is_file else enumerate(_read_hub(source, split, name, where), start=1)
    rows = [as_row(values, f"{key}: {source}, row {number}") for number, values in numbered]
    require(bool(rows), f"{where}: no rows; give a source that has some")
    return rows


def read_distinct(
    source: str, rows: Sequence[Row], read: Callable[[Row], Problem | None], max_skipped_share: float = 0.0
) -> list[Problem]:
    """Return the problems of `rows` in order, each once; `read` returns None for a row that the options leave out.

    Repeated problems and rows for which `read` raises `SkippedRow` are counted in the log.
    """
    problems: dict[str, Problem] = {}
    skipped: list[tuple[Row, str, str]] = []
    num_repeated = 0
    for row in rows:
        try:
            problem = read(row)
        except SkippedRow as error:
            skipped.append((row, *error.args))
            continue
        if problem is not None and problems.setdefault(problem.id, problem) is not problem:
            num_repeated += 1
    if skipped:
        row, why, fix = skipped[0]
        if len(skipped) > max(MAX_SKIPPED, max_skipped_share * len(rows)):
            raise row.error(f"{why}, as in {len(skipped)} of {len(rows)} rows; {fix}")
        logger.warning("%s: skipped %d rows: %s", source, len(skipped), why)
    if num_repeated:
        logger.warning("%s: skipped %d rows that repeat a problem", source, num_repeated)
    return list(problems.values())


def stable_id(prefix: str, *parts: Any) -> str:
    """Return an id that depends on the content alone, not on the order of the data, the run or the machine."""
    content = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return f"{prefix}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def share_of(identifier: str) -> float:
    """Hash an id to a number in [0, 1), which decides its split whatever else is in the data."""
    return int.from_bytes(hashlib.sha256(identifier.encode()).digest()[:6], "big") / 2**48


def plain_text(text: str) -> str:
    """Collapse runs of white space: two prompts that differ only in spacing are the same problem."""
    return " ".join(text.split())


def _read_file(path: Path, where: str) -> Iterator[tuple[int, Any]]:
    with open_rows(path, where) as file:
        require(path.suffix in (".jsonl", ".json"), f"{where}: expected a .jsonl file, or a .json file with a list")
        if path.suffix == ".json":
            items = parse_json(file.read().removeprefix(codecs.BOM_UTF8), where)
            require(isinstance(items, list), f"{where}: expected a list of objects, got {_kind(items)}")
            yield from enumerate(items, start=1)
        else:
            for number, line in numbered_lines(file, where):
                yield number, parse_json(line, f"{where}, row {number}")


def open_rows(path: Path, where: str) -> BinaryIO:
    """Open a file of rows; error messages begin with `where`."""
    try:
        return open_file(path)
    except FileNotFoundError:
        raise ConfigError(f"{where}: no such file ({path.absolute()}); correct the path") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from None


def numbered_lines(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1."""
    try:
        for number, line in enumerate(file_lines(file), start=1):
            if line := line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").strip():
                yield number, line
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from None


def parse_json(content: bytes, where: str) -> Any:
    """Parse strict JSON: UTF-8, no NaN, no key twice, no half of a surrogate pair. Errors begin with `where`."""
    try:
        value = json_value(content.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object)
        if _SURROGATE.search(content):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        found = error.object[error.start]
        raise ConfigError(f"{where}: {found!r} is half of a character; write the whole character") from None
    except ValueError as error:  # also UnicodeDecodeError
        raise ConfigError(f"{where}: not valid JSON: {error}") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        ((key, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {shown(key)} is given twice")
    return table


def _read_hub(source: str, split: str, name: str | None, where: str) -> Iterable[Any]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise ConfigError(
            f"{where}: not a file here, and hub data sets need the datasets package: "
            "pip install 'groupwise[hub]', or give the path of a .jsonl file"
        ) from None
    try:
        with hub_or_cache(source):
            rows: Iterable[Any] = load_dataset(source, name, split=split)
    except (OSError, ValueError) as error:  # not found, no network, no such split or configuration
        raise ConfigError(f"{where}: could not load split {split!r} from the hub: {error}") from None
    return rows


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
