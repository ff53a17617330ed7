"""Equality by algebra (math-verify and sympy), for expressions that `latex_compare` cannot decide.

It is used only for trees from our own parser whose values at several points agree, so nothing large, and nothing that
sympy would evaluate for the model (a sum, an integral, a limit), arrives here.

Model text is never evaluated as code: sympy objects are built from the tree, not by math-verify's parsers.
`ExprExtractionConfig` passes text to sympy's `parse_expr`, which is `eval`, and `LatexExtractionConfig` passes the text
of each number to `sympify`, which is `eval` as well.

Two expressions are equal when math-verify says so and they agree to `NUM_DIGITS`, since math-verify alone accepts small
differences. Its time limits are off: signals only work in the main thread and do not stop a big-integer power. Run this
in a killable process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy  # type: ignore[import-untyped]
from math_verify import verify  # type: ignore[import-untyped]
from sympy.core.function import AppliedUndef  # type: ignore[import-untyped]

from groupwise.rewards.math.latex import Node
from groupwise.rewards.math.latex_compare import walk
from groupwise.rewards.math.latex_values import POSITIVE_POINTS, variable_at

NUM_DIGITS = 2500
"""More than between the largest and the smallest number of `latex_values`, 2^4096 and 2^-4096."""

MAX_NODES = 40  # to simplify a larger answer could take longer than the deadline; it is not the same

# math-verify warns once per process when its limits are off.
logging.getLogger("math_verify.grader").setLevel(logging.ERROR)


def is_same_by_algebra(gold: Node, answer: Node) -> bool:
    """Compare; may take long and raise what sympy raises, such as MemoryError or RecursionError."""
    if sum(1 for _ in walk(answer)) > MAX_NODES:
        return False
    ours, theirs = _gold_expression(gold), to_sympy(answer)
    if not all(_agrees_at(ours, theirs, point) for point in POSITIVE_POINTS):
        return False
    return bool(verify(ours, theirs, timeout_seconds=None, raise_on_error=True))


def _agrees_at(ours: Any, theirs: Any, point: int) -> bool:
    one, other = (_value(expression, point) for expression in (ours, theirs))
    if not (one.is_number and other.is_number) or one.has(sympy.nan, sympy.zoo) or other.has(sympy.nan, sympy.zoo):
        return False
    return bool(abs(one - other) <= max(abs(one), abs(other)) * sympy.Float(10) ** -NUM_DIGITS)


def _value(expression: Any, point: int) -> Any:
    expression = expression.replace(lambda part: isinstance(part, AppliedUndef), _as_sine)
    names = {symbol: _rational(symbol.name, point) for symbol in expression.free_symbols}
    return sympy.N(expression, NUM_DIGITS + 100, subs=names)  # substituting first would be exact, and may be huge


def _as_sine(call: Any) -> Any:
    """Give an unknown function the values that it has in `latex_values`."""
    slope, shift = (_rational(f"{call.func.__name__}()", point) for point in (0, 1))
    return sympy.sin(slope * call.args[0] + shift)


def _rational(name: str, point: int) -> Any:
    value = variable_at(name, point)
    assert isinstance(value, Fraction)  # the positive points are
    return sympy.Rational(value.numerator, value.denominator)


def to_sympy(node: Node) -> Any:
    """Convert a scalar tree to sympy, with real variables as in math-verify."""
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


_gold_expression = lru_cache(maxsize=1024)(to_sympy)


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
