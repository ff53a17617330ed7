from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.expression import Expression, parse_expression, score_countdown
from groupwise.types import Verdict

NUMS, TARGET = [44, 19, 35], 98


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("44+(19+35)", 98, (44, 19, 35)),
        (" 44 + 19\n* 35 ", 44 + 19 * 35, (44, 19, 35)),
        ("8-3-2", 3, (8, 3, 2)),
        ("8/4/2", 1, (8, 4, 2)),
        ("1/3*3", 1, (1, 3, 3)),
        ("((1))+(2)", 3, (1, 2)),
        ("6 × 7 ÷ 2 − 1", 20, (6, 7, 2, 1)),
        ("007+1", 8, (7, 1)),
        ("1/(2-2)", None, (1, 2, 2)),
        ("(1/(2-2))*0+5", None, (1, 2, 2, 0, 5)),
    ],
)
def test_expressions(text: str, value: int | None, numbers: tuple[int, ...]) -> None:
    assert parse_expression(text) == Expression(None if value is None else Fraction(value), numbers)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "98", "(98)", "-98", "-3+5", "1+", "+1", "1 2", "1+2)", "(1+2", "()", "1+()", "2(3)", "(2)(3)"),
        *("1+2=3", "1.5+2", "1,000+2", "2^3", "9**9**9", "9//2", "x+1", "1+٣", "1e9+1", "__import__('os')", "1;2"),
        *("\x00", "1+\ud800", "(" * 33 + "1+2" + ")" * 33, "1+" * 300 + "1", "9" * 13 + "+1", "1\\times2"),
    ],
)
def test_what_is_not_an_expression(text: str) -> None:
    assert parse_expression(text) is None


Tree = int | tuple[str, Any, Any]
TREES = st.recursive(
    st.integers(0, 99), lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner), max_leaves=8
).filter(lambda tree: not isinstance(tree, int))


def _compute(tree: Tree) -> Fraction | None:
    if isinstance(tree, int):
        return Fraction(tree)
    operator, left, right = tree[0], _compute(tree[1]), _compute(tree[2])
    if left is None or right is None or (operator == "/" and right == 0):
        return None
    return {"+": Fraction.__add__, "-": Fraction.__sub__, "*": Fraction.__mul__, "/": Fraction.__truediv__}[operator](
        left, right
    )


def _write(tree: Tree) -> str:
    return str(tree) if isinstance(tree, int) else f"({_write(tree[1])} {tree[0]}{_write(tree[2])})"


def _leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else _leaves(tree[1]) + _leaves(tree[2])


@settings(deadline=None)
@given(TREES)
def test_values_are_those_of_fraction_arithmetic(tree: Tree) -> None:
    expression = parse_expression(_write(tree))
    assert expression == Expression(_compute(tree), tuple(_leaves(tree)))


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=2, max_size=7), st.data())
def test_precedence_is_python_s(numbers: list[int], data: st.DataObject) -> None:
    operators = data.draw(st.lists(st.sampled_from("+-*/"), min_size=len(numbers) - 1, max_size=len(numbers) - 1))
    written, ours = f"Fraction({numbers[0]})", str(numbers[0])
    for operator, number in zip(operators, numbers[1:], strict=True):
        written += f"{operator}Fraction({number})"
        ours += f"{operator}{number}"
    expression = parse_expression(ours)
    assert expression is not None
    assert expression.value == eval(written)  # our own text, never a model's


@pytest.mark.parametrize(
    ("answer", "verdict", "reward"),
    [
        ("44+(19+35)", Verdict.CORRECT, 1.0),
        ("44+19-35", Verdict.WRONG, 0.8 - 0.5 * 70 / 98),
        ("44*19+35", Verdict.WRONG, 0.1),  # further from 98 than 98
        ("44+19", Verdict.WRONG, 0.1),
        ("44+19+35+0", Verdict.WRONG, 0.1),
        ("98+0", Verdict.WRONG, 0.1),
        ("44+54", Verdict.WRONG, 0.1),
        ("44+44+10", Verdict.WRONG, 0.1),
        ("98", Verdict.UNPARSED, 0.0),
        ("44+19+35=98", Verdict.UNPARSED, 0.0),
        ("", Verdict.UNPARSED, 0.0),
    ],
)
def test_score(answer: str, verdict: Verdict, reward: float) -> None:
    score = score_countdown(NUMS, TARGET, f"<think>hm</think><answer>{answer}</answer>", "countdown/1")
    assert score.verdict is verdict
    assert score.reward == pytest.approx(reward)
    assert score.reward == pytest.approx(sum(score.parts.values()))
    assert sum(value > 0 for value in score.parts.values()) == (reward > 0)


def test_nothing_without_the_tag() -> None:
    assert score_countdown(NUMS, TARGET, "44+(19+35)", "").reward == 0.0
    assert score_countdown(NUMS, TARGET, "<answer>44+(19+35)", "").verdict is Verdict.UNPARSED


def test_nearness_falls_from_08_to_03_and_then_to_01() -> None:
    def reward(value: int) -> float:
        return score_countdown([value - 1, 1], 50, f"<answer>{value - 1}+1</answer>", "").reward

    assert reward(51) == pytest.approx(0.79)
    assert reward(75) == pytest.approx(0.55)
    assert reward(100) == pytest.approx(0.3)
    assert reward(101) == pytest.approx(0.1)
    assert score_countdown([3, 3], 0, "<answer>3*3</answer>", "").reward == pytest.approx(0.8 - 0.5 * 0.9)


def test_a_number_given_twice_must_be_used_twice() -> None:
    assert score_countdown([5, 5, 2], 12, "<answer>5+5+2</answer>", "").verdict is Verdict.CORRECT
    assert score_countdown([5, 5, 2], 7, "<answer>5+2</answer>", "").verdict is Verdict.WRONG


def test_an_exact_fraction_is_not_rounded_to_the_target() -> None:
    # 10^11 / (10^11 + 1) differs from 1 by 1e-11; in floating point times 3 and divided again it could be 1.
    big = 10**11
    score = score_countdown([big, big, 1], 1, f"<answer>{big}/({big}+1)</answer>", "")
    assert score.verdict is Verdict.WRONG
    assert score_countdown([1, 49, 49], 1, "<answer>1/49*49</answer>", "").verdict is Verdict.CORRECT
