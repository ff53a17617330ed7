"""Equality of two `latex` trees, by shape and by their values at a few points.

Shapes are compared part by part; two scalars in them are

- different when they differ by more than `REJECT_TOLERANCE` (relative) at a positive point;
- the same when both are rational and exactly equal at every real point (an identity of polynomials that fails holds at
  a random point with a chance of degree / 896);
- the same when they are irrational or complex and agree to `ACCEPT_TOLERANCE` at every point, including a negative and
  a complex one, no number in either text has more than `MAX_SAFE_DIGITS` digits and no part of either is as large or
  small: short integers do not equal a root or pi by chance. (With an absolute value, which is for real numbers, there
  is no complex point.)

`settle` decides everything between. A decimal is exact: 1.41421356 is not `\\sqrt2`.

A function of a family (`families`) that the gold answer lacks is an unfinished computation, and different.
Equations are the same when one is a constant times the other.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from groupwise.rewards.math.latex import Node
from groupwise.rewards.math.latex_tokens import LOGARITHMS, TRIGONOMETRIC
from groupwise.rewards.math.latex_values import (
    ALL_POINTS,
    POSITIVE_POINTS,
    TooLarge,
    Undefined,
    Value,
    as_complex,
    evaluate,
)

REJECT_TOLERANCE = 1e-6
ACCEPT_TOLERANCE = 1e-9
MAX_SAFE_DIGITS = 4
MAX_ITEMS = 64
REAL_POINTS = (*POSITIVE_POINTS, 3)

_UNORDERED = {"list": "items", "set": "items", "union": "parts"}
"""Kinds without an order: solutions listed without brackets are a set."""
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


class _Outcome(Enum):
    SAME = "same"
    DIFFERENT = "different"
    UNSURE = "unsure"


Settle = Callable[[Node, Node], bool]
"""Decides whether two expressions that agree at the points, perhaps by chance, are the same."""


def compare(gold: Node, answer: Node, settle: Settle) -> bool:
    if not families(answer) <= families(gold):
        return False
    try:
        return _Comparison(settle).is_same(gold, answer)
    except TooLarge:  # compared as text only, and the texts differ
        return False


def families(node: Node) -> frozenset[str]:
    """Return the families of functions in the tree beyond arithmetic and roots."""
    return frozenset(_family(part) for part in walk(node)) - {""}


def _family(node: Node) -> str:
    if node.kind == "function":
        return "trigonometric" if node.name in TRIGONOMETRIC else "logarithm" if node.name in LOGARITHMS else node.name
    return node.kind if node.kind in ("factorial", "binomial") else ""


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all its descendants."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.args)


@dataclass(frozen=True, slots=True)
class _Comparison:
    settle: Settle

    def is_same(self, gold: Node, answer: Node) -> bool:
        gold, answer = _unnamed(gold, answer), _unnamed(answer, gold)
        if gold.kind == answer.kind == "relation":
            return self.is_same_relation(gold, answer)
        gold, answer = _as_set(gold, answer), _as_set(answer, gold)
        if gold.is_scalar and answer.is_scalar:
            return self.is_same_scalar(gold, answer)
        if gold.kind in _UNORDERED and _UNORDERED[gold.kind] == _UNORDERED.get(answer.kind):
            if _are_names_dropped(gold, answer):
                return self.are_same(gold.args, answer.args)
            return self.are_same_in_any_order(gold.args, answer.args)
        return gold.kind == answer.kind and gold.name == answer.name and self.are_same(gold.args, answer.args)

    def are_same(self, gold: tuple[Node, ...], answer: tuple[Node, ...]) -> bool:
        return len(gold) == len(answer) and all(self.is_same(*pair) for pair in zip(gold, answer, strict=True))

    def are_same_in_any_order(self, gold: tuple[Node, ...], answer: tuple[Node, ...]) -> bool:
        if len(gold) != len(answer) or len(gold) > MAX_ITEMS:
            return False
        left = [(item, _hint(item)) for item in answer]
        for item in gold:
            hint = _hint(item)
            for position, (other, other_hint) in enumerate(left):
                if _may_be_near(hint, other_hint) and self.is_same(item, other):
                    del left[position]
                    break
            else:
                return False
        return True

    def is_same_scalar(self, gold: Node, answer: Node) -> bool:
        outcome = compare_scalars(gold, answer)
        return self.settle(gold, answer) if outcome is _Outcome.UNSURE else outcome is _Outcome.SAME

    def is_same_relation(self, gold: Node, answer: Node) -> bool:
        if gold.name[0] == ">":
            gold = _flipped(gold)
        if answer.name[0] == ">":
            answer = _flipped(answer)
        operators = gold.name.split()
        if gold.name != answer.name or len(operators) > 2:
            return False
        if len(operators) == 2 and "=" in operators:
            return False  # a = b = c is a chain, not an answer; compared as text only
        if len(operators) == 2 or not all(side.is_scalar for side in (*gold.args, *answer.args)):
            return self.are_same(gold.args, answer.args)
        return _has_same_zeros(_difference(gold), _difference(answer), is_signed=operators[0] in ("<", "<="))


def _are_names_dropped(gold: Node, answer: Node) -> bool:
    """Return whether only one answer has names, as `x = 1, y = 2` and `1, 2`, so that the order matters."""
    named = [[item.kind == "relation" and item.name == "=" for item in node.args] for node in (gold, answer)]
    full, bare = (gold, named[1]) if all(named[0]) else (answer, named[0])
    # x_1 and x_2 are two solutions for x.
    names = {item.args[0].name.partition("_")[0] or item.args[0] for item in full.args if item.kind == "relation"}
    return all(named[0]) != all(named[1]) and not any(bare) and len(names) > 1


def _unnamed(node: Node, other: Node) -> Node:
    """Reduce `x = 5` to its value, or a set of one to its member, where the other answer is a bare value."""
    if node.kind == "relation" and node.name == "=" and _is_quantity(node.args[0]):
        variable, value = node.args
        if other.kind != "relation":
            return value
        if other.name != "=" and not value.is_scalar and variable in other.args:
            return value  # x \in (1, 2) and 1 < x < 2
        if variable.name.endswith("()") and other.name == "=" and other.args[0].kind == "variable":
            return Node("relation", (other.args[0], value), name="=")  # f(x) = ... and y = ...
    if node.kind == "set" and len(node.args) == 1 and other.is_scalar:
        return node.args[0]
    return node


def _is_quantity(node: Node) -> bool:
    """Return whether a left side names one quantity: `x`, `AB`, `|AB|`, `V_1:V_2`, but not `xy`."""
    names = [part.name for part in walk(node) if part.kind not in ("product", "reciprocal", "absolute")]
    return node.kind == "variable" or all(name[:1].isupper() for name in names)


def _hint(node: Node) -> complex | None:
    """Return an approximate value that finds an item's partner without comparing all pairs."""
    if not node.is_scalar:
        return None
    try:
        return as_complex(evaluate(node, 0))
    except Undefined:
        return None


