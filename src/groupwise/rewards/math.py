"""Whether two answers of competition mathematics are the same: by normalized LaTeX, by exact number, item by item.

The tests in the order of their cost: (1) the same string after `normalize`; (2) both are numbers and equal as
`Fraction`; (3) both are lists, tuples or intervals whose items are equal. What needs algebra (`2\\sqrt2` against
`\\sqrt8`, `x+1` against `1+x`) is judged different here: a false negative rather than a false positive. Units count
only when both sides name one. Long answers are compared as plain strings.
"""

from __future__ import annotations

import re
from fractions import Fraction

from groupwise.rewards.extract import last_boxed, last_number
from groupwise.rewards.format import excerpt
from groupwise.rewards.numbers import NOT_UNITS, parse_number
from groupwise.types import Score, Verdict

MAX_ANSWER_CHARS = 1000
MAX_ITEMS = 64

_TEXT = r"\\(?:text|mbox|mathrm|textrm|textit|textbf|textnormal|mathbf|mathit|hbox)\s*"
_TEXT_MACRO = re.compile(_TEXT + r"\{([^{}]*)\}")
_TRAILING_TEXT = re.compile(rf"(?<=\S)\s*{_TEXT}\{{([^{{}}]*)\}}\s*(?:\^\{{?[23]\}}?)?\s*$")
_TRAILING_WORDS = re.compile(r"([-+]?\\?\$?[0-9][0-9.,/]*)\s+([A-Za-z]{2,}[A-Za-z .]*)(?:\^\{?[23]\}?)?")
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*([0-9])\s+([0-9])(?![0-9])", r"\\frac{\1}{\2}"),
        (r"(?<=[0-9])\\[!,](?=[0-9]{3})", ""),
        (r"\\(?:left|right|displaystyle|big|Big|bigg|Bigg)(?![A-Za-z])", ""),
        (r"\\(?:quad|qquad)(?![A-Za-z])|(?<!\\)\\[!,;: ]|~", " "),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|°", ""),
        (r"\\?[$%]", ""),
        (r"\{,\}", ""),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\le(?![A-Za-z])|≤", r"\\leq "),
        (r"\\ge(?![A-Za-z])|≥", r"\\geq "),
        (r"\\neq(?![A-Za-z])|≠", r"\\ne "),
        (r"\\(?:infty|infin)(?![A-Za-z])|∞", r"\\infty "),
        (r"π", r"\\pi "),
        (r"[−–]", "-"),
        (r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])", ","),
    )
)
# After the spaces are gone.
_TIGHT_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\sqrt([0-9A-Za-z])", r"\\sqrt{\1}"),
        (r"\\frac([0-9A-Za-z])", r"\\frac{\1}"),
        (r"(\\frac\{[^{}]*\})([0-9A-Za-z])", r"\1{\2}"),
        (r"([\^_])\{([^{}\\])\}", r"\1\2"),
        (r",{2,}", ","),
        (r"(?<![0-9])\.(?=[0-9])", "0."),
    )
)
_APART = re.compile(r"(?<=[0-9])\s+(?=[0-9])")  # "1 2" is not 12
_NAMED_VALUE = re.compile(r"(?:[A-Za-z](?:\([A-Za-z]\))?=|[A-Za-z]\\in(?![A-Za-z]))([^=]+)")
_ONE_LETTER = re.compile(r"\(([A-Za-z])\)")


def is_equal(gold: str, answer: str) -> bool:
    """Whether `answer` says what `gold` says. Never raises and never computes anything large."""
    if max(len(gold), len(answer)) > MAX_ANSWER_CHARS:
        return gold.strip() == answer.strip() != ""
    gold_body, gold_unit = _split_unit(gold)
    answer_body, answer_unit = _split_unit(answer)
    if gold_unit and answer_unit and gold_unit != answer_unit:
        return False
    return _is_same(normalize(gold_body), normalize(answer_body))


