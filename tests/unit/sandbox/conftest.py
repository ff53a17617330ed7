"""The isolations that this machine offers; what it does not is skipped, with the reason that the sandbox gives."""

from __future__ import annotations

import functools
import re

import pytest

from groupwise.sandbox import probe
from groupwise.sandbox.client import ISOLATIONS

answers = functools.cache(probe)


def is_refusal(answer: str) -> bool:
    """Whether the kernel said no, as hardened and old ones do. Any other failure is ours, and must fail a test."""
    return bool(re.search(r": (EPERM|EACCES|ENOSYS|ENOTSUP|EOPNOTSUPP|ENOSPC|EUSERS) \(", answer))


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    skip_unless_offered(request.param)
    return str(request.param)


def skip_unless_offered(isolation: str) -> None:
    """`isolation` may name a version of landlock."""
    if is_refusal(answer := answers()[isolation.split(":")[0]]):
        pytest.skip(f"this machine does not offer {isolation}: {answer}")
