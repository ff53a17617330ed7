"""Each decoder family of transformers is computed exactly, or refused as docs/reference/models.md says."""

from __future__ import annotations

import pytest
import transformers

from tests.families import NAMES
from tests.family_table import PAGE, measure, page, read_page

TEXT = PAGE.read_text()
ROWS = read_page(TEXT)


IS_THIS_VERSION = f"transformers {transformers.__version__}," in TEXT


@pytest.mark.skipif(not IS_THIS_VERSION, reason="the page is of another version of transformers")
def test_the_page_has_every_family_and_is_as_it_is_written() -> None:
    assert list(ROWS) == NAMES
    assert page(ROWS) == TEXT
    assert not any("WRONG" in text for row in ROWS.values() for text in row.values())
    assert sum(row["native engine"] == "equal" for row in ROWS.values()) >= 90


@pytest.mark.parametrize("name", NAMES)
def test_a_family(name: str) -> None:
    found = measure(name)
    assert not [column for column, text in found.items() if text.startswith("WRONG")]
    if IS_THIS_VERSION:
        assert found == ROWS[name]
