"""Which answers are the same: by rule, by value, by algebra. Bombs and cheats are answered by our own code, soon."""

import time
from fractions import Fraction
from itertools import pairwise

import pytest
import sympy.parsing.sympy_parser  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.math import equality
from groupwise.rewards.math.equality import Stage, is_equal, judge
from groupwise.rewards.math.latex import Node, parse_latex
from groupwise.rewards.math.latex_compare import compare
from groupwise.rewards.math.normalize import choice_of, normalize, split_unit

SAME_BOTH_WAYS = [
    ("5", "5"),
    ("5", "$5$"),
    ("5", "5."),
    ("5", "x = 5"),
    ("5", "AB = 5"),
    ("5", "f(3) = 5"),
    ("5", "\\theta = 5"),
    ("5", "{5}"),
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{2}", r"\dfrac12"),
    (r"\frac38", r"\dfrac 3 8"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"6 \frac{3}{4}", r"\frac{27}{4}"),
    (r"\frac{1 + \sqrt{5}}{2}", r"\tfrac{1+\sqrt5}{2}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
    (r"(\frac12, 3)", "(0.5, 3)"),
    (r"95^\circ", "95"),
    (r"95^{\circ}", r"95^\circ"),
    (r"25\%", "25"),
    (r"50\%", "0.5"),
    (r"\$4,\!000", "4000"),
    ("10{,}000", "10,000"),
    (r"10\,000", "10000"),
    (r"\text{Friday}", "friday"),
    (r"\text{(C)}", "C"),
    ("(C)", "C) 12"),
    ("C", r"\textbf{(C)}\ 12"),
    (r"4 \text{ feet}", "4"),
    (r"4 \text{ feet}", "4 feet"),
    (r"4 \text{ feet}", r"4\text{ ft}."),
    (r"15\mbox{ cm}^2", "15"),
    (r"15\mbox{ cm}^2", "15 square centimeters"),
    (r"15\text{ units}", r"15 \text{ cm}"),
    (r"2, 3, \text{ and } 4", "2,3,4"),
    ("-2, 1", "1, -2"),
    ("1/2, 3", "3, 0.5"),
    (r"\{1, 2\}", r"\{2,1\}"),
    (r"\{1, 2\}", "2, 1"),
    (r"\{\sqrt8\}", r"2\sqrt2"),
    ("(1,2),(3,4)", "(3,4),(1,2)"),
    (r"\emptyset", r"\varnothing"),
    (r"\emptyset", r"\{\}"),
    (r"x \in [1,\infty)", r"[1, \infty)"),
    (r"x \in (1,2)", "1 < x < 2"),
    ("x \\le 3", "x\\leq3"),
    ("x \\le 3", "3 \\ge x"),
    ("x > 2", "2x > 4"),
    ("x > 2", "(2, \\infty)"),
    ("x < 1 \\text{ or } x \\ge 2", "(-\\infty, 1) \\cup [2, \\infty)"),
    ("x \\ne 2", "(-\\infty, 2) \\cup (2, \\infty)"),
    ("40_9", "40_{9}"),
    ("x^2", "x^{2}"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"\begin{pmatrix} 1/2 \\ \sqrt{12} \end{pmatrix}", r"\begin{bmatrix} 0.5 \\ 2\sqrt{3} \end{bmatrix}"),
    ("2^{10}", "1024"),
    ("2^{-2}", "0.25"),
    (r"2\sqrt2", r"\sqrt8"),
    (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt{3}}"),
    ("x+1", "1+x"),
    ("x^2+3x+2", "(x+1)(x+2)"),
    (r"\frac{x}{2}", "0.5x"),
    (r"1.5\pi", r"\frac{3\pi}{2}"),
    (r"1 \pm \sqrt2", r"1-\sqrt2, 1+\sqrt2"),
    ("1-2i", "-2i+1"),
    ("y=2x+3", "2x+3"),
    ("y=2x+3", "y - 3 = 2x"),
    ("2x+3y=6", "4x+6y-12=0"),
    ("f(x)=x+1", "y=1+x"),
    ("3-2f(x)", "-2f(x)+3"),
    ("(-\\infty,1)\\cup(2,3]", "(2,3]\\cup(-\\infty,1)"),
    (r"\cos 13^\circ", r"\cos(13^\circ)"),
    (r"\frac{\sin x}{\cos x}", r"\tan x"),
    (r"\log\left(\frac{2007}{2006}\right)", r"\log 2007 - \log 2006"),
    (r"4^\circ, 20^\circ", "20, 4"),
    ("2^{2005}", r"2 \cdot 2^{2004}"),
    ("x=1, y=2", "y=2, x=1"),
    ("(1,2)", "(x,y) = (1,2)"),
    ("1, 2", "x_1 = 2, x_2 = 1"),
    ("-2, 3", "x = 3 \\text{ or } x = -2"),
    ("\\pm 3", "3, -3"),
    ("(-\\infty, \\infty)", "\\mathbb{R}"),
    ("\\text{No}", "no"),
    ("x \\leq 2", "x <= 2"),
    ("x \\ne 3", "x != 3"),
    ("x \\le 1", "-x \\ge -1"),
    ("x <= 1", "-x >= -1"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\left[\begin{array}{cc}1 & 2 \\ 3 & 4\end{array}\right]"),
    (r"\frac32", "1 1/2"),
    ("1000", "1 000"),
    ("1 1/2, 3", "3, 1.5"),
    ("2^6 3^5 5^4", r"2^6 \cdot 3^5 \cdot 5^4"),
    ("|AB| = \\sqrt8", "2\\sqrt2"),
    ("S_{MBCN}:S = 7:32", "7:32"),
    (r"\frac{NO}{BO}=\frac{1}{\sqrt{6}}", r"\frac{1}{\sqrt{6}}"),
    ("AB = 4, CD = 5", "4, 5"),
    ("0 < f(x) < 1", "(0, 1)"),
    (r"\pm 2021", "{-2021, 2021}"),
    (r"10^6\pi + 1", r"1 + 1000000\pi"),
]
SAME_ONE_WAY = [
    ("0.5", "0,5"),
    (r"\frac12", "0,5"),
    ("0.5", "0{,}5"),
    ("1.414", r"\sqrt2"),
    ("12.57", r"4\pi"),
    ("0.3333", r"\frac13"),
    (r"\frac{1}{1024}", r"\frac{1}{2^{10}}"),
    (r"\frac{1}{32}", r"\left(\frac{1}{2}\right)^5"),
    ("5", "(5)"),
    ("5", r"\{5\}"),
    (r"\sqrt{25}", "5"),
    ("x=1, y=2", "1, 2"),
    ("(C)", "c"),
    ("|AB| = 1", "1"),
    ("A:B = 1", "1"),
    (r"2.3148\times10^{-3}", r"\frac{1}{432}"),
]
DIFFERENT = [
    ("5", "6"),
    ("5", ""),
    ("", ""),
    ("5", "1=2=3=4=5"),
    ("5", "x=4=5"),
    ("0", "x = 0 = 0"),
    ("0", "1 = 0"),
    ("0", "x - x = 0"),
    ("x+1", "x+1=x+1=x+1"),
    ("a=b=2", "a=b=1+1"),
    ("12", "1 2"),
    ("1234", "1, 234"),
    ("15", "1{,}5"),
    ("5", "5, 6"),
    ("5", "50"),
    ("5", "-5"),
    ("5", "5x"),
    ("3", "3 pi"),
    ("3", r"3\pi"),
    ("3", r"3\text{ million}"),
    ("10 \\text{ m}", "10 \\text{ cm}"),
    ("10 m", "10 \\text{ cm}"),
    ("1 \\text{ m}", "100 \\text{ cm}"),
    ("15 \\text{ cm}^2", "15 \\text{ cm}^3"),
    ("0.0000001", "0.0000002"),
    ("10^{-7}\\pi", "2 \\cdot 10^{-7}\\pi"),
    (r"0.33", r"\frac13"),
    (r"0.25", r"\frac{16}{63}"),
    (r"\pi", r"\frac{355}{113}"),
    (r"\sqrt2", r"\frac{665857}{470832}"),
    ("y=\\sqrt{2}x", "y=1.41421356237x"),
    ("0.5", "0.5\\%"),
    ("x=5", "y=5"),
    (r"x \in [1,2]", r"y \in [1,2]"),
    ("x=1, y=2", "x=2, y=1"),
    ("x=1, y=2", "2, 1"),
    ("(x,y) = (1,2)", "(y,x) = (1,2)"),
    ("(x,y) = (1,2)", "(2,1)"),
    ("(1,2)", "(2,1)"),
    ("(1,2)", "[1,2]"),
    ("(1,2]", "(1,2)"),
    ("1,2", "(1,2)"),
    ("1, 1, 2", "1, 2, 2"),
    ("x", r"x\infty"),
    (r"\infty", r"-\infty"),
    ("40_9", "40"),
    ("40_9", "36"),
    ("40_9", "40_8"),
    (r"\text{even}", r"\text{odd}"),
    (r"\text{even}", "x+1"),
    ("x", r"\text{even}"),
    ("C", "D) 12"),
    ("(C)", "(A) or (C)"),
    ("(C)", "A) 1 B) 2 C) 3"),
    ("x < 2", "x > 2"),
    ("x < 2", "x \\le 2"),
    ("x < 2", "-x < -2"),
    ("y=2x", "y=3x"),
    ("2x+3y=6", "0=0"),
    ("2x+3y=6", "x=y"),
    (r"\sqrt{x^2}", "x"),
    (r"\frac{1}{x-1}", r"\frac{1}{0}"),
    ("x^2-1", "x^2+1"),
    ("2^{2005}", "2^{2004}"),
    (r"\frac{1}{2004!}", r"\frac{1}{2005!}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}"),
    ("x \\ge 2", "x <= 2"),
    ("AB = 4, CD = 5", "5, 4"),
    ("A + B = 1", "1"),
    ("2^6 3^5", "2^63^5"),
    *(
        (r"\pi", rf"\pi + {tiny}")
        for tiny in (
            "10^{-9}",
            "10^{-50}",
            "e^{-30}",
            "e^{-1000}",
            "(x/1000)^9",
            r"\frac{1}{20!}",
            r"(\sqrt2-\frac{99}{70})^3",
        )
    ),
    (r"\sqrt2", r"\sqrt2(1+10^{-12})"),
    (r"f(x) + \sqrt2", r"f(x) + \sqrt2 + 10^{-50}"),
    (r"y = x\sqrt2", r"y = x\sqrt2+10^{-12}"),
]
UNDONE = [
    ("5", "3+2"),
    ("5", r"\sqrt{25}"),
    ("6", r"2 \cdot 3"),
    ("120", "5!"),
    ("10", r"\binom{5}{2}"),
    (r"\frac12", r"\sin 30^\circ"),
    ("5", r"\sum_{k=1}^{5} 1"),
    (r"\frac12", r"\int_0^1 x \, dx"),
    ("1", r"\lim_{x \to 0} \frac{\sin x}{x}"),
    ("6", r"\prod_{k=1}^{3} k"),
    (r"\sqrt2", r"2 \sin 45^\circ"),
    (r"\frac{\pi}{4}", r"\arctan 1"),
    ("x^2", r"\int 2x \, dx"),
    (r"120\pi", r"5!\pi"),
]
BOMBS = [
    "9^{9^{9^{9}}}",
    "(10^9)!",
    "((((10!)!)!)!)!",
    r"\binom{10^9}{5 \cdot 10^8}",
    r"\sqrt{10^{5000}+1}",
    r"\sum_{k=1}^{10^9} k",
    r"\prod_{k=1}^{10^9} k",
    r"\{" + ",".join(map(str, range(3000))) + r"\}",
    r"\{" + ",".join(map(str, range(200))) + r"\}",
    ",".join(f"({n},{n}x)" for n in range(60)),
    "(" * 1000 + "1" + ")" * 1000,
    "(" * 190 + "1" + ")" * 190,
    "{" * 190 + "1" + "}" * 190,
    r"\frac{1}{" * 40 + "1" + "}" * 40,
    r"\sqrt{" * 50 + "2" + "}" * 50,
    "$ " * 50_000,
    "$ " * 490,
    "\\" * 900,
    "\\text{" * 150,
    "1=" * 400 + "1",
    "x^" * 190 + "x",
    "x!" * 190,
    "-" * 390 + "1",
    "|" * 390,
    "|x" * 190,
    "1," * 490,
    "10^{10^{10^{10}}} \\pi",
    "x^{99999}",
    "(x+1)^{99999}",
    "((x^{64})^{64})^{64}",
    "(x+y+z)^{64}(x+y)^{64}(x+z)^{64}",
    "9" * 999,
    "0." + "3" * 900,
    "e^{e^{e^{e^{e}}}}",
    r"\sin(" * 60 + "x" + ")" * 60,
]
GOLDS = [
    "5",
    r"\frac12",
    r"\sqrt2",
    "x^2+1",
    "(1,2)",
    r"\{1,2\}",
    r"\pi",
    "y=2x",
    r"\text{even}",
    "100!",
    r"\sin x",
    "C",
]


@pytest.mark.parametrize(("gold", "answer"), SAME_BOTH_WAYS)
def test_same(gold: str, answer: str) -> None:
    assert is_equal(gold, answer)
    assert is_equal(answer, gold)


@pytest.mark.parametrize(("gold", "answer"), SAME_ONE_WAY)
def test_same_for_this_gold(gold: str, answer: str) -> None:
    assert is_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(gold: str, answer: str) -> None:
    assert not is_equal(gold, answer)
    assert not is_equal(answer, gold)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\sqrt2", "1.41421356"),
        (r"\pi", "3.14159265358979323846"),
        (r"2\pi", "6.28"),
        (r"\frac13", "0.333333"),
        ("1.414", r"\infty"),
        ("1.414", r"10^{400}"),
        ("1.414", "1.4142"),
        ("1.414", r"\sqrt{2.001}"),
        ("1.414", r"\sqrt{3}"),
        ("1.41", r"\sqrt{2}"),
        ("1.414", r"\sqrt{2}x"),
        ("0.3333", "0.33333"),
        ("0.3333", r"\frac{334}{1000}"),
    ],
)
def test_decimals_are_exact(gold: str, answer: str) -> None:
    assert not is_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), UNDONE)
