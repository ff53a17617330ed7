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
    """A pytest plugin that keeps how each test ended."""

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.ends[report.nodeid] = report.outcome


def table(ends: Iterable[tuple[str, str]], corpus_of: Callable[[str], str], sizes: Mapping[str, int]) -> str:
    """Return the table of tests and their ends. What this machine does not offer was not tried.

    `sizes`: how many cases a test tries, by its name; one, where it is not there.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for test, end in ends:
        counts[corpus_of(test), end] += sizes.get(test.rpartition("::")[2], 1)
    lines = ["| corpus | tried | held |", "|---|---|---|"]
    for corpus in dict.fromkeys(name for name, _ in counts):
        held, failed = counts[corpus, "passed"], counts[corpus, "failed"]
        row = f"{held + failed} | {held}" if held + failed else "not offered by this machine | "
        lines.append(f"| {corpus} | {row} |")
    return "\n".join(lines)


def run_corpora(
    description: str | None,
    title: str,
    page: Callable[[float], str],
    tests: Iterable[str],
    corpus_of: Callable[[str], str],
    sizes: Mapping[str, int],
) -> int:
    """Run the tests, below tests/, and print their table. Return the exit status.

    `page(seconds)` is what stands between the title and the table in a page of benchmarks/results.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the table as a page, too")
    options = parser.parse_args()
    output = options.output and options.output.resolve()
    os.chdir(ROOT)
    record, start = Record(), time.monotonic()
    paths = [f"tests/{test}" for test in tests]
    status = pytest.main(["-p", "no:cacheprovider", "-n0", "--no-header", "--tb=short", *paths], plugins=[record])
    found = table(record.ends.items(), corpus_of, sizes)
    print(found)
    if output:
        heading = f"# {title}, {num_cores()} CPU cores, {datetime.date.today()}"
        output.write_text(f"{heading}\n\n{page(time.monotonic() - start)}\n\n{found}\n", encoding="utf-8")
    return int(status)
