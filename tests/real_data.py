"""Rows of published data sets: 50 of each in tests/data, and the full sets where `GROUPWISE_DATA` has them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHIPPED = Path(__file__).parent / "data"
FULL = Path(os.environ.get("GROUPWISE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
needs_full_data = pytest.mark.skipif(not FULL.is_dir(), reason=f"no full data sets at {FULL}")


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def shipped_or_full(shipped: str, full: str) -> list[Any]:
    """Parameters of a test that runs on the shipped rows always, and on the full file where it is present."""
    return [
        pytest.param(SHIPPED / shipped, id="50 rows"),
        pytest.param(FULL / full, id="all rows", marks=needs_full_data),
    ]
