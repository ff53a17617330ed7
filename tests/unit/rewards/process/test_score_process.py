"""Steps of a completion and the arithmetic written in them: what is found, what is true, what is left alone."""

import random
import re
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rewards.process.score_process import MAX_EQUATIONS, arithmetic_score, arithmetic_steps, split_steps
from tests.real_data import read_rows, shipped_or_full

SIZE = 60_000

TRUE = (
    *("1 + 1 = 2", "48/2 = 24", "2 * 3 + 4 = 10", "2 + 3 * 4 = 14", "(2 + 3) * 4 = 20", "100 - 50 - 30 - 15 = 5"),
    *(
        "8 / 2 / 2 = 2",
        "5 × 3 = 15",
        "6 ÷ 2 = 3",
        "2 · 3 = 6",
        "7 − 10 = -3",
        "10 – 3 = 7",
        "-3 + 5 = 2",
        "3 + -5 = -2",
    ),
    *(
        r"2 \times 3 = 6",
        r"2 \cdot 3 = 6",
        r"6 \div 3 = 2",
        r"\frac{1}{2} + \frac{1}{4} = \frac{3}{4}",
        r"\frac12 * 4 = 2",
    ),
    *(r"\dfrac{2 + 4}{3} = 2", r"$\left(1 + 2\right) \times 3 = 9$", r"6 \text{ apples} \times 2 = 12 \text{ apples}"),
    *("3 apples * 2 = 6 apples", "$5 × 3 = $15", r"\$5 * 3 = \$15", "2 hours * 60 minutes/hour = 120 minutes"),
    *("$5/hour * 3 hours = $15", "5 cm * 4 cm = 20 cm^2", "120-page book / 2 = 60 pages", "5kg + 2kg = 7kg"),
    *("1,000 + 2 = 1,002", r"1{,}000 \div 10 = 100", "1 000 000 / 10 = 100 000", ".5 + .25 = 0.75", "0.1 + 0.2 = 0.3"),
    *(
        "10/3 = 3.33",
        "10/3 = 3.3",
        "2/3 = 0.67",
        "2/3 = 0.666...",
        "10/3 ≈ 3",
        "12345 * 1 ≈ 12300",
        r"10/3 \approx 3.33",
    ),
    *(
        "20% of 50 = 10",
        "1/2 of 48 = 24",
        "5/20 = 25%",
        "5/20*100 = 25%",
        "100% - 30% = 70%",
        "1/3 = 33%",
        "200 * 10% = 20",
    ),
    *("50 cents * 4 = $2", "50 cents + 20 cents = 70 cents", "2 dozen * 3 = 72", "2 dozen eggs + 1 dozen = 3 dozen"),
    *(
        "12 x 2 = 24",
        "2x50=100",
        "3 apples x 2 = 6",
        "2 x (3 + 4) = 14",
        "(1 + 2)x3 = 9",
        "3(4+5) = 27",
        "(1+2)(3+4) = 21",
    ),
    *("2^3 = 8", "2**3 = 8", "5² = 25", "2 1/2 * 2 = 5", "2½ × 2 = 5", r"2\frac{1}{2} \times 2 = 5", "3 / 1/4 = 12"),
    *("3 plus 4 equals 7", "120 divided by 12 equals 10", "10 = 3 + 7", "**3 + 4 = 7**", "- 3 + 4 = 7", "* 3 * 4 = 12"),
    *(
        "(3 + 4 = 7)",
        "1. 3 + 4 = 7",
        "2) 3 + 4 = 7",
        "Total: 3 + 4 = 7.",
        "3 + 4 = 7!",
        "3 + 4 = 7 - that is all",
        "x = 3 + 4 = 7",
    ),
    *(
        "3 + 4\n= 7",
        "3 + 4 =\n7",
        r"3 + 4 &= 7",
        r"3 + 4 = \boxed{7}",
        "The cost of 3 apples = 3 * 2 = 6",
        "1 + 1 == 2",
    ),
    *("\\cfrac{5}{4} \\cdot\n\\cfrac{5}{4} = \\cfrac{25}{16}", r"2\left(1 + 2\right) = 6", r"9 = 3\left(1 + 2\right)"),
    *(
        "0.333... + 1 = 1.333...",
        "5 kg * 2 = 10 kg",
        "3 GB + 1 GB = 4 GB",
        "3 + 4 = 7 (as we saw)",
        r"3 + 4 = 7 \boxed{7}",
    ),
    *("[3 + 4] * 2 = 14", "4 / 3 = 1 and 1/3", "She sold 6+6 = 12 in 4 days.", "`1 + 1 = 2`", "16 - 9 = 7 < 8"),
)
FALSE = (
    *(
        "1 + 1 = 3",
        "10/3 = 3",
        "10/3 = 3.34",
        "2/3 = 0.66",
        "10/3 ≈ 4",
        "5/0 = 0",
        "3 apples * 2 = 7 apples",
        "5/20 = 26%",
    ),
    *(
        "2 + 3 * 4 = 20",
        "-3 + 5 = 8",
        "8 / 4 / 2 = 4",
        "1,000 + 2 = 1002.5",
        r"\frac{1}{2} + \frac{1}{4} = \frac{2}{6}",
    ),
    *(
        "3 + 4 = 7 + 2",
        "2^3 = 6",
        "20% of 50 = 25",
        "<<1+1=3>>",
        "50 cents * 4 = $3",
        "1 + 1 ≈ 3",
        "1.5 + 1.5 = 3.1",
        "7 = 3 + 3",
    ),
)
NOT_ARITHMETIC = (
    *(
        "x + 3 + 4 = 10",
        "2x + 3 = 7",
        "2a + 3b = 7",
        "5A - 5 = 30",
        "y = 2 * 3 + x",
        "3 + 4 = 7x",
        "3 + 4 = x + 7",
        "3 + x = 7",
    ),
    *(
        "x^2 + 5 = 9",
        "a2 + 3 = 5",
        "x_1 + 3 = 5",
        "f(3) + 1 = 9",
        "sqrt(16) + 1 = 9",
        r"\sqrt{16} + 3 = 9",
        "√16 + 3 = 9",
        r"2 \pi + 1 = 9",
    ),
    *(
        "5! + 1 = 9",
        "17 mod 5 + 1 = 9",
        "5 squared + 1 = 9",
        "17 / 5 = 3 remainder 2",
        "3:30 - 1:15 = 2:45",
        "0900 - 0130 = 0930",
    ),
    *(
        "1.2.3 + 1 = 9",
        "13,2000 / 60 = 9",
        "1e3 + 1 = 9",
        "(2 + x) * 3 = 9",
        "3 * (about 3 + 4) = 9",
        "cost - 3 - 2 = 9",
        "25 friends + his 1 cat + 2 = 28",
        "(7 * V) + (4 * 5) = 69",
    ),
    *(
        "1 hour = 60 minutes",
        "1/2 cup = 4 ounces",
        "2/3 of the tank = 16 gallons",
        "5 = 5",
        "3 + 4 ≠ 8",
        "3 + 4 >= 8",
        "3 + 4 => 8",
        "3 + 4",
    ),
    *(
        "1/2 (68) + 10 = 44",
        "24 - 2xy = 36",
        "2cd + 56 = 0",
        "2^{3}(5) = 2^{3}7",
        r"\frac{1}{2}AB = 9",
        r"1 + \ldots + 10 = 9",
        "1 + 2 + ... + 10 = 9",
        "7!(1 + 8) = 9",
        "A(-4) + 6 = 9",
        r"3 \& 5 + 1 = 9",
        "3 @ 5 + 1 = 9",
        r"1000/550 = 1.\overline{81}",
        r"100 \div 12 = 8 \text{ R} 4",
        "2 + 4 = 2 (1 + 2 + x)",
        "2 + 4 = 2 (1 + 2)",
        "5 650 000 - 1 = 9",
        "50 * 50 = 2 500",
        "3/3 - 2/3 = 1/3 of $150",
        "= 7",
        "",
        "٣ + ٤ = ٩",
        "9^9^9^9 = 1",
    ),
)


