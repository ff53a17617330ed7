"""Random damage: any bytes in the files of a run, any recipe, row and chat template, and faults of storage.

Everything is answered or refused in bounded time. Short in `make test`, about an hour with `make fuzz`, which draws new
examples.
"""

from __future__ import annotations

import os

import hypothesis

FACTOR = int(os.environ.get("FUZZ_FACTOR", "1"))
"""How many times the examples of `make test` to try."""


def examples(count: int) -> hypothesis.settings:
    """Return the settings of a property test with `count` examples in `make test`."""
    return hypothesis.settings(
        max_examples=count * FACTOR,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
    )
