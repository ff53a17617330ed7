"""The parser and the values of what it reads, held against direct computation and against sympy."""

import cmath
import contextlib
import time
from fractions import Fraction

import pytest
import sympy  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.math.algebra import to_sympy
from groupwise.rewards.math.latex import MAX_CHARS, Node, parse_latex
from groupwise.rewards.math.latex_values import ALL_POINTS, TooLarge, Undefined, evaluate, variable_at


def _tree(text: str) -> Node:
    tree = parse_latex(text)
    assert tree is not None, text
    return tree


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1+2*3", 7),
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("2-3-4", -5),
        ("12/2/3", 2),
        ("2 \\cdot -3", -6),
        ("--3", 3),
        ("\\frac12", Fraction(1, 2)),
        ("\\frac{1}2", Fraction(1, 2)),
        ("\\dfrac 3 4", Fraction(3, 4)),
        ("6\\frac34", Fraction(27, 4)),
        ("-6\\frac{3}{4}", Fraction(-27, 4)),
        ("2(3+4)", 14),
        ("2\\left(3+4\\right)5", None),
        ("\\sqrt{16}", 4),
        ("\\sqrt9", 3),
        ("\\sqrt[3]{27}", 3),
        ("\\sqrt[3]{-8}", -2),
        ("8^{1/3}", 2),
        ("4^{-\\frac12}", Fraction(1, 2)),
        ("5!", 120),
        ("\\binom{5}{2}", 10),
        ("|-3|", 3),
        ("|{-3}|\\cdot|2|", 6),
        ("\\lvert 1-4 \\rvert", 3),
        ("2^{10}", 1024),
        ("2^1 0", None),
        ("1{,}234", 1234),
        ("1,234", 1234),
        ("1,\\!234", 1234),
        ("0.25", Fraction(1, 4)),
        (".5", Fraction(1, 2)),
        ("\\left .5", Fraction(1, 2)),
        ("50\\%", 50),
        ("\\$3.50", Fraction(7, 2)),
        ("90^\\circ", 90),
        ("90^{\\circ}", 90),
        ("5.", 5),
        ("1 2", None),
        ("1/2x", None),
        ("x^2^3", None),
        ("5!!", None),
        ("\\sin (x)^2", None),
        ("1+", None),
        ("(1", None),
        ("\\frac{1}", None),
        ("1..2", None),
        ("", None),
        ("\\sum_{k=1}^3 k", None),
        ("\\int x", None),
        ("hello world", None),
        ("\\text{even}", None),
        ("9" * 31, None),
        ("1" + "+1" * MAX_CHARS, None),
        ("(" * 50 + "1" + ")" * 50, None),
        ("\\begin{pmatrix} 1 & 2 \\\\ 3 \\end{pmatrix}", None),
        ("\\begin{vmatrix} 1 & 2 \\\\ 3 & 4 \\end{vmatrix}", None),
        ("\x00", None),
        ("\ud800", None),
    ],
)
def test_rational_values(text: str, expected: Fraction | int | None) -> None:
    tree = parse_latex(text)
    if expected is None:
        assert tree is None
    else:
        assert tree is not None
        value = evaluate(tree, 0)
        assert isinstance(value, Fraction)
        assert value == expected


@pytest.mark.parametrize(
    "text",
    [
        *("\\sqrt{2}+\\pi", "3\\pi^2", "e^{2}", "2+3i", "\\frac{1}{1+i}", "x^2+3x-\\frac{1}{x}", "\\sqrt{x^2+y^2}"),
        *("\\sin 2x", "\\sin x \\cos y", "\\cos^2 x", "\\tan^{-1} x", "\\log_2 x", "\\ln(1+x^2)", "2^x", "x_1 + x_2"),
        *("\\sin 30^\\circ", "\\cot x + \\sec x - \\csc y", "\\arctan(x/3)", "|x-5|", "\\frac{x+1}{(x+2)(x+3)}"),
        *("e^{i\\theta}", "\\exp(x)", "x^{2/3}", "\\sqrt[4]{x}", "-x^2", "2\\sqrt3\\pi", "abc", "\\alpha\\beta"),
    ],
)
def test_values_agree_with_sympy(text: str) -> None:
    tree = _tree(text)
    expression = to_sympy(tree)
    for point in ALL_POINTS:
        names = {symbol: sympy.sympify(variable_at(symbol.name, point)) for symbol in expression.free_symbols}
        expected = complex(expression.subs(names).evalf())
        assert cmath.isclose(complex(evaluate(tree, point)), expected, rel_tol=1e-9), point


_LEAVES = st.integers(0, 40).map(lambda number: (str(number), Fraction(number)))


def _sum(pair: tuple[tuple[str, Fraction], tuple[str, Fraction]]) -> tuple[str, Fraction]:
    (one, value), (other, second) = pair
    return f"\\left({one} + {other}\\right)", value + second


def _difference(pair: tuple[tuple[str, Fraction], tuple[str, Fraction]]) -> tuple[str, Fraction]:
    (one, value), (other, second) = pair
    return f"({one}-{other})", value - second