@pytest.mark.parametrize("text", TRUE)
def test_true(text: str) -> None:
    assert [step.is_true for step in arithmetic_steps(text)] == [True]


@pytest.mark.parametrize("text", FALSE)
def test_false(text: str) -> None:
    assert [step.is_true for step in arithmetic_steps(text)] == [False]


@pytest.mark.parametrize("text", NOT_ARITHMETIC)
def test_not_arithmetic(text: str) -> None:
    assert arithmetic_steps(text) == ()


def test_a_chain_has_a_step_for_each_sign() -> None:
    steps = arithmetic_steps("So 2 * 3 + 4 = 6 + 4 = 11. Also 1+1=2; x = 5.")
    assert [(step.text, step.is_true) for step in steps] == [
        ("2 * 3 + 4 = 6 + 4", True),
        ("6 + 4 = 11", False),
        ("1+1=2", True),
    ]


def test_the_calculators_notes_count_beside_the_line_around_them() -> None:
    steps = arithmetic_steps("She sold 48/2 = $<<48/2=25>>24 in May.\nThen 48+24 = <<48+24=72>>72.")
    assert [step.is_true for step in steps] == [True, False, True, True]
    assert steps[1].text == "48/2=25"


def test_score_is_the_share_of_true_ones() -> None:
    assert arithmetic_score(["1 + 1 = 2", "no arithmetic", "2 + 2 = 5 and 3 * 3 = 9", "4 - 1 = 3"]) == 0.75
    assert arithmetic_score(["There are two apples."]) is None
    assert arithmetic_score([]) is None


