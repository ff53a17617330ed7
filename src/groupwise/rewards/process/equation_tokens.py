"""Tokens of arithmetic as people and models write it: numbers, signs, units, LaTeX, and anything else.

One linear pass splits the text; two more resolve what depends on the neighbours (is this x a sign or a variable? does
this bracket contain an expression or a remark?). Tokens that are not arithmetic are kept, so that the parser sees
letters attached to an expression. Nothing here computes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from groupwise.rewards.numbers import VULGAR

MAX_DIGITS = 30


class Token(NamedTuple):
    kind: str
    """N number · O operator · ^ power · S superscript · ( ) group · F fraction macro · = relation · % · D dots (3.33…)
    · W word · V variable, function or anything else that is not arithmetic · X multiplication sign or a variable x
    · B break between sentences."""
    text: str
    start: int
    end: int
    partner: int = -1
    """Index of the matching bracket of a group."""
    is_glued: bool = False
    """No space before it; `$` and `\\left` do not count as space."""


CALCULATOR_NOTE = re.compile(r"<<([^<>\n]*)>>")
_TEXT_MACRO = r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|operatorname)\s{0,3}\{[^{}\n]{0,80}\}"
_PATTERNS = {
    "note": CALCULATOR_NOTE.pattern.replace("(", "(?:"),
    "gap": r"(?:\s|\\\\)++",
    "number": r"(?:[0-9]{1,3}(?:(?:,|\{,\}|\\[,!]|,\\!)[0-9]{3}|,? 000)+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+",
    "vulgar": f"[{''.join(VULGAR)}]",
    "skip": r"\\[,;:! ]|~(?!=)|\\(?:left|right|quad|qquad|displaystyle|boxed|fbox|[bB]igg?[lr]?)(?![A-Za-z])|\\?\$|&|`"
    r"|\\[()\[\]]|__|(?<=[0-9])-(?=[A-Za-z]{2})",
    "break": r"<=|>=|!=|=>|=<|:=|->|<-|={3,}|[<>≠≤≥→⇒—]|\\(?:neq?|leq?|geq?|to|Rightarrow|implies|quad)(?![A-Za-z])",
    "approx": r"≈|≃|≅|~=|\\(?:approx|simeq|cong)(?![A-Za-z])",
    "equal": r"==?",
    "percent": r"\\?%",
    "dots": r"\.\.\.|…|\\(?:dots|ldots|cdots)(?![A-Za-z])",
    "power": r"\^|(?<=[0-9)])\*\*(?=[0-9(])|(?<=[0-9)] )\*\*(?= [0-9(])",
    "markup": r"\*\*",
    "superscript": r"[¹²³⁴-⁹⁰]+",
    "operator": r"[-+*/×·⋅∙÷⁄∕−–]|\\(?:times|cdot|div)(?![A-Za-z])|(?:divided|multiplied) by\b",
    "fraction": r"\\[dtc]?frac(?![A-Za-z])",
    "cross": r"(?<=[0-9)%])[xX](?=\s?\$?\.?[0-9])|(?<=[\s)])[xX](?=[\s(])",
    "text_macro": _TEXT_MACRO,
    "macro": r"\\(?:[A-Za-z]+|[&#_|])",
    "word": r"[^\W\d_]\w*(?:['’-][^\W\d_]\w*)*",
    "bracket": r"[(){}\[\]]",
    "other": r".",
}
_SIMPLE_KINDS = {
    **{"vulgar": "N", "approx": "=", "equal": "=", "percent": "%", "power": "^", "superscript": "S"},
    **{"fraction": "F", "cross": "X", "macro": "V", "break": "B"},
}
_TOKEN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()), re.DOTALL)
_OPERATORS = {"×": "*", "·": "*", "⋅": "*", "∙": "*", "\\times": "*", "\\cdot": "*"} | {
    **{"÷": "/", "⁄": "/", "∕": "/", "\\div": "/", "−": "-", "–": "-", "divided by": "/", "multiplied by": "*"},
    **{"+": "+", "-": "-", "*": "*", "/": "/"},
}
_SPACE = re.compile(r"\s|~|\\[\\,;:! ]|\\q?quad")
_REPEATING = re.compile(r"\.?\\overline")
_LEADING_ZERO = re.compile("0[0-9]")
_SPOKEN = {"plus": "+", "minus": "-", "times": "*"}
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
SCALES = {
    **{"%": Fraction(1, 100), "percent": Fraction(1, 100), "cent": Fraction(1, 100), "cents": Fraction(1, 100)},
    **{"¢": Fraction(1, 100), "dozen": Fraction(12), "dozens": Fraction(12), "hundred": Fraction(100)},
    **{"thousand": Fraction(10**3), "million": Fraction(10**6), "billion": Fraction(10**9)},
}
_NOT_UNITS = frozenset(
    (
        *("sqrt", "log", "ln", "mod", "modulo", "sin", "cos", "tan", "max", "min", "gcd", "lcm", "choose", "base"),
        *("factorial", "squared", "cubed", "remainder", "rem", "pi"),
    )
)
# Short words that are not products of variables.
_SHORT_WORD_TEXT = """
kg mg cm mm km ml lb lbs oz ft yd hr hrs min sec mph am pm st nd rd th gb mb kb tb kw kwh usd eur sq gal day cup dvd tv
of in on at to is by as an or we he it if so up no my us be do go mr ms dr qt pt
"""
_SHORT_WORDS = frozenset(_SHORT_WORD_TEXT.split())
# Words after a number that continue the sentence and end the expression.
_SENTENCE_TEXT = """
and or so then which is are was were be gives give makes make we he she they it has have had but because since that if
when while to get
"""
SENTENCE_WORDS = frozenset(_SENTENCE_TEXT.split())
_PAIRS = {")": "(", "}": "{", "]": "["}
VALUE_START = frozenset("N(F")


def tokenize(text: str) -> list[Token]:
    tokens: list[Token] = []
    is_glued = False
    for match in _TOKEN.finditer(text):
        token = _token(match.lastgroup or "", match[0], match.start(), match.end(), text, tokens)
        if token is not None:
            tokens.append(token._replace(is_glued=is_glued))
            is_glued = True
        elif _SPACE.match(match[0]):
            is_glued = False
    _settle(tokens)
    _pair_brackets(tokens)
    return tokens


def _token(name: str, text: str, start: int, end: int, whole: str, before: list[Token]) -> Token | None:
    """Return a token, or None for what only separates."""
    kind = _SIMPLE_KINDS.get(name, "")
    is_glued = bool(before) and before[-1].end == start
    match name:
        case "gap":
            is_line_end = "\n" in text or "\\\\" in text
            continues = (before and before[-1].kind in "=O") or whole.startswith(("=", "≈", "&", "\\approx"), end)
            kind = "B" if is_line_end and not continues else ""
        case "number":
            # Not numbers: 3:45 and 0730 (clock times), 3:2 (a ratio), 1.2.3 (a version), 13,2000 (a slip).
            is_odd = (is_glued and before[-1].kind in "NV") or len(text) > MAX_DIGITS or _LEADING_ZERO.match(text)
            continues = whole[end : end + 1] in (":", ".", ",") and whole[end + 1 : end + 2].isdigit()
            is_continued = start > 1 and whole[start - 1] in ":," and whole[start - 2].isdigit()
            kind = "V" if is_odd or continues or is_continued or _REPEATING.match(whole, end) else "N"
        case "dots":
            kind = "D" if is_glued and before[-1].kind == "N" and "." in before[-1].text else "…"
        case "operator":
            kind = "B" if _is_bullet(whole, start, end) else "O"
            text = _OPERATORS[text]
        case "text_macro":
            inner = text[text.index("{") + 1 : -1].strip()
            kind = "B" if any(map(str.isdigit, inner)) else "V" if len(inner) == 1 else "W" if inner else ""
            text = inner.lower()
        case "word":
            is_glued = is_glued and before[-1].kind in "N)"
            kind, text = _word_kind(text, is_glued, whole[end : end + 1]), text.lower()
        case "bracket":
            kind = "(" if text in "([{" else ")"
        case "other":
            kind = "V" if text in "_√!|@#∘⊕⊗★☆◇" else "W" if text in "¢€£°" else "B"
    return Token(kind, text, start, end) if kind else None


def _word_kind(text: str, is_glued: bool, following: str) -> str:
    """Return W for a word, V for what may be a variable or a function: `2xy`, `AB`, `f(`, `x1`, `log`."""
    if any(map(str.isdigit, text)) or "_" in text or following == "(" or text.lower() in _NOT_UNITS:
        return "V"
    if len(text) == 1:
        return "W" if text in "aA" and not is_glued else "V"
    if text.lower() in _SHORT_WORDS:
        return "W"
    is_short = len(text) == 2 or (len(text) == 3 and (is_glued or text.isupper()))
    return "V" if is_short else "W"


def _is_bullet(text: str, start: int, end: int) -> bool:
    """Return whether the sign opens a line and a space follows, as in "- 3 + 4 = 7"."""
    head = text[max(0, start - 20) : start]
    opens_line = not head.rpartition("\n")[2].strip() and (start <= 20 or "\n" in head)
    return opens_line and text[end : end + 1] in (" ", "\t")


def _settle(tokens: list[Token]) -> None:
    """Resolve an x, a spoken operator and an exclamation mark by their neighbours."""
    for index, token in enumerate(tokens):
        before = tokens[index - 1].kind if index else "B"
        after = tokens[index + 1].kind if index + 1 < len(tokens) else "B"
        if token.kind == "X":
            is_sign = before in "N)%W" and after in VALUE_START
            tokens[index] = token._replace(kind="O", text="*") if is_sign else token._replace(kind="V")
        elif token.kind == "W" and before in "N)%W" and after in VALUE_START and token.text in _SPOKEN:
            tokens[index] = token._replace(kind="O", text=_SPOKEN[token.text])
        elif token.kind == "W" and token.text == "a":
            is_article = after == "W" or (after in VALUE_START and before in "WB")
            tokens[index] = token._replace(kind="W" if is_article else "V")
        elif token.kind == "W" and token.text == "equals":
            tokens[index] = token._replace(kind="=", text="=")
        elif token.kind == "…":
            tokens[index] = token._replace(kind="V" if "O" in (before, after) else "B")
        elif token.kind == "V" and token.text == "!" and after not in ("=", "O", ")", "^", "("):
            tokens[index] = token._replace(kind="B")


def _pair_brackets(tokens: list[Token]) -> None:
    """Match brackets; those around a whole equation or a sentence end, or without a partner, only separate."""
    open_brackets: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind in "=B":
            for opening in open_brackets:
                tokens[opening] = tokens[opening]._replace(kind="B")
            open_brackets.clear()
        elif token.kind == "(":
            open_brackets.append(index)
        elif token.kind == ")":
            if open_brackets and tokens[open_brackets[-1]].text == _PAIRS[token.text]:
                opening = open_brackets.pop()
                tokens[opening] = tokens[opening]._replace(partner=index)
                tokens[index] = token._replace(partner=opening)
            else:
                tokens[index] = token._replace(kind="B")
    for opening in open_brackets:
        tokens[opening] = tokens[opening]._replace(kind="B")
