"""What the corpora of attacks in the tests did: a table of how many were tried and how many were held.

    python benchmarks/attacks.py [--output benchmarks/results/DATE_attacks_2-cores.md]

Each attack is a test and is judged there, from outside: nothing reached, changed or left behind, no reward, an answer
in time. Programs run in each isolation, and under the first version of landlock alone, as on an older kernel. Exit
status 1 if an attack was not held. It takes about a minute.
"""

from __future__ import annotations

import os
import platform
import re
import sys

from corpora import corpus_of, run_corpora

from groupwise.sandbox import probe

CORPORA = {
    "hostile programs": ("unit/sandbox/test_attacks.py::test_attack",),
    "programs that cheat their tests": (
        "unit/rewards/code/test_attacks.py::test_attacks_earn_nothing",
        "unit/rewards/code/test_attacks.py::test_nothing_passes_where_a_test_takes_nothing_for_right",
        "unit/rewards/code/test_attacks.py::test_whole_programs_that_lie",
        "unit/rewards/code/test_attacks.py::test_hostile_completions",
    ),
    "cheats on answers, over all tasks": ("unit/tasks/test_adversarial.py::test_cheats_are_never_correct",),
    "hostile answers, over all verifiers": ("unit/rewards/test_hostile.py::test_hostile_completions",),
    "hostile queries": (
        "unit/rewards/sql/test_sqlite_reader.py::test_forbidden",
        "unit/rewards/sql/test_sqlite_reader.py::test_what_depends_on_the_clock_or_on_chance_is_wrong",
        "unit/rewards/sql/test_sqlite_reader.py::test_bombs",
    ),
    "hostile JSON documents": (
        "unit/rewards/json/test_score_json.py::test_hostile_documents",
        "unit/rewards/json/test_score_json.py::test_hostile_completions",
        "unit/rewards/json/test_schema_errors.py::test_hostile_documents",
    ),
    "code that a recipe names": (
        "unit/config/test_named_code.py::test_functions_of_the_standard_library_are_refused",
        "unit/config/test_named_code.py::test_nothing_is_imported_from_a_run_directory",
        "unit/runs/test_sinks.py::test_what_is_no_sink_is_not_called",
    ),
    "hostile model folders": ("unit/models/test_hostile_folders.py::test_hostile_folders_are_refused_and_run_nothing",),
    "hostile chat templates": (
        "unit/models/test_templates.py::test_templates_that_are_refused_when_the_model_is_loaded",
        "unit/models/test_templates.py::test_messages_that_a_template_cannot_write",
    ),
}
"""Tests below tests; each of their cases is one attack."""


def name_of(test: str) -> str:
    """Return the corpus of a test, with its isolation where it has one."""
    corpus = corpus_of(test, CORPORA)
    isolation = re.search(r"\[(namespaces|landlock(:\d)?)", test) if corpus == "hostile programs" else None
    return f"{corpus}, {isolation[1]}" if isolation else corpus


def page(seconds: float) -> str:
    offers = probe()
    return (
        f"`python benchmarks/attacks.py`: {offers['system']}, landlock version {offers['landlock version']}, "
        f"Python {platform.python_version()}, user {os.geteuid()}; {seconds:.0f} s.\n\n"
        "Each attack is a case of a test and is judged there. Held: nothing reached, changed or left\n"
        "behind, no reward, an answer in time."
    )


def main() -> int:
    return run_corpora(__doc__, "Attacks", page, CORPORA, name_of)


if __name__ == "__main__":
    sys.exit(main())
