"""A task whose rewards differ from the first step on, whatever the model: a random tiny model has signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.types import Message, Problem, Score, Verdict


@dataclass(frozen=True)
class EvenLetters:
    """Write many even bytes: the reward is their share, and more than half is correct."""

    num_train: int = 12
    num_held_out: int = 8
    fail: str = ""
    """How the verifier fails on completions of odd length: raise, nan, hang, kill, or not at all."""

    verifier: ClassVar[str] = "even-letters/1"

    def problems(self, split: str) -> Sequence[Problem]:
        offset, count = (0, self.num_train) if split == "train" else (1000, self.num_held_out)
        return [
            Problem(f"{split}-{n}", (Message("user", f"even {offset + n}"),), str(n), {"level": n % 3})
            for n in range(count)
        ]

    def score(self, problem: Problem, completion: str) -> Score:
        data = completion.encode(errors="replace")
        if self.fail and len(data) % 2:
            if self.fail == "raise":
                raise KeyError("the verifier broke")
            if self.fail == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            while self.fail == "hang":
                pass
            return Score(float("nan"), Verdict.WRONG)
        share = sum(byte % 2 == 0 for byte in data) / max(len(data), 1)
        parts = {"even": share, "tag": 0.1 if data[:1] < b"\x80" else 0.0}
        return Score(sum(parts.values()), Verdict.CORRECT if share > 0.5 else Verdict.WRONG, parts, self.verifier)

    def demonstrate(self, problem: Problem) -> str:
        return "bdfh"
