"""Tokens of the LaTeX of real answers, for `latex`: numbers, letters, macros, brackets and operators.

Spacing, sizes of brackets, dollar and percent signs are dropped; unicode signs and plain words of mathematics (`pi`,
`sqrt`, `and`) become the macro or separator that they stand for. Any other word is refused.
"""

from __future__ import annotations

import re

MAX_TOKENS = 300
MAX_DIGITS = 30

TRIGONOMETRIC = frozenset(
    (*("sin", "cos", "tan", "cot", "sec", "csc"), *("arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"))
)
LOGARITHMS = frozenset(("log", "ln", "exp"))
GREEK = frozenset(
    (
        *("alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "kappa"),
        *("lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi", "omega"),
        *("Gamma", "Delta", "Theta", "Lambda", "Sigma", "Phi", "Psi", "Omega", "ell"),
    )
)
RELATIONS = {
    **{
        "=": "=",
        "<": "<",
        ">": ">",
        "<=": "<=",
        ">=": ">=",
        "!=": "!=",
        "\\lt": "<",
        "\\gt": ">",
        "\\ne": "!=",
        "\\neq": "!=",
    },
    **{"\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">="},
}

_UNICODE = str.maketrans(
    {
        **{"×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "÷": "/", "−": "-", "–": "-", "π": "\\pi "},
        **{"≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "°": "^\\circ ", "∪": "\\cup ", "∈": "\\in ", "±": "\\pm "},
        "∞": "\\infty ",
        **{"∅": "\\emptyset ", "θ": "\\theta ", "√": "\\sqrt ", "²": "^2", "³": "^3", "½": "\\frac12 "},
    }
)
# One alternative per kind of token; a possessive quantifier wherever a run could be tried again from every length.
_TOKEN = re.compile(
    r"(?P<skip>\s++|~|\\[,;:! ]|\\?[$%]|\\(?:left|right)(?![A-Za-z])(?:\.(?![0-9]))?"
    r"|\\(?:[bB]igg?[lr]?|displaystyle|mathstrut)(?![A-Za-z])|\\q?quad)"  # `\quadx` is in published answers
    r"|(?P<number>[0-9]++(?:(?:\{,\}|,\\!|\\,|\\!)[0-9]{3}(?![0-9]))*+(?:\.[0-9]++)?|\.[0-9]++)"
    r"|(?P<text>\\(?:text(?:rm|bf|it|normal)?|mbox|mathrm|mathbf|mathit|hbox|operatorname\*?)\s*+\{[^{}]*+\})"
    r"|(?P<environment>\\(?:begin|end)\s*+\{[a-zA-Z]++\*?\}(?:(?<=\{array\})\s*+\{[lcr|\s]*+\})?)"
    r"|(?P<macro>\\(?:[A-Za-z]++|[{}|\\]))"
    r"|(?P<letters>[A-Za-z]++)"
    r"|(?P<symbol>[<>!]=|[-+*/^_=<>()\[\]{},;:!|'&.])"
)
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])(?:\.[0-9]++)?")
_WORDS_OF_MATH = {
    **{name: f"\\{name}" for name in (*TRIGONOMETRIC, *LOGARITHMS, "pi", "sqrt", "infty", "theta")},
    **{"infinity": "\\infty", "inf": "\\infty", "and": ",", "or": ","},
}
_MATRICES = frozenset(("pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix", "array"))


class Unreadable(Exception):
    """End of the parse; never leaves `latex`."""


def tokenize(text: str) -> list[str]:
    text = text.translate(_UNICODE)
    tokens: list[str] = []
    position, depth = 0, 0
    while position < len(text):
        # "1,234" is one number outside brackets and two inside, where the comma separates items.
        match = (_THOUSANDS.match(text, position) if depth == 0 else None) or _TOKEN.match(text, position)
        if match is None or len(tokens) > MAX_TOKENS:
            raise Unreadable
        kind, token = match.lastgroup, match[0]
        position = match.end()
        if kind == "skip":
            continue
        if kind == "letters":
            tokens.extend(_words(token))
        elif kind in ("text", "environment"):
            tokens.extend(_named(token))
        elif kind == "number" or token[0] in "0123456789":
            tokens.append(_plain_number(token))
        else:
            depth += (token in ("(", "[", "\\{")) - (token in (")", "]", "\\}"))
            tokens.append(token)
    return tokens


def _plain_number(token: str) -> str:
    token = re.sub(r"[^0-9.]", "", token)
    if len(token) > MAX_DIGITS:
        raise Unreadable
    return token


def _words(run: str) -> list[str]:
    """Split a run of letters: `sin` is a function, `xyz` three variables, a longer run a word and refused."""
    if run in _WORDS_OF_MATH:
        return [_WORDS_OF_MATH[run]]
    if len(run) > 4:
        raise Unreadable
    return list(run)


def _named(token: str) -> list[str]:
    head, _, content = token.rstrip("}").partition("{")
    content = content.partition("}")[0].strip()
    if head.rstrip() in ("\\begin", "\\end"):
        if content not in _MATRICES:
            raise Unreadable
        return [head.rstrip()]
    if not content:
        return []
    content = content.strip(", ") or ","  # \text{, and }
    if content.lower() in _WORDS_OF_MATH or content == ",":
        return [_WORDS_OF_MATH.get(content.lower(), ",")]
    if content.isascii() and content.isdecimal():
        return [_plain_number(content)]
    if len(content) == 1 and content.isalpha():
        return [content]
    raise Unreadable
