"""A parser for the LaTeX of real answers: text in, a small tree out, or None for what is not in the subset.

The subset: numbers, fractions (also mixed), roots, powers, factorials, binomials, pi, e, i, infinity, elementary
functions, unknown functions (`f(x)`), variables with or without an index, `+ - * /` and the implicit product, brackets,
absolute values, `\\pm`, degrees, lists, tuples, intervals, sets, unions, matrices, equations and inequalities, numerals
in another base. An ambiguous text (`1/2x`, `\\sin (x)^2`) is not in the subset, and neither are words.

Nothing is computed here. The work is linear in the text; limits on characters, tokens and depth bound it, so the
recursion never goes deeper than a few times `MAX_DEPTH`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from groupwise.rewards.math.latex_tokens import GREEK, LOGARITHMS, RELATIONS, TRIGONOMETRIC, Unreadable, tokenize

MAX_CHARS = 400
"""The longest answer of MATH has 162 characters."""
MAX_DEPTH = 32

_TRAILING = re.compile(r"(?<!\\)[.;,]++$")

_CLOSING = {"(": ")]", "[": ")]", "\\{": "\\}", "{": "}", "\\langle": "\\rangle", "\\lbrace": "\\rbrace"}
_STARTS_FACTOR = frozenset("([{") | {"\\{"}
_SCALARS = frozenset(
    (
        *("number", "constant", "variable", "infinity", "sum", "product", "negative", "reciprocal", "power", "root"),
        *("function", "application", "absolute", "factorial", "binomial"),
    )
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation and its arguments."""

    kind: str
    args: tuple[Node, ...] = ()
    value: Fraction | None = None
    """The value of a number."""
    name: str = ""
    """Name of a constant, variable or function; text of a number; brackets of a tuple or interval; shape of a matrix;
    operators of a relation, separated by spaces."""

    @property
    def is_scalar(self) -> bool:
        return self.kind in _SCALARS


def parse_latex(text: str) -> Node | None:
    """Return the tree of an answer; None where the text is not in the subset or exceeds a limit."""
    if len(text) > MAX_CHARS:
        return None
    try:
        tokens = tokenize(_TRAILING.sub("", text.strip()))
        signs = [position for position, token in enumerate(tokens) if token in ("\\pm", "\\mp")]
        if not signs:
            return _Parser(tokens).parse()
        if len(signs) > 1:
            return None
        upper, lower = (
            _Parser([*tokens[: signs[0]], sign, *tokens[signs[0] + 1 :]]).parse()
            for sign in (("+", "-") if tokens[signs[0]] == "\\pm" else ("-", "+"))
        )
        return _both(upper, lower)
    except Unreadable:
        return None


def _both(upper: Node, lower: Node) -> Node:
    """Return the two readings of one `\\pm` as a list; items without the sign occur once."""
    if upper.kind == lower.kind == "list":
        pairs = zip(upper.args, lower.args, strict=True)
        return Node("list", tuple(item for one, other in pairs for item in ((one,) if one == other else (one, other))))
    return Node("list", (upper, lower))