def _may_be_near(one: complex | None, other: complex | None) -> bool:
    if one is None or other is None or one == other:
        return True
    return abs(one - other) <= REJECT_TOLERANCE * max(abs(one), abs(other))


def compare_scalars(gold: Node, answer: Node) -> _Outcome:
    has_variables = any(node.kind == "variable" for tree in (gold, answer) for node in walk(tree))
    outcome, is_exact = _compare_at(gold, answer, REAL_POINTS if has_variables else (0,))
    if outcome is _Outcome.DIFFERENT or is_exact:
        return outcome
    long = [node for tree in (gold, answer) for node in walk(tree) if _num_digits(node) > MAX_SAFE_DIGITS]
    if long:
        return _Outcome.DIFFERENT if any("." in node.name for node in long) else _Outcome.UNSURE
    if _has_extremes(gold) or _has_extremes(answer):
        return _Outcome.UNSURE
    is_complex = has_variables and all(node.kind != "absolute" for tree in (gold, answer) for node in walk(tree))
    return _compare_at(gold, answer, ALL_POINTS)[0] if is_complex else outcome


def _has_extremes(tree: Node) -> bool:
    """Return whether a part could hide in the rounding of the rest, as in `\\pi + 10^{-9}`."""
    sizes = [abs(value) for value in (_value_or_none(part, 0) for part in walk(tree)) if value is not None]
    return any(not 10**-MAX_SAFE_DIGITS <= size <= 10**MAX_SAFE_DIGITS for size in sizes if size not in (0, math.inf))


def _num_digits(node: Node) -> int:
    return len(node.name.strip("0.")) if node.kind == "number" else 0


def _compare_at(gold: Node, answer: Node, points: tuple[int, ...]) -> tuple[_Outcome, bool]:
    """Return the outcome at these points, and whether all values were rational."""
    found, is_exact, num_defined = _Outcome.SAME, True, 0
    for point in points:
        values = [_value_or_none(gold, point), _value_or_none(answer, point)]
        if values == [None, None]:
            continue
        one, other = values
        if one is None or other is None:
            outcome = _Outcome.DIFFERENT
        else:
            num_defined += 1
            is_exact = is_exact and isinstance(one, Fraction) and isinstance(other, Fraction)
            outcome = _compare_values(one, other)
        if outcome is _Outcome.DIFFERENT and point not in POSITIVE_POINTS:
            outcome = _Outcome.UNSURE  # \ln x^2 and 2 \ln x: equal on the intended domain
        if outcome is _Outcome.DIFFERENT:
            return outcome, False
        if outcome is _Outcome.UNSURE:
            found = outcome
    return (found if num_defined else _Outcome.DIFFERENT), is_exact


