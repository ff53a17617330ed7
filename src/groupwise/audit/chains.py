"""Chains: completions with everything that a person needs to judge them, and how some of very many are sampled.

A chain's id names its place and its text. Labels are stored under the id, so a run that was rewound and sampled again
does not inherit the labels of other text.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

from groupwise.runs.reader import Run
from groupwise.types import ScoredGroup, Verdict

T = TypeVar("T")

Source = Literal["train", "held_out"]


@dataclass(frozen=True, slots=True)
class Chain:
    source: Source
    step: int
    group_number: int
    """Its line in the step's file, from 0."""
    rollout_number: int
    """Its place in the group, from 0."""
    problem_id: str
    prompt: str
    completion: str
    gold: str
    finish: str
    verdict: Verdict
    reward: float
    """What the learner saw."""
    parts: Mapping[str, float]
    """Parts of the score, before any weighting."""
    verifier: str
    detail: str

    @property
    def id(self) -> str:
        text = f"{self.problem_id}\0{self.prompt}\0{self.completion}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{self.source}-{self.step}-{self.group_number}-{self.rollout_number}-{digest}"

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, **asdict(self), "verdict": self.verdict.value}


def groups_of(run: Run, source: Source) -> Iterator[tuple[int, list[ScoredGroup]]]:
    """Yield (step, its groups) with one step in memory at a time."""
    steps = run.rollout_steps() if source == "train" else run.eval_rollout_steps()
    for step in steps:
        yield step, run.rollouts(step) if source == "train" else run.eval_rollouts(step)


def make_chain(source: Source, step: int, group_number: int, scored: ScoredGroup, number: int) -> Chain:
    problem, score, rollout = scored.group.prompt.problem, scored.scores[number], scored.group.rollouts[number]
    return Chain(
        source=source,
        step=step,
        group_number=group_number,
        rollout_number=number,
        problem_id=problem.id,
        prompt=problem.prompt_text,
        completion=rollout.text,
        gold=problem.answer,
        finish=rollout.finish.value,
        verdict=score.verdict,
        reward=scored.rewards[number],
        parts=dict(score.parts),
        verifier=score.verifier,
        detail=score.detail,
    )


class Reservoir(Generic[T]):
    """A uniform sample of at most `size` items of a stream of unknown length (Vitter 1985, algorithm R)."""

    def __init__(self, size: int, seed: str) -> None:
        self.size = size
        self.num_offered = 0
        self.kept: list[tuple[int, T]] = []
        self._random = random.Random(seed)

    def offer(self, make: Callable[[], T]) -> None:
        """Count an item; `make` is called only if it is sampled."""
        self.num_offered += 1
        if len(self.kept) < self.size:
            self.kept.append((self.num_offered, make()))
        elif self.size:
            place = self._random.randrange(self.num_offered)
            if place < self.size:
                self.kept[place] = (self.num_offered, make())

    def items(self) -> list[T]:
        """Return the sample in the order of the stream."""
        return [item for _, item in sorted(self.kept, key=lambda pair: pair[0])]


def spread_evenly(total: int, available: Sequence[int]) -> list[int]:
    """Split `total` as evenly as the available counts allow, so that people see the rare verdicts."""
    shares = [0] * len(available)
    left = min(total, sum(available))
    while left:
        open_places = [index for index, count in enumerate(available) if shares[index] < count]
        even = max(1, left // len(open_places))
        for index in open_places[:left]:
            extra = min(even, available[index] - shares[index])
            shares[index] += extra
            left -= extra
    return shares
