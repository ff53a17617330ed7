"""Exact numbers from short texts, as `Fraction`: 12, -3.5, 1,000, $7.50, 25%, 3/4, 2 1/2, \\frac34, 6\\frac34, 2^{10}.

Anything else is None, and so is anything long: no huge integer is ever built. `1+1` is not a number. Only `one_number`
drops units.
"""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from functools import lru_cache

MAX_NUMBER_CHARS = 64
"""Longer texts are not read as numbers; real answers have fewer than 20 digits."""
MAX_EXPONENT = 64
NOT_UNITS = frozenset(
    (
        *("pi", "sqrt", "sin", "cos", "tan", "log", "ln", "mod", "base"),
        *("half", "dozen", "hundred", "thousand", "million", "billion", "trillion"),
    )
)
"""Words that change the value of the number before them, so they cannot be dropped like "dollars"."""

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_INTEGER = re.compile(r"-?[0-9]++")
_DECIMAL_COMMA = re.compile(r"(-?)([0-9]++)(?:,|\{,\})([0-9]++)")
_NOISE = re.compile(r"\\[!,]|\\?[$%]")  # `10\,000` is one number ...
_SPACE = re.compile(r"\\[;: ]|\s")
_APART = re.compile(r"[0-9.]\s+[0-9.]")  # ... but "1 2" is two
_MIXED = re.compile(r"([+-]?\s*[0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)")
_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_THOUSANDS = re.compile(r"([+-]?[0-9]{1,3}(?:,[0-9]{3})+)(\.[0-9]+)?")
_FORMS = re.compile(
    rf"(?P<sign>[+-]?)(?:"
    rf"(?P<decimal>{_DECIMAL})(?:[eE](?P<e>[+-]?[0-9]{{1,3}}))?"
    rf"|(?P<top>{_DECIMAL})/(?P<bottom>{_DECIMAL})"
    rf"|(?P<whole>[0-9]+)?\\[dtc]?frac(?:\{{(?P<n>-?{_DECIMAL})\}}|(?P<n1>[0-9]))(?:\{{(?P<d>-?{_DECIMAL})\}}|(?P<d1>[0-9]))"
    rf"|(?P<base>[0-9]{{1,6}})\^(?:(?P<p1>[0-9])|\{{(?P<p>-?[0-9]{{1,3}})\}})"
    rf"|(?P<scale>{_DECIMAL})(?:\\times|\\cdot|\*|×)10\^(?:(?P<s1>[0-9])|\{{(?P<s>-?[0-9]{{1,3}})\}})"
    rf")"
)
_TEXT_MACRO = re.compile(r"\\(?:text|mbox|mathrm|textrm)\s*\{([^{}]*)\}")
_NAME = re.compile(r"\A\s*+[A-Za-z]\s*+=")  # x = 18
# What may be beside the one number of "18 dollars" without changing its value: no operator, bracket or macro.
_WORDS = r"[^0-9+\-*/^!=()<>\\{}_]*"
_NUMBER_AND_WORDS = re.compile(rf"{_WORDS}?([+-]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)){_WORDS}")


def parse_number(text: str) -> Fraction | None:
    """Return the value of a text that is exactly one number, else None."""
    if len(text) > MAX_NUMBER_CHARS:
        return None
    if _INTEGER.fullmatch(text):  # the common case
        return Fraction(int(text))
    text = _NOISE.sub("", text.replace("{,}", ",").replace("−", "-"))
    text = _SPACE.sub(" ", text).strip().rstrip(".")
    mixed = _MIXED.fullmatch(text)
    if mixed:
        text = f"{mixed[1]}\\frac{{{mixed[2]}}}{{{mixed[3]}}}"
    elif _APART.search(text):
        return None
    text = text.replace(" ", "")
    if "," in text and not _THOUSANDS.fullmatch(text):
        return None
    form = _FORMS.fullmatch(text.replace(",", ""))
    if form is None:
        return None
    value = _value(form)
    return -value if value is not None and form["sign"] == "-" else value


def _value(form: re.Match[str]) -> Fraction | None:
    if form["decimal"]:
        return _scaled(Fraction(form["decimal"]), int(form["e"] or 0))
    if form["top"]:
        return calculate("/", Fraction(form["top"]), Fraction(form["bottom"]))
    if form["base"]:
        return _power(int(form["base"]), int(form["p1"] or form["p"]))
    if form["scale"]:
        return _scaled(Fraction(form["scale"]), int(form["s1"] or form["s"]))
    part = calculate("/", Fraction(form["n"] or form["n1"]), Fraction(form["d"] or form["d1"]))
    if part is None or form["whole"] is None:
        return part
    return None if part < 0 else int(form["whole"]) + part  # a mixed number: 6\frac{3}{4} is 27/4, not 18/4


def one_number(text: str) -> Fraction | None:
    """Parse a number, or the only number among words and units: "18 dollars", "about 3.5\\text{ hours}"."""
    value = parse_number(text)
    if value is not None or len(text) > MAX_NUMBER_CHARS:
        return value
    text = _NAME.sub("", _TEXT_MACRO.sub(r" \1 ", text.replace("{,}", ",").replace("−", "-")))
    match = _NUMBER_AND_WORDS.fullmatch(re.sub(r"\\[!,;: $%]", "", text).strip())
    if match is None or not NOT_UNITS.isdisjoint(re.findall("[a-z]+", text.lower())):
        return None
    return parse_number(match[1].rstrip(","))


def same_number(gold: str, answer: str) -> bool | None:
    """Return whether the one number of the answer is the gold one; None where the answer is not one number.

    `0,5` is one half where the gold answer is not an integer.
    """
    value = gold_number(gold)
    if value is not None and value.denominator != 1 and value == decimal_comma(answer):
        return True
    found = one_number(answer)
    return None if found is None else found == value


# Each gold answer is needed for every rollout of its group.
gold_number = lru_cache(maxsize=16_384)(parse_number)


def decimal_comma(text: str) -> Fraction | None:
    """Parse `0,5` as one half; None for anything else, also `1,000`, where the comma groups thousands."""
    match = _DECIMAL_COMMA.fullmatch(text.strip().strip("$")) if len(text) <= MAX_NUMBER_CHARS else None
    if match is None or (len(match[3]) == 3 and not match[2].startswith("0")):
        return None
    return Fraction(f"{match[1]}{match[2]}.{match[3]}")


def calculate(sign: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    """Apply one of `+ - * /`; None where a value is missing or the divisor is zero."""
    if left is None or right is None or (sign == "/" and right == 0):
        return None
    return _OPERATIONS[sign](left, right)


def _power(base: int, exponent: int) -> Fraction | None:
    if abs(exponent) > MAX_EXPONENT or (base == 0 and exponent < 0):
        return None
    return Fraction(base) ** exponent


def _scaled(value: Fraction, exponent: int) -> Fraction | None:
    return None if abs(exponent) > MAX_EXPONENT else value * Fraction(10) ** exponent