def test_steps_are_sentences_and_lines() -> None:
    completion = (
        "<think>1. We have 3.5 apples. Mr. Smith has 4!\n\n2) So 3 + 4\n   = 7; done.</think>\n<answer>7</answer>"
    )
    assert split_steps(completion) == ("1. We have 3.5 apples.", "Mr. Smith has 4!", "2) So 3 + 4 = 7", "done.")


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "  \n ",
        "<answer>1 + 2</answer>",
        "#### 7",
        "\\boxed{7}",
        "$$\\boxed{7}.$$",
        "**\\boxed{7}**",
        "---\n***",
        "1.",
    ],
)
def test_an_answer_alone_has_no_steps(completion: str) -> None:
    assert split_steps(completion) == ()


def test_a_sentence_with_a_box_is_a_step() -> None:
    assert split_steps("So 3 + 4 = \\boxed{7}.\n#### 7") == ("So 3 + 4 = \\boxed{7}.",)


# --- against an oracle: an expression is built together with its value ---

numbers = st.builds(
    lambda whole, decimals, digits: (
        (f"{whole}.{digits:0{decimals}d}"[: len(str(whole)) + 1 + decimals], decimals) if decimals else (str(whole), 0)
    ),
    st.integers(0, 999),
    st.integers(0, 2),
    st.integers(0, 99),
).map(lambda pair: (pair[0], Fraction(pair[0]), 3))


def _joined(
    left: tuple[str, Fraction, int], operator: str, right: tuple[str, Fraction, int]
) -> tuple[str, Fraction, int]:
    """Text, value and precedence (3 atom, 2 product, 1 sum); brackets only where they are needed."""
    own = 1 if operator in "+-" else 2
    if operator == "/" and right[1] == 0:
        operator, own = "+", 1
    text = [
        part[0] if part[2] > own or (part[2] == own and is_left) else f"({part[0]})"
        for part, is_left in ((left, True), (right, False))
    ]
    a, b = left[1], right[1]
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else a}[operator]
    return f"{text[0]} {operator} {text[1]}", value, own


expressions = st.recursive(
    numbers, lambda inner: st.builds(_joined, inner, st.sampled_from("+-*/"), inner), max_leaves=8
).filter(lambda expression: expression[2] < 3)


@given(expressions, st.integers(-3, 3))
def test_random_expressions(expression: tuple[str, Fraction, int], error: int) -> None:
    text, value, _ = expression
    claimed = value + error
    sides = f"{claimed.numerator}" if claimed.denominator == 1 else f"({claimed.numerator} / {claimed.denominator})"
    (step,) = arithmetic_steps(f"{text} = {sides}")
    assert step.is_true == (error == 0)


@given(expressions, st.integers(1, 4))
def test_rounding_to_the_digits_shown(expression: tuple[str, Fraction, int], decimals: int) -> None:
    text, value, _ = expression
    unit = Fraction(1, 10**decimals)
    nearest = round(value / unit) * unit
    for offset in (-2, 0, 2):
        shown = nearest + offset * unit
        sign, whole = "-" if shown < 0 else "", abs(shown) // 1
        digits = f"{sign}{whole}.{int((abs(shown) - whole) / unit):0{decimals}d}"
        (step,) = arithmetic_steps(f"{text} = {digits}")
        assert step.is_true == (offset == 0), digits


