"""Generated problems: the same seed gives the same problems, and the splits share none.

Distinct problems are drawn one after another from one stream. The first `num_held_out` are held out and the next
`num_train` are for training, so a recipe that asks for more training problems keeps its held-out ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from groupwise.config.build import ConfigError
from groupwise.tasks.rows import Row, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Problem

T = TypeVar("T")
Draw = Callable[[random.Random], tuple[Hashable, T] | None]
"""One attempt: the key that makes the problem distinct, and the problem; None where the attempt failed."""


@dataclass(frozen=True)
class GeneratedTask:
    """Options and splits of every generated task."""

    num_train: int = 2000
    num_held_out: int = 200
    seed: int = 0
    """Seed of the problems; independent of the run's seed."""

    fix: ClassVar[str] = "change the task's options"
    """How a recipe gets more distinct problems; ends an error message."""

    def __post_init__(self) -> None:
        check_counts(self.num_train, self.num_held_out)

    @property
    def num_possible(self) -> int:
        """An upper bound on the number of distinct problems."""
        raise NotImplementedError

    def draw(self, generator: random.Random) -> tuple[Hashable, Problem] | None:
        """Make one attempt, as in `Draw`."""
        raise NotImplementedError

    def problems(self, split: Split) -> Sequence[Problem]:
        return generate_split(
            self.draw,
            split,
            seed=self.seed,
            num_train=self.num_train,
            num_held_out=self.num_held_out,
            num_possible=self.num_possible,
            fix=self.fix,
        )


class TaggedInteger:
    """Problems whose answer is an integer in `<answer>`."""

    verifier: ClassVar[str]

    def bare_problem(self, row: Row) -> Problem:
        """Read a row {answer} with an integer."""
        answer = row.whole_number("answer")
        return Problem(stable_id(self.verifier.partition("/")[0], answer), (), str(answer))

    def demonstrate(self, problem: Problem) -> str:
        return f"<answer>{problem.answer}</answer>"


def generate_split(
    draw: Draw[T], split: Split, *, seed: int, num_train: int, num_held_out: int, num_possible: int, fix: str
) -> list[T]:
    """Return the problems of one split. `num_possible` bounds the number of distinct ones from above; `fix` tells how a
    recipe gets more of them."""
    total = num_train + num_held_out
    generator = random.Random(f"groupwise/{seed}")
    wanted = num_held_out if split == "held_out" else total
    max_draws = 10_000 + 200 * wanted
    seen: set[Hashable] = set()
    found: list[T] = []
    if total <= num_possible:
        for _ in range(max_draws):
            if len(found) == wanted:
                break
            drawn = draw(generator)
            if drawn is not None and drawn[0] not in seen:
                seen.add(drawn[0])
                found.append(drawn[1])
    if len(found) < wanted:
        limit = f"there are at most {num_possible}" if total > num_possible else f"{max_draws} draws gave {len(found)}"
        raise ConfigError(
            f"task.options: num_train + num_held_out = {num_train} + {num_held_out} = {total}, but {limit} distinct "
            f"problems; lower the counts, or {fix}"
        )
    return found if split == "held_out" else found[num_held_out:]


def check_counts(num_train: int, num_held_out: int) -> None:
    """Refuse a split without problems."""
    for name, count in (("num_train", num_train), ("num_held_out", num_held_out)):
        if count < 1:
            raise ConfigError(f"{name} = {count}: expected at least 1")
