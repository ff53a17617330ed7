"""Normalized spelling of LaTeX answers, and the units, names and choices that come with them.

Two answers with the same normalized spelling are equal; for different spellings, `equality` decides. Each function is
linear in the text, and answers are short.
"""

from __future__ import annotations

import re
from fractions import Fraction

from groupwise.rewards.numbers import NOT_UNITS, parse_number

MAX_ANSWER_CHARS = 1000

_TEXT = r"\\(?:text|mbox|mathrm|textrm|textit|textbf|textnormal|mathbf|mathit|hbox)\s*+"
_TEXT_MACRO = re.compile(_TEXT + r"\{([^{}]*+)\}")
_TRAILING_TEXT = re.compile(rf"(?<=\S)(?:\s|\\[,;: ]|~)*+{_TEXT}\{{([^{{}}]*+)\}}\s*+(?:\^\{{?([23])\}}?)?[\s.]*+$")
_TRAILING_WORDS = re.compile(r"([-+]?\\?\$?[0-9][0-9.,/]*+)\s++([A-Za-z]{2,}+[A-Za-z .]*+)(?:\^\{?([23])\}?)?")


def _compiled(*rewrites: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in rewrites)


_REWRITES = _compiled(
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\frac\s*+([0-9])\s++([0-9])(?![0-9])", r"\\frac{\1}{\2}"),
    (r"(?<=[0-9])\\[!,](?=[0-9]{3})", ""),
    (r"\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![A-Za-z])", ""),
    (r"\\(?:quad|qquad)(?![A-Za-z])|(?<!\\)\\[!,;: ]|~", " "),
    (r"\^\s*+\{?\s*+\\circ\s*+\}?|\\degree(?![A-Za-z])|°", ""),
    (r"\\?[$%]", ""),
    (r"(?<=[0-9])\{,\}(?=[0-9]{3})", ""),
    (r"\{,\}", ","),
    (r"\\varnothing(?![A-Za-z])|∅|\\\{\s*+\\\}", r"\\emptyset"),
    (r"\\le(?![A-Za-z])|≤", r"\\leq "),
    (r"\\ge(?![A-Za-z])|≥", r"\\geq "),
    (r"\\neq(?![A-Za-z])|≠", r"\\ne "),
    (r"\\(?:infty|infin)(?![A-Za-z])|∞", r"\\infty "),
    (r"π", r"\\pi "),
    (r"[−–]", "-"),
    (r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])", ","),
)
# A text without any of these characters has nothing to rewrite above.
_REWRITABLE = re.compile(r"[\\$%~°{≤≥≠∞π∅−–]|and|or")
# After the spaces are gone.
_TIGHT_REWRITES = _compiled(
    (r"\\sqrt([0-9A-Za-z])", r"\\sqrt{\1}"),
    (r"\\frac([0-9A-Za-z])", r"\\frac{\1}"),
    (r"(\\frac\{[^{}]*+\})([0-9A-Za-z])", r"\1{\2}"),
    (r"([\^_])\{([^{}\\])\}", r"\1\2"),
    (r",{2,}+", ","),
    (r"(?<![0-9])\.(?=[0-9])", "0."),
)
_THIN_COMMA = re.compile(r",\\!\s*+")
_TIGHTLY_REWRITABLE = re.compile(r"[\\^_,.]")
APART = "␣"
"""Stands for the space between two digits."""
_APART = re.compile(r"(?<=[0-9])\s++(?=[0-9])")  # "1 2" is not 12
_NAMED_VALUE = re.compile(
    r"((?:\\angle)?(?:[A-Za-z]{1,3}|\\[a-z]{2,8})(?:_(?:\w|\{\w{1,3}\}))?(?:\(\w{1,3}\))?)(?:=|\\in(?![A-Za-z]))([^=]++)"
)
_ONE_LETTER = re.compile(r"\(([A-Za-z])\)")
_CHOICE = re.compile(r"\(\s*([A-Za-z])\s*\)(.*+)|([A-Z])\s*(?:\)|[.:](?=\s))(.*+)|([A-Z])()", re.DOTALL)
_OTHER_CHOICE = re.compile(r"\([A-Za-z]\)|(?<![A-Za-z])[A-Z]\)")
_UNITS = {
    **{"feet": "ft", "foot": "ft", "inche": "in", "inch": "in", "yard": "yd", "mile": "mi", "dollar": "$"},
    **{"meter": "m", "metre": "m", "centimeter": "cm", "centimetre": "cm", "kilometer": "km", "kilometre": "km"},
    **{"millimeter": "mm", "gram": "g", "kilogram": "kg", "liter": "l", "litre": "l", "pound": "lb"},
    **{"second": "s", "sec": "s", "minute": "min", "hour": "h", "hr": "h", "day": "d", "mile per hour": "mph"},
    **{"percent": "", "unit": "", "degree": ""},
}
"""Spellings of one unit. "units" and degrees are dropped: another answer cannot contradict them."""
_POWERS = {"square": "2", "sq": "2", "sq.": "2", "cubic": "3", "cu": "3", "cu.": "3"}


