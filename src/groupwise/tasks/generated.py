"""Problems made by a program: the same seed gives the same problems, and the splits share none.

Distinct problems are drawn one after the other from one stream; the first `num_held_out` are held out and the next
`num_train` are for training. So the held-out problems do not change when a recipe asks for more training problems.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import TypeVar

from groupwise.config.build import ConfigError
from groupwise.tasks.task import Split

T = TypeVar("T")
Draw = Callable[[random.Random], tuple[Hashable, T] | None]
"""One try: what makes the problem distinct, and the problem; None where the draw came to nothing."""


def generate_split(
    draw: Draw[T], split: Split, *, seed: int, num_train: int, num_held_out: int, num_possible: int, fix: str
) -> list[T]:
    """The problems of one split. `num_possible` bounds from above how many distinct ones there are; `fix` says how a
    recipe gets more of them."""
    total = num_train + num_held_out
    if total > num_possible:
        raise ConfigError(
            f"task.options: num_train + num_held_out = {num_train} + {num_held_out} = {total}, "
            f"but there are at most {num_possible} distinct problems; lower the counts, or {fix}"
        )
    generator = random.Random(f"groupwise/{seed}")
    wanted = num_held_out if split == "held_out" else total
    max_draws = 10_000 + 200 * wanted
    seen: set[Hashable] = set()
    found: list[T] = []
    for _ in range(max_draws):
        if len(found) == wanted:
            break
        drawn = draw(generator)
        if drawn is not None and drawn[0] not in seen:
            seen.add(drawn[0])
            found.append(drawn[1])
    if len(found) < wanted:
        raise ConfigError(
            f"task.options: num_train + num_held_out = {num_train} + {num_held_out} = {total}, "
            f"but {max_draws} draws gave only {len(found)} distinct problems; lower the counts, or {fix}"
        )
    return found if split == "held_out" else found[num_held_out:]


def check_counts(num_train: int, num_held_out: int) -> None:
    """Refuse a split without problems."""
    for name, count in (("num_train", num_train), ("num_held_out", num_held_out)):
        if count < 1:
            raise ConfigError(f"{name} = {count}: expected at least 1")
