"""Exact numbers from short texts, as `Fraction`: 12, -3.5, 1,000, $7.50, 25%, 3/4, 2 1/2, \\frac34, 6\\frac34, 2^{10}.

`NUMBER` is the one grammar: a text is a number when all of it matches, and a number in prose is what matches there.
Anything else is None, and so is anything long: no huge integer is ever built. `1+1` is not a number. Only `one_number`
drops units.
"""

from __future__ import annotations

import operator
import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

MAX_NUMBER_CHARS = 64
"""Longer texts are not read as numbers; real answers have fewer than 20 digits."""
MAX_EXPONENT = 64
"""Also the most bits of a base."""
NOT_UNITS = frozenset(
    (
        *("pi", "sqrt", "sin", "cos", "tan", "log", "ln", "mod", "base"),
        *("half", "dozen", "hundred", "thousand", "million", "billion", "trillion"),
    )
)
"""Words that change the value of the number before them, so they cannot be dropped like "dollars"."""

VULGAR = {sign: Fraction(unicodedata.numeric(sign)).limit_denominator(8) for sign in "¼½¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_INTEGER = re.compile(r"-?[0-9]++")
_DECIMAL_COMMA = re.compile(r"(-?)([0-9]++)(?:,|\{,\})([0-9]++)")
_NOISE = re.compile(r"\\?[$%]")
_SPACE = re.compile(r"\\[!,;: ]|\s")
_COMMA = re.compile(r"\{,\}|,\\!")
_INNER_SPACE = re.compile(r"(?<![0-9.,]) | (?![0-9.])")  # in `3 \times 10`, not in `2 1/2`, `1 000` or `1, 000`
_MINUS = str.maketrans("−–", "--")
# Groups of thousands, all with one separator: 1,000 1{,}000 1,\!000 1\,000 and 1 000 with any space in it.
_GROUPS = "|".join(
    rf"(?:{mark}[0-9]{{3}}(?![0-9]))++" for mark in (",", r"\{,\}", r",?\\[!,]", "[ \u00a0\u2009\u202f]")
)
_DECIMAL = rf"(?:(?:[1-9][0-9]{{0,2}}(?:{_GROUPS})|[0-9]++)(?:\.[0-9]++)?+|(?<![0-9A-Za-z.)])\.[0-9]++)"
NUMBER = re.compile(
    rf"(?:(?<![0-9A-Za-z)\]}}.%])(?P<sign>[-+−–])(?:\\?\$)?)?"  # not the minus of a subtraction
    rf"(?:(?P<chain>[0-9]++(?:(?:\.[0-9]++){{2,}}+|(?:/[0-9]++){{2,}}+|(?::[0-9]++)++))"  # a version, a date, a ratio
    rf"|(?P<mixed>[0-9]++) (?P<part>(?!0[0-9])[0-9]++) ?/ ?(?P<parts>[0-9]++)"
    rf"|(?:(?P<units>[0-9]++) ?)?(?P<vulgar>[{''.join(VULGAR)}])"
    rf"|(?:(?P<whole>[0-9]++) ?)?\\[dtc]?frac ?(?:\{{ ?(?P<n>[-−]?{_DECIMAL}) ?\}}|(?P<n1>[0-9]))"
    rf" ?(?:\{{ ?(?P<d>[-−]?{_DECIMAL}) ?\}}|(?P<d1>[0-9]))"
    rf"|(?P<scale>{_DECIMAL}) ?(?:\\times|\\cdot|[*×x]) ?10 ?\^ ?(?:(?P<s1>[0-9]++)|\{{ ?(?P<s>[-−]?[0-9]++) ?\}})"
    rf"|(?P<digits>{_DECIMAL})[eE](?P<e>[-+]?[0-9]++)(?![0-9A-Za-z])"
    rf"|(?P<top>{_DECIMAL}) ?/ ?(?P<bottom>{_DECIMAL})"
    rf"|(?P<base>[0-9]++) ?\^ ?(?:(?P<p1>[0-9]++)|\{{ ?(?P<p>[-−]?[0-9]++) ?\}})"
    rf"|(?P<decimal>{_DECIMAL}))"
)
"""A number in prose, without the full stop, the percent sign or the unit after it."""
_TEXT_MACRO = re.compile(r"\\(?:text|mbox|mathrm|textrm)\s*\{([^{}]*)\}")
_NAME = re.compile(r"\A\s*+[A-Za-z]\s*+=")  # x = 18
# What may not be beside the one number of "18 dollars", as it could change the value: operators, brackets and macros.
_NOT_WORDS = re.compile(r"[0-9+\-*/^!=()<>\\{}_]")


def parse_number(text: str) -> Fraction | None:
    """Return the value of a text that is exactly one number, else None."""
    if len(text) > MAX_NUMBER_CHARS:
        return None
    if _INTEGER.fullmatch(text):  # the common case
        return Fraction(int(text))
    text = _SPACE.sub(" ", _NOISE.sub("", _COMMA.sub(",", text.translate(_MINUS))))
    form = NUMBER.fullmatch(_INNER_SPACE.sub("", " ".join(text.split()).rstrip(".")))
    if form is None:
        return None
    value = _value(form)
    return -value if value is not None and form["sign"] == "-" else value


def _value(form: re.Match[str]) -> Fraction | None:
    if form["decimal"]:
        return _fraction(form["decimal"])
    if form["digits"]:
        return _scaled(_fraction(form["digits"]), int(form["e"]))
    if form["top"]:
        return calculate("/", _fraction(form["top"]), _fraction(form["bottom"]))
    if form["base"]:
        return _power(int(form["base"]), int(form["p1"] or form["p"]))
    if form["scale"]:
        return _scaled(_fraction(form["scale"]), int(form["s1"] or form["s"]))
    if form["vulgar"]:
        return int(form["units"] or 0) + VULGAR[form["vulgar"]]
    if form["chain"]:
        return None
    top, bottom = form["part"] or form["n"] or form["n1"], form["parts"] or form["d"] or form["d1"]
    part, whole = calculate("/", _fraction(top), _fraction(bottom)), form["mixed"] or form["whole"]
    if part is None or whole is None:
        return part
    return int(whole) + part if 0 <= part < 1 else None  # a mixed number: 6\frac{3}{4} is 27/4, not 18/4


def _fraction(decimal: str) -> Fraction:
    return Fraction(re.sub("[^-0-9.]", "", decimal))


def one_number(text: str) -> Fraction | None:
    """Parse a number, or the only number among words and units: "18 dollars", "about 3.5\\text{ hours}"."""
    value = parse_number(text)
    if value is not None or len(text) > MAX_NUMBER_CHARS:
        return value
    text = _NAME.sub("", re.sub(r"\\?[$%]", "", _TEXT_MACRO.sub(r" \1 ", text)))
    found = list(NUMBER.finditer(text))
    if len(found) != 1 or not NOT_UNITS.isdisjoint(re.findall("[a-z]+", text.lower())):
        return None
    rest = text[: found[0].start()] + re.sub(r"\\[!,;: ]", "", text[found[0].end() :])
    return None if _NOT_WORDS.search(rest) else parse_number(found[0][0])


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
    if max(abs(exponent), base.bit_length()) > MAX_EXPONENT or (base == 0 and exponent < 0):
        return None
    return Fraction(base) ** exponent


def _scaled(value: Fraction, exponent: int) -> Fraction | None:
    return None if abs(exponent) > MAX_EXPONENT else value * Fraction(10) ** exponent