def normalize(text: str) -> str:
    """One spelling for what LaTeX can spell in many ways; '' for a text longer than any answer."""
    if len(text) > MAX_ANSWER_CHARS:
        return ""
    text = text.strip()
    grouped = parse_number(text)  # before the spaces go: "1,234" is a number, "1, 234" is a list
    if grouped is not None and "," in text and ", " not in text:
        return _spell(grouped)
    text = re.sub(r",\\!", "", text)
    text = _TEXT_MACRO.sub(r" \1 ", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = "".join(_APART.sub("␣", text).split())
    for pattern, replacement in _TIGHT_REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip(",").rstrip(".;:\\")
    named = _NAMED_VALUE.fullmatch(text)
    if named:
        text = named[1]
    letter = _ONE_LETTER.fullmatch(text)
    if letter:
        text = letter[1]
    return text.casefold() if text.isalpha() and len(text) > 2 else text


def _spell(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _split_unit(text: str) -> tuple[str, str]:
    """("4", "feet") from `4 \\text{ feet}` or `4 feet`; the unit is '' where there is none."""
    text = text.strip()
    match = _TRAILING_TEXT.search(text)
    if match and re.search(r"[0-9]|\\pi", text[: match.start()]):
        body, unit = text[: match.start()], match[1]
    elif words := _TRAILING_WORDS.fullmatch(text):
        body, unit = words[1], words[2]
    else:
        return text, ""
    is_unit = NOT_UNITS.isdisjoint(re.findall("[a-z]+", unit.lower()))
    return (body, _plain_unit(unit)) if is_unit else (text, "")


def _plain_unit(text: str) -> str:
    return text.strip(" .").casefold().rstrip("s")


def _number(text: str) -> Fraction | None:
    # Spaces are gone: a comma that is left may have separated the items of a list.
    return None if "," in text else parse_number(text)


def _is_same(gold: str, answer: str) -> bool:
    if gold == answer:
        return gold != ""
    gold_value, answer_value = _number(gold), _number(answer)
    if gold_value is not None or answer_value is not None:
        return gold_value == answer_value
    gold_open, gold_items, gold_close = _items(gold)
    answer_open, answer_items, answer_close = _items(answer)
    if (gold_open, gold_close) != (answer_open, answer_close) or len(gold_items) != len(answer_items):
        return False
    if not 2 <= len(gold_items) <= MAX_ITEMS:
        return False
    if gold_open in ("", "\\{"):  # solutions listed without brackets, and sets, have no order
        return _has_same_items(gold_items, answer_items)
    return all(_is_same_item(*pair) for pair in zip(gold_items, answer_items, strict=True))


def _is_same_item(gold: str, answer: str) -> bool:
    if gold == answer:
        return gold != ""
    value = _number(gold)
    return value is not None and value == _number(answer)


def _has_same_items(gold_items: list[str], answer_items: list[str]) -> bool:
    left = list(answer_items)
    for item in gold_items:
        match = next((position for position, other in enumerate(left) if _is_same_item(item, other)), None)
        if match is None:
            return False
        del left[match]
    return not left


def _items(text: str) -> tuple[str, list[str], str]:
    """("(", ["1", "2"], ")") from `(1,2)`; without brackets both are ''. One level: items are not split again."""
    opening = next((bracket for bracket in ("\\{", "(", "[") if text.startswith(bracket)), "")
    closing = next((bracket for bracket in ("\\}", ")", "]") if text.endswith(bracket)), "")
    if opening and closing:
        items = _split(text[len(opening) : len(text) - len(closing)])
        if items is not None:  # None for `(1,2),(3,4)`: the outer brackets are not a pair
            return opening, items, closing
    return "", _split(text) or [text], ""


def _split(text: str) -> list[str] | None:
    """The parts between the commas that are in no bracket; None where a bracket closes that was not opened."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif character == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
    return [*items, text[start:]]


def score_math(gold: str, completion: str, verifier: str) -> Score:
    """+1.0 boxed and right, +0.1 for a box, +0.1 when the box is not right but the last number is."""
    boxed = last_boxed(completion)
    is_right = boxed is not None and is_equal(gold, boxed.text)
    has_right_number = False
    if not is_right:
        value = parse_number(normalize(gold))
        number = last_number(completion)
        has_right_number = value is not None and number is not None and value == parse_number(number)
    parts = {
        "correct": 1.0 if is_right else 0.0,
        "box": 0.0 if boxed is None else 0.1,
        "last_number": 0.1 if has_right_number else 0.0,
    }
    verdict = Verdict.UNPARSED if boxed is None else Verdict.CORRECT if is_right else Verdict.WRONG
    return Score(sum(parts.values()), verdict, parts, verifier, excerpt(boxed.text) if boxed else "no \\boxed{}")