def test_a_computation_left_undone_is_no_answer(gold: str, answer: str) -> None:
    assert not is_equal(gold, answer)


def _refuse(_gold: Node, _answer: Node) -> bool:
    raise AssertionError("algebra was asked")


@pytest.mark.parametrize("bomb", BOMBS, ids=[bomb[:30] for bomb in BOMBS])
def test_bombs_never_reach_algebra(monkeypatch: pytest.MonkeyPatch, bomb: str) -> None:
    monkeypatch.setattr(equality, "is_same_by_algebra", _refuse)
    equality._judge.cache_clear()
    for gold in GOLDS:
        started = time.process_time()
        assert not is_equal(gold, bomb)
        assert time.process_time() - started < 5.0
        is_equal(bomb, gold)
    equality._judge.cache_clear()


@pytest.mark.parametrize(
    ("gold", "answer", "is_same", "stage"),
    [
        ("5", "5", True, "text"),
        (r"\frac12", r"\dfrac{1}{2} ", True, "text"),
        (r"\frac12", "0.5", True, "number"),
        ("5", "6", False, "number"),
        ("(1, 2)", "(1,2.0)", True, "items"),
        ("5", "2+3", False, "rule"),
        ("x+1", "x+2", False, "points"),
        ("x+1", "1+x", True, "points"),
        (r"\sqrt{2}", r"\sqrt{3}", False, "points"),
        (r"\sqrt{2}", r"\frac{99}{70}", False, "points"),
        (r"\sqrt{2}", "1.41421356", False, "points"),
        (r"\sqrt{12345678}+1", r"1+3\sqrt{1371742}", True, "algebra"),
        (r"\sqrt{12345678}+1", r"1+3\sqrt{1371743}", False, "algebra"),
        (r"\sqrt{12345678}+f(x)", r"f(x)+3\sqrt{1371742}", True, "algebra"),
        (r"x\sqrt{12345678}", r"3x\sqrt{1371742}", True, "algebra"),
        (r"(1, \sqrt{12345678})", r"(1, 3\sqrt{1371742})", True, "algebra"),
        (r"\sqrt{2}", r"\frac{1855077841}{1311738121}", False, "algebra"),
        (r"\sqrt{2}\pi", r"\frac{1855077841}{1311738121}\pi", False, "algebra"),
        (r"\ln x^2", r"2\ln x", False, "algebra"),
        (r"\sin x", r"\sin x \cdot \frac{\sin(\pi)}{\sin(\pi)}", False, "algebra"),
        (r"\ln(x^2)", r"2\ln|x|", True, "points"),
        (r"\sqrt[3]{x^3}", "x", True, "points"),
    ],
)
def test_what_decides(gold: str, answer: str, is_same: bool, stage: Stage) -> None:
    judgement = judge(gold, answer)
    assert (judgement.is_same, judgement.stage) == (is_same, stage)