def _product(pair: tuple[tuple[str, Fraction], tuple[str, Fraction]]) -> tuple[str, Fraction]:
    (one, value), (other, second) = pair
    return f"{one} \\cdot {other}", value * second


def _quotient(pair: tuple[tuple[str, Fraction], tuple[str, Fraction]]) -> tuple[str, Fraction]:
    (one, value), (other, second) = pair
    return (f"\\frac{{{one}}}{{{other}}}", value / second) if second else (f"({one})", value)


def _square(item: tuple[str, Fraction]) -> tuple[str, Fraction]:
    return f"({item[0]})^{{2}}", item[1] ** 2


_EXPRESSIONS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(_sum),
        st.tuples(inner, inner).map(_difference),
        st.tuples(inner, inner).map(_product),
        st.tuples(inner, inner).map(_quotient),
        inner.map(_square),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(_EXPRESSIONS)
def test_arithmetic_agrees_with_fractions(expression: tuple[str, Fraction]) -> None:
    text, expected = expression
    tree = parse_latex(text)
    if tree is None:
        assert len(text) > MAX_CHARS or text.count("(") + text.count("{") > 8
    else:
        assert evaluate(tree, 0) == expected


@pytest.mark.parametrize(
    ("text", "kind", "name", "num_args"),
    [
        ("1, 2, \\text{ and } 3", "list", "", 3),
        ("1,2 or 3", "list", "", 3),
        ("(1, 2)", "tuple", "()", 2),
        ("[1, \\infty)", "tuple", "[)", 2),
        ("\\left( 1, 2 \\right]", "tuple", "(]", 2),
        ("\\langle 1, 2\\rangle", "tuple", "<>", 2),
        ("\\{1, 2\\}", "set", "", 2),
        ("\\emptyset", "set", "", 0),
        ("\\varnothing", "set", "", 0),
        ("\\{\\}", "set", "", 0),
        ("(1,2) \\cup [3,4]", "union", "", 2),
        ("x \\in (1,2)", "relation", "=", 2),
        ("y = 2x", "relation", "=", 2),
        ("1 < x \\le 2", "relation", "< <=", 3),
        ("\\begin{pmatrix} 1 & 2 & 3 \\\\ 4 & 5 & 6 \\end{pmatrix}", "matrix", "2x3", 6),
        ("\\begin{bmatrix} 1 \\\\ 2 \\\\ \\end{bmatrix}", "matrix", "2x1", 2),
        ("40_9", "numeral", "40", 1),
        ("-40_{9}", "numeral", "-40", 1),
        ("1 \\pm \\sqrt{2}", "list", "", 2),
        ("0, 1 \\pm \\sqrt{2}", "list", "", 3),
        ("f(x) = x + 1", "relation", "=", 2),
        ("f(x+1)", "application", "f", 1),
        ("h(h+1)", "product", "", 2),
    ],
)
def test_shapes(text: str, kind: str, name: str, num_args: int) -> None:
    tree = _tree(text)
    assert (tree.kind, tree.name, len(tree.args)) == (kind, name, num_args)


@pytest.mark.parametrize(
    "text",
    [
        *("9^{9^{9^{9}}}", "(10^9)!", "\\binom{10^9}{5}", "\\sqrt{10^{5000}+1}", "10^{10^{10}}", "171!", "2^{5000}"),
        *("((9^{99})^{99})^{99}", "x^{100000}", "e^{10000}", "(-1)^{99999999}", "\\binom{1001}{2}", "\\pi^{999999999}"),
        "(10^{1000})(10^{1000})",
    ],
)
def test_what_is_large_is_not_computed(text: str) -> None:
    started = time.process_time()
    with pytest.raises(TooLarge):
        evaluate(_tree(text), 0)
    assert time.process_time() - started < 5.0


@pytest.mark.parametrize("text", ["1/0", "\\frac{1}{1-1}", "\\ln 0", "0^{-1}", "\\infty-\\infty", "(-1)!", "0.5!"])
def test_what_has_no_value(text: str) -> None:
    with pytest.raises(Undefined):
        evaluate(_tree(text), 0)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            [
                *"0123456789+-*/^_=<>()[]{},;:!|'&.xyefi ",
                *("\\frac", "\\sqrt", "\\pi", "\\{", "\\}", "\\sin", "\\pm", "\\cup", "\\infty", "\\le", "10^9"),
                *("\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "\\text{and}"),
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_any_text_is_read_or_not(text: str) -> None:
    tree = parse_latex(text)
    if tree is not None and tree.is_scalar:
        with contextlib.suppress(Undefined, TooLarge):
            evaluate(tree, 0)


def test_points_do_not_depend_on_the_run() -> None:
    assert variable_at("x", 0) == Fraction(variable_at("x", 0).numerator, 307)  # type: ignore[union-attr]
    assert len({variable_at(name, point) for name in ("x", "y", "z") for point in ALL_POINTS}) == 15
