"""What the tests of verifiers share: one sandbox for all tests that run programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from groupwise.sandbox import Sandbox, SandboxUnavailable


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        try:
            made.run("")
        except SandboxUnavailable as error:
            pytest.skip(f"no isolation on this machine: {error}")
        yield made