def test_model_text_is_never_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """sympy's string evaluator is not reached, not even for the digits of a number, and not on the way to algebra."""

    def trip(*_: object, **__: object) -> None:
        raise AssertionError("text was evaluated")

    equality._judge.cache_clear()
    is_equal(r"\sqrt{12345678}", r"3\sqrt{1371742}")  # sympy evaluates texts of its own when parts of it are imported
    monkeypatch.setattr(sympy.parsing.sympy_parser, "eval_expr", trip)
    equality._judge.cache_clear()
    for gold, answer in pairwise([*(pair[0] for pair in SAME_BOTH_WAYS), "__import__('os').abort()", "f(exit())", "x"]):
        is_equal(gold, answer)
    assert judge(r"\sqrt{12345678}+1", r"1+3\sqrt{1371742}").stage == "algebra"


_PIECES = [
    *(
        "\\frac",
        "\\sqrt",
        "\\text",
        "\\{",
        "\\}",
        "\\pi",
        "\\cup",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        ",",
        "1",
        "23",
        ".",
        "x",
    ),
    *("=", "^", "_", " ", "-", "\\", "$", "%", "\\!", "/", "<", "|", "i", "+"),
]
_TEXTS = st.lists(st.sampled_from(_PIECES), max_size=14).map("".join)


