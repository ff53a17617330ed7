"""Corpora whose cases are tests: runs them, and makes the table of how many were tried and how many were held."""

from __future__ import annotations

import argparse
import datetime
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from groupwise.workers import num_cores

ROOT = Path(__file__).resolve().parent.parent


class Record:
    """A pytest plugin that keeps how each test ended, and how many examples a property test was to try."""

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}
        self.sizes: dict[str, int] = {}

    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        for item in items:
            settings = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
            if settings is not None:
                self.sizes[item.name] = settings.max_examples

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.ends[report.nodeid] = report.outcome


def table(ends: Iterable[tuple[str, str]], name_of: Callable[[str], str], sizes: Mapping[str, int]) -> str:
    """Return the table of tests and their ends. What this machine does not offer was not tried.

    `sizes`: how many cases a test tries, by its name; one, where it is not there.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for test, end in ends:
        counts[name_of(test), end] += sizes.get(test.rpartition("::")[2], 1)
    lines = ["| corpus | tried | held |", "|---|---|---|"]
    for corpus in dict.fromkeys(name for name, _ in counts):
        held, failed = counts[corpus, "passed"], counts[corpus, "failed"]
        row = f"{held + failed} | {held}" if held + failed else "not offered by this machine | "
        lines.append(f"| {corpus} | {row} |")
    return "\n".join(lines)


def corpus_of(test: str, corpora: Mapping[str, Iterable[str]]) -> str:
    """Return the corpus of a case of a test."""
    function = test.removeprefix("tests/").partition("[")[0]
    return next(name for name, functions in corpora.items() if function in functions)


def run_corpora(
    description: str | None,
    title: str,
    page: Callable[[float], str],
    corpora: Mapping[str, Iterable[str]],
    name_of: Callable[[str], str] | None = None,
    sizes: dict[str, int] | None = None,
) -> int:
    """Run the tests of each corpus and print the table. Return the exit status.

    `page(seconds)` is what stands between the title and the table in a page of benchmarks/results. `name_of` names the
    row of a test, where that is not its corpus. `sizes`: how many cases a test tries, where that is neither one nor its
    number of examples.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the table as a page, too")
    options = parser.parse_args()
    output = options.output and options.output.resolve()
    os.chdir(ROOT)
    record, start = Record(), time.monotonic()
    paths = [f"tests/{function}" for functions in corpora.values() for function in functions]
    status = pytest.main(["-p", "no:cacheprovider", "-n0", "--no-header", "--tb=short", *paths], plugins=[record])
    found = table(record.ends.items(), name_of or (lambda test: corpus_of(test, corpora)), record.sizes | (sizes or {}))
    print(found)
    if output:
        heading = f"# {title}, {num_cores()} CPU cores, {datetime.date.today()}"
        output.write_text(f"{heading}\n\n{page(time.monotonic() - start)}\n\n{found}\n", encoding="utf-8")
    return int(status)
