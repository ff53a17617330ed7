"""One completion with all that a person needs to judge it, and how some of very many are drawn.

A chain's id names where it stands and what it says: a label is kept under the id, and a run that was rewound and
sampled again must not inherit the labels of other text.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """Of the score, before any weighting."""
    verifier: str
    detail: str

    @property
    def id(self) -> str:
        text = f"{self.problem_id}\0{self.prompt}\0{self.completion}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{self.source}-{self.step}-{self.group_number}-{self.rollout_number}-{digest}"

    def to_json(self) -> dict[str, Any]:
        names = ("source", "step", "group_number", "rollout_number", "problem_id", "prompt", "completion", "gold")
        values = {name: getattr(self, name) for name in (*names, "finish", "reward", "verifier", "detail")}
        return {"id": self.id, **values, "verdict": self.verdict.value, "parts": dict(self.parts)}


def groups_of(run: Run, source: Source) -> Iterator[tuple[int, list[ScoredGroup]]]:
    """(step, its groups), one step in memory at a time."""
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
        prompt=prompt_text(scored),
        completion=rollout.text,
        gold=problem.answer,
        finish=rollout.finish.value,
        verdict=score.verdict,
        reward=scored.rewards[number],
        parts=dict(score.parts),
        verifier=score.verifier,
        detail=score.detail,
    )


def prompt_text(scored: ScoredGroup) -> str:
    """The messages one below the other; their roles are named where there is more than one."""
    messages = scored.group.prompt.problem.messages
    if len(messages) == 1:
        return messages[0].content
    return "\n\n".join(f"[{message.role}]\n{message.content}" for message in messages)


class Reservoir(Generic[T]):
    """A uniform draw of at most `size` from a stream of unknown length (Vitter 1985, algorithm R)."""

    def __init__(self, size: int, seed: str) -> None:
        self.size = size
        self.num_offered = 0
        self.kept: list[tuple[int, T]] = []
        self._random = random.Random(seed)

    def offer(self, make: Callable[[], T]) -> None:
        """`make` is called only for what is drawn."""
        self.num_offered += 1
        if len(self.kept) < self.size:
            self.kept.append((self.num_offered, make()))
        elif self.size:
            place = self._random.randrange(self.num_offered)
            if place < self.size:
                self.kept[place] = (self.num_offered, make())

    def items(self) -> list[T]:
        """In the order of the stream."""
        return [item for _, item in sorted(self.kept, key=lambda pair: pair[0])]


def spread_evenly(total: int, available: Sequence[int]) -> list[int]:
    """Shares of `total`, as equal as what is available allows: the rare verdicts are what people should look at."""
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