@settings(deadline=None, max_examples=300)
@given(_TEXTS, _TEXTS)
def test_equality_is_total_and_reflexive(text: str, other: str) -> None:
    assert is_equal(text, other) in (True, False)
    assert is_equal(text, text) or text.strip() == ""


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=5), st.lists(st.integers(-3, 3), min_size=2, max_size=5))
def test_lists_are_multisets_and_tuples_are_not(one: list[int], other: list[int]) -> None:
    texts = [", ".join(f"\\frac{{{2 * item}}}{{2}}" for item in items) for items in (one, other)]
    assert is_equal(", ".join(map(str, one)), texts[1]) == (sorted(one) == sorted(other))
    assert is_equal(f"({', '.join(map(str, one))})", f"({texts[1]})") == (one == other)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-9, 9), min_size=3, max_size=3), st.lists(st.integers(-9, 9), min_size=3, max_size=3))
def test_polynomials_are_the_same_when_their_coefficients_are(one: list[int], other: list[int]) -> None:
    gold, answer = (f"{c}x^2 + ({b})x - (-({a}))" for a, b, c in (one, other))
    rewritten = f"x({other[2]}x + ({other[1]})) + ({other[0]})"
    trees = [parse_latex(text) for text in (gold, answer, rewritten)]
    for tree in trees[1:]:
        assert trees[0] is not None
        assert tree is not None
        assert compare(trees[0], tree, _refuse) == (one == other)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        *((text, "C") for text in ("C", "(C)", r"\text{(C)}", "C) 12", "C. 12", "(C) 12", r"\textbf{(C)}~12", "(c)")),
        *((text, "") for text in ("x", "12", "(A) or (C)", "CD", "A:B", "", "C+D", "P(A)", "A.5")),
    ],
)
def test_choices(text: str, letter: str) -> None:
    assert choice_of(text) == letter


