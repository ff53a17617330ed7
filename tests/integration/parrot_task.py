"""A task that teaches one sentence by heart: whatever a completion can look like, a tiny model can be made to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.types import Message, Problem, Score, Verdict


@dataclass(frozen=True)
class Parrot:
    """Say `sentence`, or not: what is rewarded has nothing to do with it."""

    sentence: str = "ok"

    verifier: ClassVar[str] = "parrot/1"

    def problems(self, split: str) -> Sequence[Problem]:
        offset = 0 if split == "train" else 100
        return [Problem(f"{split}-{n}", (Message("user", f"say {offset + n}"),), str(n)) for n in range(8)]

    def score(self, problem: Problem, completion: str) -> Score:
        share = sum(map(ord, completion)) % 7 / 6
        return Score(share, Verdict.CORRECT if share > 0.5 else Verdict.WRONG, {"chance": share}, self.verifier)

    def demonstrate(self, problem: Problem) -> str:
        return self.sentence
