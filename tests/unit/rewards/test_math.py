import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.math import is_equal, normalize, score_math
from groupwise.types import Verdict


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "5"),
        ("5", "$5$"),
        ("5", "5."),
        ("5", "x = 5"),
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
        (r"\$4,\!000", "4000"),
        ("10{,}000", "10,000"),
        (r"10\,000", "10000"),
        (r"\text{Friday}", "friday"),
        (r"\text{(C)}", "C"),
        (r"4 \text{ feet}", "4"),
        (r"4 \text{ feet}", "4 feet"),
        (r"15\mbox{ cm}^2", "15"),
        (r"2, 3, \text{ and } 4", "2,3,4"),
        ("-2, 1", "1, -2"),
        ("1/2, 3", "3, 0.5"),
        (r"\{1, 2\}", r"\{2,1\}"),
        ("(1,2),(3,4)", "(3,4),(1,2)"),
        (r"\emptyset", r"\varnothing"),
        (r"x \in [1,\infty)", r"[1, \infty)"),
        ("x \\le 3", "x\\leq3"),
        ("40_9", "40_{9}"),
        ("x^2", "x^{2}"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        ("2^{10}", "1024"),
    ],
)
def test_equal(gold: str, answer: str) -> None:
    assert is_equal(gold, answer)
    assert is_equal(answer, gold)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", "6"),
        ("5", ""),
        ("", ""),
        ("5", "1=2=3=4=5"),
        ("5", "x=4=5"),
        ("12", "1 2"),
        ("1234", "1, 234"),
        ("5", "5, 6"),
        ("5", "50"),
        ("5", "-5"),
        ("5", "5x"),
        ("3", "3 pi"),
        ("3", r"3\pi"),
        ("3", r"3\text{ million}"),
        ("10 \\text{ m}", "10 \\text{ cm}"),
        ("10 m", "10 \\text{ cm}"),
        ("0.0000001", "0.0000002"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "[1,2]"),
        ("(1,2]", "(1,2)"),
        ("1,2", "(1,2)"),
        ("1, 1, 2", "1, 2, 2"),
        ("x", r"x\infty"),
        ("40_9", "40"),
        (r"\text{even}", r"\text{odd}"),
        ("9", "3^{2^{1}}"),
    ],
)
def test_different(gold: str, answer: str) -> None:
    assert not is_equal(gold, answer)
    assert not is_equal(answer, gold)


_PIECES = [
    "\\frac",
    "\\sqrt",
    "\\text",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ",",
    "\\{",
    "\\}",
    "1",
    "23",
    ".",
    "x",
    "=",
    "^",
    "_",
]


@settings(deadline=None, max_examples=200)
@given(*[st.lists(st.sampled_from([*_PIECES, " ", "-", "\\", "$", "%", "\\!", "/"]), max_size=14).map("".join)] * 2)
def test_equality_is_total_symmetric_and_reflexive(text: str, other: str) -> None:
    assert is_equal(text, other) == is_equal(other, text)
    assert is_equal(text, text) or normalize(text) == ""


def test_long_answers_are_compared_as_they_are() -> None:
    long = "1+" * 2000 + "1"
    assert is_equal(long, f" {long} ")
    assert not is_equal(long, long + " +1")


@pytest.mark.parametrize(
    ("completion", "verdict", "correct", "box", "last_number"),
    [
        (r"so \boxed{12}", Verdict.CORRECT, 1.0, 0.1, 0.0),
        (r"so \boxed{13}", Verdict.WRONG, 0.0, 0.1, 0.0),
        (r"\boxed{13} or rather 12", Verdict.WRONG, 0.0, 0.1, 0.1),
        ("it is 12", Verdict.UNPARSED, 0.0, 0.0, 0.1),
        ("it is 13", Verdict.UNPARSED, 0.0, 0.0, 0.0),
        (r"\boxed{}", Verdict.WRONG, 0.0, 0.1, 0.0),
        ("", Verdict.UNPARSED, 0.0, 0.0, 0.0),
    ],
)
def test_score(completion: str, verdict: Verdict, correct: float, box: float, last_number: float) -> None:
    score = score_math("12", completion, "math/1")
    assert score.verdict is verdict
    assert score.parts == {"correct": correct, "box": box, "last_number": last_number}
    assert score.reward == pytest.approx(sum(score.parts.values()))
    assert score.verifier == "math/1"