@given(st.text(alphabet="0123456789+-*/=(){}[]<>^.,%$ \nxabof½²≈\\!\ud800", max_size=60))
def test_never_raises(text: str) -> None:
    for step in arithmetic_steps(text):
        assert step.text
    score = arithmetic_score(split_steps(text))
    assert score is None or 0 <= score <= 1


HOSTILE = {
    "sums": "1+" * (SIZE // 2) + "1 = 5",
    "products": "9*" * (SIZE // 2) + "9 = 1",
    "quotients": "1/7+" * (SIZE // 4) + "1 = 2",
    "chain": "1+1=" * (SIZE // 4) + "2",
    "equations": "1+1=2. " * (SIZE // 7),
    "notes": "<<1+1=2>>" * (SIZE // 9),
    "open notes": "<<" * (SIZE // 2) + "1+1=2",
    "open brackets": "(" * SIZE + "1+1=2",
    "brackets and breaks": "(" * (SIZE // 3) + "=." * (SIZE // 3),
    "nested": "(" * (SIZE // 2) + "1" + ")" * (SIZE // 2) + " + 1 = 2",
    "fractions": "\\frac{1}{" * (SIZE // 9) + "1=1",
    "thousands": "1" + ",000" * (SIZE // 4) + "+1=1",
    "spaced thousands": "1" + " 000" * (SIZE // 4) + "+1=1",
    "digits": "9" * SIZE + "+1=2",
    "minuses": "-" * SIZE + "1+1=1",
    "stars": "*" * SIZE + "=",
    "equal signs": "=" * SIZE,
    "newlines": "\n" * SIZE + "=",
    "a newline and spaces": "\n" + " " * SIZE + "x",
    "spaces": "a" + " " * SIZE + "b = 1",
    "semicolons": " " * (SIZE // 2) + ";" + " " * (SIZE // 2),
    "backslashes": "\\" * SIZE + "=",
    "text macros": "\\text{" * (SIZE // 6) + "=",
    "open answers": "<answer>" * (SIZE // 8),
    "open boxes": "\\boxed{" * (SIZE // 7),
    "superscripts": "2" + "²" * SIZE + " + 1 = 4",
    "power tower": "9^" * (SIZE // 2) + "9 + 1 = 1",
    "big power": "999999^64 * 999999^64 = 1",
    "of": "1/2 of " * (SIZE // 7) + "2=1",
    "NUL": "\x00" * SIZE + "1+1=2",
    "lone surrogates": "\ud800" * 1000 + "1+1=3",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_takes_linear_time(text: str) -> None:
    started = time.process_time()
    assert len(arithmetic_steps(text)) <= MAX_EQUATIONS
    split_steps(text)
    assert time.process_time() - started < 5.0  # about 1 s at worst; quadratic would be minutes


def test_values_that_grow_without_end_are_left_out() -> None:
    assert [step.is_true for step in arithmetic_steps("9*" * 99 + "9 = 1")] == [False]
    assert arithmetic_steps("9*" * 499 + "9 = 1") == ()
    assert arithmetic_steps("2^64 = 2^64")[0].is_true
    assert arithmetic_steps("2^65 = 2^65") == ()
    assert arithmetic_steps("(" * 40 + "1 + 1" + ")" * 40 + " = 2") == ()


# --- real solutions ---


@pytest.mark.parametrize("path", shipped_or_full("gsm8k.jsonl", "gsm8k/test.jsonl"))
def test_gold_solutions_are_true_and_corrupted_ones_are_not(path: Path) -> None:
    rows = read_rows(path)
    steps = [step for row in rows for step in arithmetic_steps(row["answer"])]
    assert len(steps) > 6 * len(rows)
    assert sum(step.is_true for step in steps) / len(steps) > 0.998
    generator = random.Random(0)
    caught = total = 0
    for row in rows:
        for line in re.sub("<<[^<>]*>>", "", row["answer"]).split("\n"):
            result = re.search(r"=\s*\$?([0-9]+)(?![0-9,./:])", line)
            if result is None or line.count("=") > 1 or [step.is_true for step in arithmetic_steps(line)] != [True]:
                continue
            wrong = int(result[1]) + generator.choice((-1, 1))
            total += 1
            found = arithmetic_steps(f"{line[: result.start(1)]}{wrong}{line[result.end(1) :]}")
            caught += [step.is_true for step in found] == [False]
    assert total > 2 * len(rows)
    assert caught / total > 0.99
