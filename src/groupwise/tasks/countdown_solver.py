"""An exact, exhaustive solver of Countdown puzzles: combine the numbers in pairs with + - * /, over `Fraction`.

Solutions whose steps are all positive integers are tried first, since they are the ones worth imitating. Each further
number multiplies the work by about fifty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations


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


def solve(nums: Sequence[int], target: int) -> Solution | None:
    """Return a solution, or None where there is none."""
    terms = [_Term(Fraction(number), str(number)) for number in nums]
    for is_natural in (True, False):
        found = _search(terms, Fraction(target), is_natural, set())
        if found is not None:
            expression, steps = found
            return Solution(expression, tuple(steps))
    return None


def _search(
    terms: list[_Term], target: Fraction, is_natural: bool, dead: set[tuple[Fraction, ...]]
) -> tuple[str, list[str]] | None:
    if len(terms) == 1:
        return (terms[0].expression, []) if terms[0].value == target else None
    state = tuple(sorted(term.value for term in terms))
    if state in dead:  # these values, reached in another order, had no solution
        return None
    for i, j in combinations(range(len(terms)), 2):
        others = [term for position, term in enumerate(terms) if position not in (i, j)]
        for operator, a, b, value in _operations(terms[i], terms[j], is_natural):
            combined = _Term(value, f"{_inner(a)}{operator}{_inner(b)}")
            found = _search([combined, *others], target, is_natural, dead)
            if found is not None:
                return found[0], [f"{a.value}{operator}{b.value}={value}", *found[1]]
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


def _inner(term: _Term) -> str:
    return term.expression if term.expression.isdecimal() else f"({term.expression})"