def normalize(text: str) -> str:
    """Return the normalized spelling without a leading `x =`; "" for a text longer than any answer."""
    return split_name(spell(text))[1]


def spell(text: str) -> str:
    """Return the normalized spelling, including a leading `x =`."""
    if len(text) > MAX_ANSWER_CHARS:
        return ""
    text = text.strip()
    if "," in text or _APART.search(text):
        number = parse_number(
            text
        )  # before the spaces go: "1,234", "1 234" and "1 1/2" are numbers, "1, 234" is a list
        if number is not None:
            return _spell_number(number)
    if _REWRITABLE.search(text):
        text = _THIN_COMMA.sub("", text)
        text = _TEXT_MACRO.sub(r" \1 ", text)
        for pattern, replacement in _REWRITES:
            text = pattern.sub(replacement, text)
    text = "".join(_APART.sub(APART, text).split())
    if _TIGHTLY_REWRITABLE.search(text):
        for pattern, replacement in _TIGHT_REWRITES:
            text = pattern.sub(replacement, text)
    text = text.strip(",").rstrip(".;:\\")
    while text.startswith("{") and text.endswith("}") and text.find("}") == len(text) - 1:
        text = text[1:-1]
    letter = _ONE_LETTER.fullmatch(text)
    if letter:
        text = letter[1]
    is_word = text.isalpha() and (len(text) > 2 or text in ("No", "NO"))  # shorter ones are variables
    return text.casefold() if is_word else text


def split_name(spelled: str) -> tuple[str, str]:
    """Return ("x", "5") for `x=5`, ("", "5") for `5`; also for `f(x)=`, `AB=`, `\\theta=` and `x\\in`."""
    named = _NAMED_VALUE.fullmatch(spelled)
    return (named[1].casefold(), named[2]) if named else ("", spelled)


def _spell_number(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def split_unit(text: str) -> tuple[str, str]:
    """Return ("4", "ft") for `4 \\text{ feet}` or `4 feet`; the unit is "" where there is none."""
    text = text.strip()
    if not text or (text[-1] in "0123456789)" and "}" not in text):  # most answers: nothing follows the number
        return text, ""
    match = _TRAILING_TEXT.search(text) if "{" in text else None
    if match and re.search(r"[0-9]|\\pi", text[: match.start()]):
        body, unit, power = text[: match.start()], match[1], match[2]
    elif words := _TRAILING_WORDS.fullmatch(text):
        body, unit, power = words[1], words[2], words[3]
    else:
        return text, ""
    is_unit = NOT_UNITS.isdisjoint(re.findall("[a-z]+", unit.lower()))
    return (body, _plain_unit(unit, power)) if is_unit else (text, "")


def _plain_unit(text: str, power: str | None) -> str:
    words = text.strip(" .,").casefold().split()
    if len(words) > 1 and words[0] in _POWERS:
        power, words = _POWERS[words[0]], words[1:]
    unit = " ".join(word.removesuffix("s") if len(word) > 2 else word for word in words)
    unit = _UNITS.get(unit, unit)
    return f"{unit}^{power}" if unit and power else unit


def choice_of(text: str) -> str:
    """Return the letter of a multiple choice: C for `(C)`, `C`, `\\text{(C)}`, `C) 12`; "" for anything else."""
    text = _TEXT_MACRO.sub(r"\1", text).replace("\\ ", " ").replace("~", " ").replace("$", "").strip(" .,;")
    match = _CHOICE.fullmatch(text)
    if match is None:
        return ""
    letter, rest = (match[1] or match[3] or match[5]), (match[2] or match[4] or "")
    return "" if _OTHER_CHOICE.search(rest) else letter.upper()
