"""The pages of results: their tables say what the files beside them say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_tables_are_made_of_the_files() -> None:
    script = ROOT / "benchmarks" / "results_tables.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
