"""For test_ray.py: a task whose verifier says where it ran, and functions that lose the host they run on."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.distributed.ray_cluster import Rank
from groupwise.types import Problem, Score
from tests.integration.toy_task import EvenLetters


@dataclass(frozen=True)
class SeenLetters(EvenLetters):
    """Even letters, slowly, with a file for each machine and process that scored some."""

    seen_in: str = ""
    seconds: float = 0.02

    def score(self, problem: Problem, completion: str) -> Score:
        if self.seen_in:
            (Path(self.seen_in) / f"{os.environ['NODE_LABEL']}-{os.getpid()}").touch()
        time.sleep(self.seconds)
        return super().score(problem, completion)


class BlindRank(Rank):
    """A task on a machine that does not share the disk."""

    def sees_token(self, folder: Path, name: str) -> bool:
        return False


def echo_or_lose_host(flag: str, item: Any) -> Any:
    """`once` ends the host of this worker, unless it was done before; `always` ends it each time."""
    if item == "once" and not Path(flag).exists():
        Path(flag).touch()
        end_host()
    if item == "always":
        end_host()
    if item == "raise":
        raise KeyError("as asked")
    while item == "hang":
        pass
    return [flag, item]


def end_host() -> None:
    # Worker, supervisor, host: the host is the parent of our parent.
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)
    time.sleep(60)
