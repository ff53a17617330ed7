"""The place of this process among the ranks that `torchrun` started, as it says in the environment.

Contract: an environment that cannot be meant is a `ConfigError`, before anything waits for other ranks. Does not import
torch, so that commands can look first.
"""

from __future__ import annotations

import os
import re

from groupwise.config.build import ConfigError, Within, require, shown

FIX = "start the ranks with torchrun, which sets it, or unset RANK and WORLD_SIZE"


def launched_ranks() -> tuple[int, int]:
    """Return (rank, number of ranks); (0, 1) without a launcher."""
    size = launch_number("WORLD_SIZE", 1, "[1, 1e6]")
    rank = launch_number("RANK", 0, f"[0, {size - 1}]")
    if size > 1:
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        require(not missing, f"WORLD_SIZE = {size}, but there is no {' and no '.join(missing)}; {FIX}")
        launch_number("MASTER_PORT", 0, "[1, 65535]")
    return rank, size


def launch_number(name: str, default: int, within: str) -> int:
    """Return a number of the environment."""
    text = os.environ.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ConfigError(f"{name} = {shown(text)}: expected a whole number; {FIX}")
    Within(within, FIX).check(name, int(text))
    return int(text)