@pytest.mark.parametrize(
    ("text", "body", "unit"),
    [
        (r"4 \text{ feet}", "4", "ft"),
        ("4 feet", "4", "ft"),
        (r"25 \, \text{km}", "25", "km"),
        (r"15\text{ cm}^2.", "15", "cm^2"),
        ("15 square inches", "15", "in^2"),
        (r"15 \text{ units}^2", "15", ""),
        (r"3 \text{ million}", r"3 \text{ million}", ""),
        (r"\text{Friday}", r"\text{Friday}", ""),
        (r"\frac{1}{2}", r"\frac{1}{2}", ""),
        ("60 miles per hour", "60", "mph"),
    ],
)
def test_units(text: str, body: str, unit: str) -> None:
    assert split_unit(text) == (body, unit)


def test_long_answers_are_compared_as_they_are() -> None:
    long = "1+" * 2000 + "1"
    assert is_equal(long, f" {long} ")
    assert not is_equal(long, long + " +1")
    assert normalize(long) == ""


def test_the_cache_does_not_confuse_pairs() -> None:
    for number in range(50):
        for other in range(50):
            text = f"\\frac{{{number}}}{{7}}"
            assert is_equal(text, f"\\frac{{{other}}}{{7}}") == (Fraction(number, 7) == Fraction(other, 7))