class _Parser:
    """Recursive descent; each method reads one level and leaves `position` after it."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, ""]  # "" marks the end
        self.position = 0
        self.depth = 0
        self.num_bars = 0
        self.split = 0
        """Position of the last token of which a macro took the first digit."""
        self.is_angle = False

    @property
    def next(self) -> str:
        return self.tokens[self.position]

    def take(self, *choices: str) -> str:
        token = self.next
        if token and token in choices:
            self.position += 1
            return token
        return ""

    def expect(self, *choices: str) -> str:
        token = self.take(*choices)
        if not token:
            raise Unreadable
        return token

    def nested(self, read: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable
        node = read()
        self.depth -= 1
        return node

    def parse(self) -> Node:
        items = self.items()
        if self.next:
            raise Unreadable
        return items[0] if len(items) == 1 else Node("list", tuple(items))

    def items(self) -> list[Node]:
        items = [self.relation()]
        while self.take(",", ";"):
            while self.take(","):  # "1, 2, and 3"
                pass
            items.append(self.relation())
        return items

    def relation(self) -> Node:
        if self.is_applied_name():  # f(x) = ..., P(2) = ...
            left = Node("variable", name=f"{self.next}()")
            self.position += 4
        else:
            left = self.union()
        if self.take("\\in"):
            if left.kind != "variable":
                raise Unreadable
            return Node("relation", (left, self.union()), name="=")
        operands, operators = [left], []
        while self.next in RELATIONS:
            operators.append(RELATIONS[self.next])
            self.position += 1
            operands.append(self.union())
        if not operators:
            return left
        if operators == ["="] and left.kind == "tuple" and all(item.kind == "variable" for item in left.args):
            operands[0] = Node("variable", name=",".join(item.name for item in left.args))  # (x, y) = (1, 2)
        if not all(operand.is_scalar for operand in operands[:-1]):
            raise Unreadable
        return Node("relation", tuple(operands), name=" ".join(operators))

    def is_applied_name(self) -> bool:
        head = self.tokens[self.position : self.position + 5]
        return len(head) == 5 and head[0].isalpha() and head[1] == "(" and head[2].isalnum() and head[3:] == [")", "="]

    def union(self) -> Node:
        parts = [self.sum()]
        while self.take("\\cup"):
            parts.append(self.sum())
        if len(parts) == 1:
            return parts[0]
        if any(part.is_scalar for part in parts):
            raise Unreadable
        return Node("union", tuple(parts))

    def sum(self) -> Node:
        terms = [self.signed()]
        while self.next in ("+", "-"):
            terms.append(self.signed())
        if len(terms) == 1:
            return terms[0]
        return Node("sum", _scalars(terms))

    def signed(self) -> Node:
        is_negative = False
        while sign := self.take("+", "-"):
            is_negative ^= sign == "-"
        node = self.product()
        if is_negative and node.kind == "numeral":
            return Node("numeral", node.args, name=f"-{node.name}")
        return Node("negative", _scalars([node])) if is_negative else node

    def product(self) -> Node:
        factors = [self.factor()]
        has_slash = False
        while True:
            if self.take("*", "\\cdot", "\\times"):
                factors.append(self.signed_factor())
                has_slash = False
            elif self.take("/", "\\div", ":"):
                factors.append(Node("reciprocal", _scalars([self.signed_factor()])))
                has_slash = True
            elif self.starts_factor():
                if has_slash:  # 1/2x is (1/2)x to some and 1/(2x) to others
                    raise Unreadable
                mixed = self.mixed(factors[-1])
                if mixed is not None:
                    factors[-1] = mixed
                elif self.next[0] in "0123456789." and not self.follows_power(factors[-1]):  # "1 2" is not 2
                    raise Unreadable
                else:
                    factors.append(self.factor())
            else:
                break
        return factors[0] if len(factors) == 1 else Node("product", _scalars(factors))

    def follows_power(self, factor: Node) -> bool:
        """Return whether a number can only be the next factor: in `2^6 3^5`, but not in `2^63^5`."""
        return factor.kind == "power" and self.tokens[self.position + 1] == "^" and self.position != self.split

    def signed_factor(self) -> Node:
        is_negative = bool(self.take("-"))
        node = self.factor()
        return Node("negative", _scalars([node])) if is_negative else node

    def mixed(self, whole: Node) -> Node | None:
        """Read `6\\frac{3}{4}` as a sum, not a product: an integer right before a fraction of integers."""
        if whole.kind != "number" or not self.tokens[self.position - 1].isdecimal():
            return None
        if self.next not in ("\\frac", "\\dfrac", "\\tfrac", "\\cfrac"):
            return None
        start = self.position
        part = self.factor()
        if part.kind == "product" and len(part.args) == 2 and part.args[1].kind == "reciprocal":
            top, bottom = part.args[0].value, part.args[1].args[0].value
            if top is not None and bottom and top.denominator == bottom.denominator == 1 and whole.value is not None:
                return Node("number", value=whole.value + top / bottom)
        self.position = start
        return None

    def starts_factor(self) -> bool:
        token = self.next
        if token in _STARTS_FACTOR or token == "|":
            return token != "|" or self.num_bars == 0
        if not token or token in "+-*/^_=<>)]},;:!'&.|":
            return False
        return token not in RELATIONS and token not in _NOT_A_FACTOR

    def factor(self) -> Node:
        return self.nested(self.powered)

    def powered(self) -> Node:
        node = self.atom()
        if self.take("!"):
            node = Node("factorial", _scalars([node]))
        if self.take("^"):
            if self.is_circle():
                return self.degrees(node)
            node = Node("power", _scalars([node, self.argument()]))
        elif self.take("\\degree"):
            return self.degrees(node)
        if self.next in ("^", "!", "_", "'"):
            raise Unreadable
        return node

    def is_circle(self) -> bool:
        start = self.position
        opened = self.take("{")
        if self.take("\\circ") and (not opened or self.take("}")):
            return True
        self.position = start
        return False

    def degrees(self, node: Node) -> Node:
        """Drop the unit, except in the argument of a function."""
        if not self.is_angle:
            return node
        half_turn = Node("number", value=Fraction(1, 180))
        return Node("product", _scalars([node, half_turn, Node("constant", name="pi")]))

    def argument(self) -> Node:
        """Read the argument of a macro or `^`: a group, or the next digit, letter or macro."""
        if self.take("{"):
            node = self.nested(self.sum)
            self.expect("}")
            return _scalars([node])[0]
        token = self.next
        if token.isdecimal() and len(token) > 1:  # \frac12 and x^12: LaTeX takes one digit
            self.tokens[self.position] = token[1:]
            self.split = self.position
            return Node("number", value=Fraction(int(token[0])))
        return _scalars([self.nested(self.atom)])[0]

    def atom(self) -> Node:
        token = self.next
        if not token:
            raise Unreadable
        self.position += 1
        if token[0] in "0123456789.":
            return self.number(token)
        if token.isalpha():
            return self.letter(token)
        if token in _CLOSING:
            return self.nested(lambda: self.group(token))
        if token in ("|", "\\|", "\\vert", "\\lvert"):
            return self.nested(self.absolute)
        if token in ("\\frac", "\\dfrac", "\\tfrac", "\\cfrac"):
            top = self.argument()
            return Node("product", (top, Node("reciprocal", (self.argument(),))))
        if token == "\\sqrt":
            return self.root()
        if token in ("\\binom", "\\dbinom", "\\tbinom"):
            return Node("binomial", (self.argument(), self.argument()))
        if token == "\\begin":
            return self.nested(self.matrix)
        name = token[1:]
        if name in TRIGONOMETRIC or name in LOGARITHMS:
            return self.function(name)
        if name == "pi":
            return Node("constant", name="pi")
        if name == "infty":
            return Node("infinity")
        if name in ("emptyset", "varnothing"):
            return Node("set")
        if name in GREEK:
            return self.indexed(name)
        if name == "mathbb" and self.take("{") and self.take("R") and self.take("}"):
            return Node("tuple", (Node("negative", (Node("infinity"),)), Node("infinity")), name="()")
        raise Unreadable

    def number(self, token: str) -> Node:
        if token == ".":
            raise Unreadable
        node = Node("number", value=Fraction(token), name=token)
        if not self.take("_"):
            return node
        base = self.argument()  # 40_9: a numeral in another base, which differs from its value
        if base.kind != "number" or "." in token:
            raise Unreadable
        return Node("numeral", (base,), name=token.lstrip("0") or "0")

    def letter(self, token: str) -> Node:
        if token in "ei" and self.next != "_":
            return Node("constant", name=token)
        if token in "fghFGHPQ" and self.next == "(" and self.is_function_name(token):
            return self.nested(lambda: self.application(token))
        return self.indexed(token)

    def is_function_name(self, name: str) -> bool:
        """Return whether the name is always applied: `h(x)` is a function of x, but `h(h + 1)` a product."""
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        return all(following == "(" for token, following in pairs if token == name)

    def application(self, name: str) -> Node:
        self.expect("(")
        argument = self.sum()
        self.expect(")")
        return Node("application", _scalars([argument]), name=name)

    def indexed(self, name: str) -> Node:
        if not self.take("_"):
            return Node("variable", name=name)
        index = self.argument()
        if index.kind == "number":
            return Node("variable", name=f"{name}_{index.value}")
        letters = index.args if index.kind == "product" else (index,)  # S_{ABC}
        if all(letter.kind in ("variable", "constant") for letter in letters):
            return Node("variable", name=f"{name}_{''.join(letter.name for letter in letters)}")
        raise Unreadable

    def group(self, opening: str) -> Node:
        num_bars, self.num_bars = self.num_bars, 0
        if opening in ("\\{", "\\lbrace") and self.take("\\}", "\\rbrace"):
            self.num_bars = num_bars
            return Node("set")
        items = self.items()
        closing = self.next
        if not closing or closing not in (_CLOSING[opening] if opening in "([" else (_CLOSING[opening],)):
            raise Unreadable
        self.position += 1
        self.num_bars = num_bars
        if opening in ("\\{", "\\lbrace"):
            return Node("set", tuple(items))
        if opening == "{" or (len(items) == 1 and opening + closing in ("()", "[]")):
            return items[0] if len(items) == 1 else Node("list", tuple(items))
        brackets = "<>" if opening == "\\langle" else opening + closing
        return Node("tuple", tuple(items), name=brackets)

    def absolute(self) -> Node:
        self.num_bars += 1
        node = self.sum()
        self.expect("|", "\\|", "\\vert", "\\rvert")
        self.num_bars -= 1
        return Node("absolute", _scalars([node]))

    def root(self) -> Node:
        index = Node("number", value=Fraction(2))
        if self.take("["):
            index = self.nested(self.sum)
            self.expect("]")
        if self.next == "(":  # sqrt(2)
            return Node("root", _scalars([self.nested(self.atom), index]))
        return Node("root", _scalars([self.argument(), index]))

    def function(self, name: str) -> Node:
        exponent: Node | None = None
        base: Node | None = None
        if name == "log" and self.take("_"):
            base = self.argument()
        if self.take("^"):
            exponent = self.argument()
        was_angle, self.is_angle = self.is_angle, True
        argument = self.nested(self.function_argument)
        self.is_angle = was_angle
        if exponent is not None and exponent.kind == "negative":
            if name not in ("sin", "cos", "tan") or exponent.args[0].value != 1:
                raise Unreadable
            name, exponent = f"arc{name}", None
        node = Node("function", _scalars([argument] if base is None else [argument, base]), name=name)
        return node if exponent is None else Node("power", (node, exponent))

    def function_argument(self) -> Node:
        """Read a group, or a run of factors (`\\sin 2x`) up to the next function (`\\sin x \\cos x`)."""
        is_group = self.next in ("(", "{")
        factors = [self.factor()]
        if is_group:
            if self.tokens[self.position - 1] not in (")", "}"):  # \sin (x)^2
                raise Unreadable
            return factors[0]
        while self.starts_factor() and self.next[1:] not in TRIGONOMETRIC | LOGARITHMS and self.next != "(":
            factors.append(self.factor())
        if self.next in ("/", "("):
            raise Unreadable  # \sin x/2 and \sin x (y)
        return factors[0] if len(factors) == 1 else Node("product", _scalars(factors))

    def matrix(self) -> Node:
        rows: list[list[Node]] = [[]]
        while True:
            rows[-1].append(_scalars([self.sum()])[0])
            if self.take("&"):
                continue
            if self.take("\\\\") and self.next != "\\end":
                rows.append([])
                continue
            self.expect("\\end")
            break
        width = len(rows[0])
        if any(len(row) != width for row in rows):
            raise Unreadable
        return Node("matrix", tuple(item for row in rows for item in row), name=f"{len(rows)}x{width}")


_NOT_FACTOR_TEXT = r"\cup \in \end \\ \} \rbrace \rangle \rvert \cdot \times \div \degree"
_NOT_A_FACTOR = frozenset(_NOT_FACTOR_TEXT.split())


def _scalars(nodes: list[Node]) -> tuple[Node, ...]:
    if not all(node.is_scalar for node in nodes):
        raise Unreadable
    return tuple(nodes)
