"""Values of `latex` trees at a point: an exact `Fraction` while rational, then a float or complex.

A point assigns every variable a value that depends on its name and the number of the point, so a variable has the same
value in both answers. An unknown function `f` is a sine with its own slope and shift. Points 0 to 2 are positive, 3 is
negative, 4 is complex.

Nothing large is computed: a number of more than `MAX_BITS` bits, a factorial above `MAX_FACTORIAL` or a float that
overflows or vanishes raises `TooLarge`. What has no value (1/0, an interval inside a sum) raises `Undefined`.
"""

from __future__ import annotations

import cmath
import math
import operator
import random
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from groupwise.rewards.math.latex import Node

MAX_BITS = 4096
MAX_FACTORIAL = 170
MAX_BINOMIAL = 1000
POSITIVE_POINTS = (0, 1, 2)
ALL_POINTS = (0, 1, 2, 3, 4)

Value = Fraction | float | complex


class Undefined(Exception):
    """The expression has no value."""


class TooLarge(Exception):
    """The value is too large or too small to compute."""


def evaluate(node: Node, point: int) -> Value:
    """Return the value of a scalar at a point; raise only `Undefined` or `TooLarge`."""
    try:
        value = _evaluate(node, point)
    except OverflowError:
        raise TooLarge from None
    except (ZeroDivisionError, ValueError):  # ValueError: a function outside its domain, as the logarithm of zero
        raise Undefined from None
    if not isinstance(value, Fraction) and cmath.isnan(value):
        raise Undefined
    return value


def as_complex(value: Value) -> complex:
    """Convert; raise `TooLarge` for a rational beyond the range of floats."""
    try:
        return complex(value)
    except OverflowError:
        raise TooLarge from None


@lru_cache(maxsize=4096)
def variable_at(name: str, point: int) -> Value:
    generator = random.Random(f"{point}:{name}")
    # The denominator is prime: not a simple fraction, and powers of it stay short.
    real = Fraction(generator.randrange(101, 997), 307)
    if point < 3:
        return real
    return -real if point == 3 else complex(float(real), generator.uniform(0.3, 1.7))


def _evaluate(node: Node, point: int) -> Value:
    kind = node.kind
    if kind == "number":
        assert node.value is not None
        return node.value
    if kind == "variable":
        return variable_at(node.name, point)
    if kind == "constant":
        return _CONSTANTS[node.name]
    if kind == "infinity":
        return math.inf
    if kind == "function":
        return _function(node.name, [_evaluate(arg, point) for arg in node.args])
    if kind == "application":
        slope, shift = variable_at(f"{node.name}()", 0), variable_at(f"{node.name}()", 1)
        return _real(cmath.sin(complex(slope) * complex(_evaluate(node.args[0], point)) + complex(shift)))
    operation = _OPERATIONS.get(kind)
    if operation is None:
        raise Undefined
    values = [_evaluate(arg, point) for arg in node.args]
    return _nonzero(operation(*values)) if kind in _NEVER_ZERO and 0 not in values else operation(*values)


def _sum(*values: Value) -> Value:
    total = values[0]
    for value in values[1:]:
        total = _checked(total + value)
    return total


def _product(*values: Value) -> Value:
    total = values[0]
    for value in values[1:]:
        if (isinstance(total, float) or isinstance(value, float)) and math.inf in (abs(total), abs(value)):
            raise Undefined
        total = _checked(total * value)
    return total


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        if isinstance(base, Fraction):
            num_bits = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
            if abs(exponent.numerator) * num_bits > MAX_BITS and abs(base) not in (0, 1):
                raise TooLarge
            if abs(base) in (0, 1) and abs(exponent.numerator) > MAX_BITS:
                raise TooLarge
        return base**exponent.numerator
    if isinstance(exponent, Fraction) and isinstance(base, Fraction) and base >= 0:
        root = _exact_root(base, exponent.denominator)
        if root is not None:
            return _power(root, Fraction(exponent.numerator))
    return _real(complex(base) ** complex(exponent))


def _root(radicand: Value, index: Value) -> Value:
    if not isinstance(index, Fraction) or index.denominator != 1 or not 2 <= index <= 64:
        raise Undefined
    if isinstance(radicand, Fraction):
        root = _exact_root(abs(radicand), index.numerator)
        if root is not None and (radicand >= 0 or index.numerator % 2):
            return root if radicand >= 0 else -root
    if index == 2:
        return _real(cmath.sqrt(complex(radicand)))
    if isinstance(radicand, (Fraction, float)) and radicand < 0 and index.numerator % 2:
        return -(float(-radicand) ** (1 / float(index)))  # \sqrt[3]{-8} is -2, not the principal root
    return _real(complex(radicand) ** (1 / float(index)))


def _exact_root(value: Fraction, index: int) -> Fraction | None:
    """Return the root of a rational that is a perfect power, else None."""
    if index > 64 or value < 0:
        return None
    parts = []
    for part in (value.numerator, value.denominator):
        guess = math.isqrt(part) if index == 2 else round(part ** (1 / index))
        if guess**index != part:
            return None
        parts.append(guess)
    return Fraction(parts[0], parts[1])


def _absolute(value: Value) -> Value:
    return abs(value) if isinstance(value, Fraction) else float(abs(value))


def _factorial(value: Value) -> Value:
    return Fraction(math.factorial(_natural(value, MAX_FACTORIAL)))


def _binomial(top: Value, bottom: Value) -> Value:
    return Fraction(math.comb(_natural(top, MAX_BINOMIAL), _natural(bottom, MAX_BINOMIAL)))


def _natural(value: Value, limit: int) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise Undefined
    if value > limit:
        raise TooLarge
    return value.numerator


def _function(name: str, values: list[Value]) -> Value:
    argument = complex(values[0])
    if name == "log":
        # `\log x` without a base is read as base e; some mean base 10, but both answers are read alike.
        return _real(cmath.log(argument) if len(values) == 1 else cmath.log(argument) / cmath.log(complex(values[1])))
    value = _real(_FUNCTIONS[name](argument))
    return _nonzero(value) if name == "exp" else value


def _nonzero(value: Value) -> Value:
    if value == 0:  # too small for a float
        raise TooLarge
    return value


def _real(value: complex) -> Value:
    """Return a complex number without an imaginary part as a real one."""
    return value.real if value.imag == 0 else value


def _checked(value: Value) -> Value:
    if isinstance(value, Fraction) and max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise TooLarge
    return value


_CONSTANTS: dict[str, Value] = {"pi": math.pi, "e": math.e, "i": 1j}
_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    **{name: getattr(cmath, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp")},
    **{"arcsin": cmath.asin, "arccos": cmath.acos, "arctan": cmath.atan, "ln": cmath.log},
    "cot": lambda value: 1 / cmath.tan(value),
    "sec": lambda value: 1 / cmath.cos(value),
    "csc": lambda value: 1 / cmath.sin(value),
}
_NEVER_ZERO = frozenset(("product", "power", "reciprocal"))
"""Operations whose value is not zero unless an argument is."""
_OPERATIONS: dict[str, Callable[..., Value]] = {
    "sum": _sum,
    "product": _product,
    "reciprocal": lambda value: 1 / value,
    "negative": operator.neg,
    "power": _power,
    "root": _root,
    "absolute": _absolute,
    "factorial": _factorial,
    "binomial": _binomial,
}
