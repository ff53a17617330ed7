"""What became of input that cannot be used: a table of how much was tried and how much ended as promised.

    python benchmarks/bad_input.py [--output benchmarks/results/DATE_bad-input_2-cores.md]

Commands, recipes and rows that people get wrong, and random damage: to the files of runs that each reader reads, to
recipes, rows, chat templates and completions. Each is a case of a test and is judged there: an answer or one clear
error, no traceback, nothing that takes long, no verdict that a completion could buy. Exit status 1 if one was not so.
It takes about two minutes.
"""

from __future__ import annotations

import os
import platform
import sys

from corpora import run_corpora

FACTOR = 7
"""How many times the random examples of `make test`."""
CORPORA = {
    "commands, recipes and rows that people get wrong": ("unit/cli/test_bad_input.py::test_bad_input_is_refused",),
    "random damage to a run, read by six commands": ("fuzz/test_run_files.py::test_any_damage_is_answered_or_refused",),
    "random damage to a run, resumed": ("fuzz/test_run_files.py::test_a_damaged_run_is_resumed_or_refused",),
    "random recipes": ("fuzz/test_recipes.py::test_damaged_recipes_are_built_or_refused",),
    "random rows": ("fuzz/test_rows.py::test_damaged_rows_are_read_or_refused",),
    "random chat templates": ("fuzz/test_chat_templates.py::test_any_template_is_rendered_or_refused",),
    "random damage to right completions, all verifiers": (
        "fuzz/test_verdicts.py::test_damaged_gold_completions_are_judged",
        "fuzz/test_verdicts.py::test_damaged_programs_are_judged",
    ),
}
"""Tests below tests."""


def page(seconds: float) -> str:
    system = f"{platform.system()}, Python {platform.python_version()}"
    return (
        f"`python benchmarks/bad_input.py`: {system}; {seconds:.0f} s.\n\n"
        "Each is a case of a test and is judged there. Held: an answer or one clear error, no traceback, no reader\n"
        "that computes for more than 5 s, and no verdict that a completion could buy."
    )


def main() -> int:
    os.environ["FUZZ_FACTOR"] = str(FACTOR)
    return run_corpora(__doc__, "Bad input", page, CORPORA)


if __name__ == "__main__":
    sys.exit(main())
