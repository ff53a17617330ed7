"""What all tests share: one thread per process, so that two workers do not fight over two cores; no process is left;
the same examples in each run, so that a commit passes or fails for ever. HYPOTHESIS_PROFILE=explore draws new ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import hypothesis
import pytest

# Before torch is imported anywhere, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

hypothesis.settings.register_profile("repeat", derandomize=True)
hypothesis.settings.register_profile("explore", print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"browser", "tab"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module", autouse=True)
def _no_sandbox_is_left() -> Iterator[None]:
    """Whoever scores code in the test's own process leaves a sandbox, and other tests count processes."""
    yield
    scoring = sys.modules.get("groupwise.rewards.code.score_code")
    if scoring is not None:
        scoring.close_shared_sandboxes()