def _value_or_none(node: Node, point: int) -> Value | None:
    try:
        return evaluate(node, point)
    except Undefined:
        return None


def _compare_values(one: Value, other: Value) -> _Outcome:
    if one == other:
        return _Outcome.SAME
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return _Outcome.DIFFERENT
    left, right = as_complex(one), as_complex(other)
    if cmath.isinf(left) or cmath.isinf(right):
        return _Outcome.DIFFERENT
    size, difference = max(abs(left), abs(right)), abs(left - right)
    if difference > REJECT_TOLERANCE * size:
        return _Outcome.DIFFERENT
    return _Outcome.SAME if difference <= ACCEPT_TOLERANCE * size else _Outcome.UNSURE


def _flipped(node: Node) -> Node:
    operators = [_FLIPPED[operator] for operator in reversed(node.name.split())]
    return Node("relation", node.args[::-1], name=" ".join(operators))


def _difference(relation: Node) -> Node:
    return Node("sum", (relation.args[0], Node("negative", (relation.args[1],))))


def _has_same_zeros(gold: Node, answer: Node, *, is_signed: bool) -> bool:
    """Return whether one is a constant times the other; a positive constant for an inequality."""
    ratios: list[Value] = []
    for point in REAL_POINTS:
        one, other = _value_or_none(gold, point), _value_or_none(answer, point)
        if one is None or other is None:
            continue
        if one == 0 or other == 0:
            return False
        is_rational = isinstance(one, Fraction) and isinstance(other, Fraction)
        ratios.append(one / other if is_rational else as_complex(one) / as_complex(other))
    if len(ratios) < 2 or any(_compare_values(ratios[0], ratio) is not _Outcome.SAME for ratio in ratios[1:]):
        return False
    is_rational = all(isinstance(ratio, Fraction) for ratio in ratios)
    is_long = any(_num_digits(node) > MAX_SAFE_DIGITS for tree in (gold, answer) for node in walk(tree))
    if not is_rational and (is_long or _has_extremes(gold) or _has_extremes(answer)):
        return False
    constant = as_complex(ratios[0])
    return not is_signed or (constant.real > 0 and abs(constant.imag) <= ACCEPT_TOLERANCE * constant.real)


_MINUS_INFINITY = Node("negative", (Node("infinity"),))


def _as_set(node: Node, other: Node) -> Node:
    """Convert `1 < x \\le 2` to an interval where the other answer is an interval or a union of them."""
    if other.kind not in ("tuple", "union"):
        return node
    if node.kind == "relation":
        return _interval(node) or node
    if node.kind == "list" and all(item.kind == "relation" for item in node.args):
        intervals = [_interval(item) for item in node.args]
        if all(interval is not None and interval.kind == "tuple" for interval in intervals):
            return Node("union", tuple(interval for interval in intervals if interval is not None))
    return node


def _is_end(node: Node) -> bool:
    return node.is_scalar and all(part.kind != "variable" for part in walk(node))


def _interval(relation: Node) -> Node | None:
    operators = relation.name.split()
    if len(operators) == 1 and relation.args[1].kind == "variable":
        relation = _flipped(relation)
    if len(operators) == 2 and operators[0][0] == ">":
        relation = _flipped(relation)
    operators = relation.name.split()
    if (
        len(operators) == 2
        and relation.args[1].kind in ("variable", "application")
        and operators[0][0] == operators[1][0] == "<"
    ):
        low, _, high = relation.args
        brackets = ("[" if operators[0] == "<=" else "(") + ("]" if operators[1] == "<=" else ")")
        return Node("tuple", (low, high), name=brackets) if _is_end(low) and _is_end(high) else None
    if len(operators) != 1 or relation.args[0].kind != "variable" or not _is_end(relation.args[1]):
        return None
    end = relation.args[1]
    if operators[0][0] == "<":
        return Node("tuple", (_MINUS_INFINITY, end), name="(" + ("]" if operators[0] == "<=" else ")"))
    if operators[0][0] == ">":
        return Node("tuple", (end, Node("infinity")), name=("[" if operators[0] == ">=" else "(") + ")")
    if operators[0] == "!=":
        below, above = (_MINUS_INFINITY, end), (end, Node("infinity"))
        return Node("union", (Node("tuple", below, name="()"), Node("tuple", above, name="()")))
    return None
