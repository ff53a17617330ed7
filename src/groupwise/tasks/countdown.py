"""Countdown: reach a target with the given numbers, each used exactly once; generated or read from data."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Annotated, ClassVar, Literal

from groupwise.config.build import ConfigError, CountOrZero, Within, require
from groupwise.rewards.expression import score_countdown
from groupwise.tasks.rows import Row, load_rows, read_distinct, share_of, stable_id
from groupwise.tasks.task import GeneratedTask, Split
from groupwise.types import Message, Problem, Score

Number = Annotated[int, Within("[1, 1e9]")]


@dataclass(frozen=True)
class Countdown(GeneratedTask):
    """Combine numbers with + - * / to reach a target; generated, solvable by construction, or from a data set.

    Reward: 1.0 for the target with each number used once; 0.8 to 0.3 depending on the distance to the target; 0.1 for
    any other expression; 0.0 without `<answer>` or without an expression in it (see `groupwise.rewards.expression`).
    """

    min_numbers: Annotated[int, Within("[2, 4]")] = 3
    """Numbers in the smallest puzzle; each count up to max_numbers is equally likely."""
    max_numbers: Annotated[int, Within("[2, 4]")] = 4
    min_number: Number = 1
    """Lowest number in a puzzle."""
    max_number: Number = 99
    """Highest number in a puzzle."""
    min_target: Number = 10
    max_target: Number = 100
    num_train: CountOrZero = 2000
    """Number of puzzles to generate, or maximum number to take from a `train` source (0: all)."""
    num_held_out: CountOrZero = 200
    """The same for held-out puzzles (0: all of a `held_out` source)."""
    train: str | None = None
    """A .jsonl path or hub name of rows {nums, target}, instead of generated puzzles."""
    held_out: str | None = None
    """The same for held-out puzzles. Without it, num_held_out rows of `train` are held out, chosen by hash."""
    style: Literal["chat", "terse"] = "chat"
    """`terse` is a prompt of a few characters, for tiny models."""
    think: bool = True
    """Ask for, and demonstrate, reasoning in `<think>` before the answer."""

    verifier: ClassVar[str] = "countdown/1"
    fix: ClassVar[str] = "widen the range of the numbers or of the targets"

    def check(self) -> None:
        require(self.num_train > 0 or self.train is not None, "num_train = 0: must be at least 1 without `train`")
        require(
            self.num_held_out > 0 or self.held_out is not None,
            "num_held_out = 0: must be at least 1 without `held_out`",
        )
        for name in ("numbers", "number", "target"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            require(low <= high, f"min_{name} = {low}, max_{name} = {high}: the first must not be larger")

    def problems(self, split: Split) -> Sequence[Problem]:
        if split == "held_out":
            return self._held_out()
        drawn = super().problems("train") if self.train is None else self._load(self.train, "train", "train")
        held_out = {problem.id for problem in self._held_out()} if self.train or self.held_out else set()
        return [problem for problem in drawn if problem.id not in held_out][: self.num_train or None]

    def _held_out(self) -> Sequence[Problem]:
        if self.held_out is not None:
            return self._load(self.held_out, "test", "held_out")[: self.num_held_out or None]
        if self.train is None:
            return super().problems("held_out")
        problems = self._load(self.train, "train", "train")
        return sorted(problems, key=lambda problem: share_of(problem.id))[: self.num_held_out]

    @property
    def num_possible(self) -> int:
        num_values = self.max_number - self.min_number + 1
        counts = range(self.min_numbers, self.max_numbers + 1)
        num_puzzles = sum(math.comb(num_values + count - 1, count) for count in counts)
        return (self.max_target - self.min_target + 1) * num_puzzles

    def draw(self, generator: random.Random) -> tuple[Hashable, Problem] | None:
        count = generator.randint(self.min_numbers, self.max_numbers)
        nums = [generator.randint(self.min_number, self.max_number) for _ in range(count)]
        values = list(nums)
        while len(values) > 1:
            generator.shuffle(values)
            a, b = values.pop(), values.pop()
            results = [a + b, a * b]
            if a > b:
                results.append(a - b)
            if a % b == 0:
                results.append(a // b)
            values.append(generator.choice(results))
        if not self.min_target <= values[0] <= self.max_target:
            return None
        return (*sorted(nums), values[0]), self._problem(nums, values[0])

    def _problem(self, nums: Sequence[int], target: int) -> Problem:
        shown = " ".join(str(number) for number in nums)
        if self.style == "terse":
            prompt = f"numbers: {shown} target: {target}"
        else:
            reasoning = "Reason step by step in <think> </think>, then answer" if self.think else "Answer"
            prompt = (
                f"Using the numbers [{shown.replace(' ', ', ')}], write an expression that equals {target}. "
                "Use + - * / and parentheses, and use each number exactly once. "
                f"{reasoning} with the expression alone in <answer> </answer>, "
                "for example <answer>(1 + 2) / 3</answer>."
            )
        # The order of the numbers is left out of the id: the same puzzle must not be on both sides of a split.
        identifier = stable_id("countdown", sorted(nums), target)
        meta = {"nums": list(nums), "target": target, "level": len(nums)}
        return Problem(identifier, (Message("user", prompt),), str(target), meta)

    def _load(self, source: str, split: str, key: str) -> list[Problem]:
        """Return the distinct puzzles in the order of the data; the published data set repeats some."""
        rows = load_rows(source, split, key=f"task.options.{key}")
        return read_distinct(source, rows, lambda row: self._problem(*_read(row)))

    def score(self, problem: Problem, completion: str) -> Score:
        return score_countdown(problem.meta["nums"], problem.meta["target"], completion, self.verifier)

    def bare_problem(self, row: Row) -> Problem:
        """Read a row {numbers, target}; `nums`, as in the published data set, is accepted for `numbers`."""
        return self._problem(*_read(row, "nums" if "nums" in row.values else "numbers"))

    def gold_completion(self, problem: Problem) -> str | None:
        solution = solve(problem.meta["nums"], problem.meta["target"])
        return None if solution is None else f"<answer>{solution.expression}</answer>"

    def demonstrate(self, problem: Problem) -> str:
        solution = solve(problem.meta["nums"], problem.meta["target"])
        if solution is None:
            raise ConfigError(f"problem {problem.id} ({problem.messages[-1].content!r}) has no solution to demonstrate")
        reasoning = f"<think>{'; '.join(solution.steps)}</think>" if self.think else ""
        return f"{reasoning}<answer>{solution.expression}</answer>"


def _read(row: Row, key: str = "nums") -> tuple[list[int], int]:
    nums, target = row.get(key), row.get("target")
    if not isinstance(nums, list) or not 2 <= len(nums) <= 6 or not all(_is_number(number) for number in nums):
        raise row.error(f"{key!r} is {str(nums)[:60]}, expected 2 to 6 integers from 0 to 10^9")
    if not _is_number(target):
        raise row.error(f"'target' is {str(target)[:60]}, expected an integer from 0 to 10^9")
    return nums, target


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= 10**9


@dataclass(frozen=True, slots=True)
class Solution:
    expression: str
    """ "(44+19)+35": every inner operation is in parentheses."""
    steps: tuple[str, ...]
    """One operation each: ("44+19=63", "63+35=98")."""


@dataclass(frozen=True, slots=True)
class _Term:
    value: Fraction
    expression: str

    @property
    def inner(self) -> str:
        return self.expression if self.expression.isdecimal() else f"({self.expression})"


def solve(nums: Sequence[int], target: int) -> Solution | None:
    """Search all ways to combine the numbers in pairs; return a solution, or None if there is none.

    Solutions whose steps are all positive integers are tried first, since they are the ones worth imitating. Each
    further number multiplies the work by about fifty.
    """
    terms = [_Term(Fraction(number), str(number)) for number in nums]
    return _search(terms, Fraction(target), True, set()) or _search(terms, Fraction(target), False, set())


def _search(terms: list[_Term], target: Fraction, is_natural: bool, dead: set[tuple[Fraction, ...]]) -> Solution | None:
    if len(terms) == 1:
        return Solution(terms[0].expression, ()) if terms[0].value == target else None
    state = tuple(sorted(term.value for term in terms))
    if state in dead:  # these values, reached in another order, had no solution
        return None
    for i, j in combinations(range(len(terms)), 2):
        others = [term for position, term in enumerate(terms) if position not in (i, j)]
        for operator, a, b, value in _operations(terms[i], terms[j], is_natural):
            combined = _Term(value, f"{a.inner}{operator}{b.inner}")
            found = _search([combined, *others], target, is_natural, dead)
            if found is not None:
                return Solution(found.expression, (f"{a.value}{operator}{b.value}={value}", *found.steps))
    dead.add(state)
    return None


def _operations(a: _Term, b: _Term, is_natural: bool) -> Iterator[tuple[str, _Term, _Term, Fraction]]:
    yield "+", a, b, a.value + b.value
    for first, second in ((a, b), (b, a)):
        if not is_natural or first.value > second.value:
            yield "-", first, second, first.value - second.value
    yield "*", a, b, a.value * b.value
    for first, second in ((a, b), (b, a)):
        if second.value != 0 and (not is_natural or (first.value / second.value).denominator == 1):
            yield "/", first, second, first.value / second.value
