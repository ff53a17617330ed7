"""What faults of storage did to runs: a table of how many were tried and how many were held.

    python benchmarks/faults.py [--output benchmarks/results/DATE_faults_2-cores.md]

Each fault is a case of a test and is judged there. A damaged checkpoint is passed over and named, a damaged log is
refused and named, nothing waits, no run starts over unasked, and a run that was killed ends with the bits of one
that was not. Exit status 1 if a fault was not held. It takes about a minute and a half.
"""

from __future__ import annotations

import os
import platform
import sys

from corpora import run_corpora

KILLS = 40
CORPORA = {
    "files of the newest checkpoint": ("fuzz/test_storage.py::test_a_damaged_checkpoint_is_passed_over_and_named",),
    "a file of every checkpoint": ("fuzz/test_storage.py::test_a_run_without_any_checkpoint_is_not_begun_again",),
    "logs": ("fuzz/test_storage.py::test_a_damaged_log_is_refused_and_named",),
    "logs, before a kill and while the run goes on": (
        "integration/test_exact_resume.py::test_a_log_with_a_hole_is_refused_and_named_unless_accepted",
    ),
    "any bytes in any file": ("fuzz/test_storage.py::test_any_bytes_in_any_file_are_harmless_said_or_refused",),
    "recipe.toml, run.json, run.lock, tags.json": ("fuzz/test_storage.py::test_other_files_are_named_or_made_again",),
    "checkpoints by themselves": (
        "unit/models/test_checkpoint_damage.py::test_a_damaged_checkpoint_is_passed_over_and_reported",
        "unit/models/test_checkpoint_damage.py::test_a_manifest_that_makes_no_sense",
    ),
    "SIGKILL at a random moment": (
        "integration/test_exact_resume.py::test_random_sigkills_leave_no_run_that_cannot_resume",
    ),
}
"""Tests below tests. Each of their cases is one fault, and each kill."""
SIZES = {"test_random_sigkills_leave_no_run_that_cannot_resume": KILLS}


def page(seconds: float) -> str:
    system = f"{platform.system()} {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    return (
        f"`python benchmarks/faults.py`: {system}, user {os.geteuid()}; {seconds:.0f} s.\n\n"
        "Each fault is a case of a test and is judged there: deleted, emptied, truncated, one bit flipped, replaced\n"
        "by a folder or a FIFO, an older copy. Held: the file is named or was not needed, nothing waits, no run\n"
        "starts over unasked, and one that was killed ends with the bits of one that was not."
    )


def main() -> int:
    os.environ |= {"GROUPWISE_KILLS": str(KILLS), "FUZZ_FACTOR": "8"}
    return run_corpora(__doc__, "Faults of storage", page, CORPORA, sizes=SIZES)


if __name__ == "__main__":
    sys.exit(main())
