"""math-verify and sympy, for what `latex_compare` cannot settle: is the difference of two expressions zero?

It is asked only about trees that our own parser has read and whose values at several points agree, so nothing that is
large, and nothing that sympy would carry out for the model (a sum, an integral, a limit), gets here.

Model text is never evaluated as code, and never gets here either: sympy objects are built from the tree. The parsers of
math-verify are not used. `ExprExtractionConfig` hands text to sympy's `parse_expr`, which is `eval`; and
`LatexExtractionConfig`, a grammar, still passes the text of each number through `sympify`, which is `eval` as well.

Two expressions are the same when math-verify says so and they agree to 40 digits: on its own math-verify takes a
difference that is small for none. Its time limits are off, since signals work in the main thread alone and do not stop
a big-integer power: whoever calls this runs it in a process that can be killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy  # type: ignore[import-untyped]
from math_verify import verify  # type: ignore[import-untyped]

from groupwise.rewards.math.latex import Node
from groupwise.rewards.math.latex_values import POSITIVE_POINTS, variable_at

NUM_DIGITS = 40

# Said once per process by math-verify when its limits are off, which is what we want.
logging.getLogger("math_verify.grader").setLevel(logging.ERROR)


def is_same_by_algebra(gold: Node, answer: Node) -> bool:
    """May take long, and raises what sympy raises: MemoryError or RecursionError on what is hostile enough."""
    ours, theirs = _gold_expression(gold), to_sympy(answer)
    if not all(_agrees_at(ours, theirs, point) for point in POSITIVE_POINTS):
        return False
    return bool(verify(ours, theirs, timeout_seconds=None, raise_on_error=True))


def _agrees_at(ours: Any, theirs: Any, point: int) -> bool:
    values = []
    for expression in (ours, theirs):
        names = {symbol: _rational(symbol.name, point) for symbol in expression.free_symbols}
        values.append(sympy.N(expression.subs(names), 2 * NUM_DIGITS))
    if not all(value.is_number for value in values):
        return True  # an unknown function has no value; math-verify decides alone
    size = max(abs(values[0]), abs(values[1]))
    return bool(abs(values[0] - values[1]) <= size * sympy.Float(10) ** -NUM_DIGITS)


def _rational(name: str, point: int) -> Any:
    value = variable_at(name, point)
    assert isinstance(value, Fraction)  # the positive points are
    return sympy.Rational(value.numerator, value.denominator)


@lru_cache(maxsize=1024)
def _gold_expression(gold: Node) -> Any:
    return to_sympy(gold)


def to_sympy(node: Node) -> Any:
    """The expression that a scalar tree means, with real variables as in math-verify."""
    if node.kind == "number":
        assert node.value is not None
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if node.kind == "variable":
        return sympy.Symbol(node.name, real=True)
    if node.kind == "constant":
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}[node.name]
    if node.kind == "infinity":
        return sympy.oo
    args = [to_sympy(arg) for arg in node.args]
    if node.kind == "function":
        return _FUNCTIONS[node.name](*args)
    if node.kind == "application":
        return sympy.Function(node.name)(*args)
    return _OPERATIONS[node.kind](*args)


def _root(radicand: Any, index: Any) -> Any:
    if index.is_Integer and index.is_odd and radicand.is_negative:
        return -sympy.root(-radicand, index)  # as in `latex_values`
    return sympy.root(radicand, index)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": sympy.Add,
    "product": sympy.Mul,
    "negative": lambda value: -value,
    "reciprocal": lambda value: 1 / value,
    "power": sympy.Pow,
    "root": _root,
    "absolute": sympy.Abs,
    "factorial": sympy.factorial,
    "binomial": sympy.binomial,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(sympy, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")},
    **{"arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan},
    **{"log": sympy.log, "ln": sympy.log, "exp": sympy.exp},
}
