from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.numbers import decimal_comma, one_number, parse_number, same_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("72", 72),
        (" -5 ", -5),
        ("- 5", -5),
        ("−5", -5),
        ("+5", 5),
        ("007", 7),
        ("3.50", Fraction(7, 2)),
        (".5", Fraction(1, 2)),
        ("18.", 18),
        ("1,000,000", 1_000_000),
        ("10{,}000", 10_000),
        (r"4,\!000", 4000),
        (r"10\,000", 10_000),
        (r"\$7.50", Fraction(15, 2)),
        (r"25\%", 25),
        ("3/4", Fraction(3, 4)),
        ("2 1/2", Fraction(5, 2)),
        ("-2 1/2", Fraction(-5, 2)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"\frac34", Fraction(3, 4)),
        (r"6\frac{3}{4}", Fraction(27, 4)),
        (r"6 \tfrac34", Fraction(27, 4)),
        (r"-6\frac{3}{4}", Fraction(-27, 4)),
        ("2^{10}", 1024),
        ("2^5", 32),
        ("2^{-3}", Fraction(1, 8)),
        ("1e3", 1000),
        ("1.5e-3", Fraction(3, 2000)),
        (r"3 \times 10^{4}", 30_000),
        ("3 x 10^4", 30_000),
        ("2^10", 1024),
        ("1 000 000", 1_000_000),
        ("1 000/3", Fraction(1000, 3)),
        ("–5", -5),
        ("-$5", -5),
        ("½", Fraction(1, 2)),
        ("-2 ¾", Fraction(-11, 4)),
    ],
)
def test_numbers(text: str, expected: Fraction) -> None:
    assert parse_number(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "abc", "1+1", "1 2", "1,00", "1,2,3", "1/0", r"\frac{1}{0}", "5!", "x", "٣", "1_000", "0x10", "nan"),
        *(
            "inf",
            "1e999",
            "10^{99}",
            "9^{9^9}",
            "0^{-1}",
            "9**9",
            "9" * 65,
            r"6\frac{-3}{4}",
            "--5",
            "5-",
            "1.2.3",
            "2/3/4",
            "12:30",
            "1, 234",
            "1 0000",
            r"1\,2",
            "2 7/5",
            "1234567890" * 3 + "^{2}",
            "\x00",
        ),
        "\ud800",
    ],
)
def test_what_is_not_a_number(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18 dollars", 18),
        (r"5\text{ dollars}", 5),
        ("about 3.5 hours", Fraction(7, 2)),
        (".5 hours", Fraction(1, 2)),
        ("$1,200 a month", 1200),
        ("x = 18", 18),
        ("n=18 eggs", 18),
        ("1 = 18", None),
        ("x = y = 18", None),
        ("x = 17 = 18", None),
        ("2/3 of them.", Fraction(2, 3)),
        ("2 1/2 hours", Fraction(5, 2)),
        (r"about 14{,}916 ways", 14_916),
        ("1e3 grams", 1000),
        ("18-20 hours", None),
        ("on 2/3/2004", None),
        ("18 or 19", None),
        ("18 + 1 dollars", None),
        ("3 million", None),
        ("3 pi", None),
        (r"5\sqrt", None),
        ("dollars", None),
    ],
)
def test_one_number_among_words(text: str, expected: Fraction | None) -> None:
    assert one_number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,5", Fraction(1, 2)),
        ("-1,25", Fraction(-5, 4)),
        ("0{,}5", Fraction(1, 2)),
        ("$0,5$", Fraction(1, 2)),
        ("0,500", Fraction(1, 2)),
        *((text, None) for text in ("0.5", "1,2,3", "1,500", "1, 5", ",5", "5,", "", "1," + "5" * 100)),
    ],
)
def test_decimal_comma(text: str, expected: Fraction | None) -> None:
    assert decimal_comma(text) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("18", "18 eggs", True),
        ("18", "19", False),
        ("18", "many", None),
        ("0.5", "0,5", True),
        ("0.5", "0,6", None),
        ("1.5", "1,500", False),
        ("1500", "1,500", True),
        ("15", "1,5", None),
        ("5", "5,0", None),
        ("many", "18", False),
    ],
)
def test_same_number(gold: str, answer: str, expected: bool | None) -> None:
    assert same_number(gold, answer) is expected


@settings(deadline=None)
@given(st.fractions(max_denominator=10_000).filter(lambda value: abs(value) < 10**12))
def test_every_spelling_of_a_fraction_has_its_value(value: Fraction) -> None:
    sign = "-" if value < 0 else ""
    top, bottom = abs(value.numerator), value.denominator
    whole, rest = divmod(top, bottom)
    for text in (
        f"{value.numerator}/{bottom}",
        f"{sign}\\frac{{{top}}}{{{bottom}}}",
        f"{sign}{whole}\\frac{{{rest}}}{{{bottom}}}",
        f"{sign}{whole} {rest}/{bottom}",
    ):
        assert parse_number(text) == value


@settings(deadline=None)
@given(st.integers(-(10**15), 10**15))
def test_thousands_separators(value: int) -> None:
    assert parse_number(f"{value:,}") == parse_number(str(value)) == value


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_a_number_or_none(text: str) -> None:
    for value in (parse_number(text), one_number(text)):
        assert value is None or (isinstance(value, Fraction) and value.numerator.bit_length() < 600)
