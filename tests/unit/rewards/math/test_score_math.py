"""The score of a completion: what is found, what it earns, and that the problem repeated earns nothing."""

import pytest

from groupwise.rewards.extract import AnswerMark
from groupwise.rewards.math.score_math import is_restated, is_right_answer, score_math
from groupwise.types import Verdict


@pytest.mark.parametrize(
    ("completion", "verdict", "correct", "box", "last_number"),
    [
        (r"so \boxed{12}", Verdict.CORRECT, 1.0, 0.1, 0.0),
        (r"first \boxed{11}, then \boxed{12}", Verdict.CORRECT, 1.0, 0.1, 0.0),
        (r"first \boxed{12}, then \boxed{11}", Verdict.WRONG, 0.0, 0.1, 0.0),
        (r"so \boxed{13}", Verdict.WRONG, 0.0, 0.1, 0.0),
        (r"\boxed{13} or rather 12", Verdict.WRONG, 0.0, 0.1, 0.1),
        ("it is 12", Verdict.UNPARSED, 0.0, 0.0, 0.1),
        ("it is 13", Verdict.UNPARSED, 0.0, 0.0, 0.0),
        ("see page 12", Verdict.UNPARSED, 0.0, 0.0, 0.1),
        (r"\boxed{}", Verdict.WRONG, 0.0, 0.1, 0.0),
        (r"\boxed{12", Verdict.UNPARSED, 0.0, 0.0, 0.1),
        ("", Verdict.UNPARSED, 0.0, 0.0, 0.0),
    ],
)
def test_score(completion: str, verdict: Verdict, correct: float, box: float, last_number: float) -> None:
    score = score_math("12", completion, "math/2")
    assert score.verdict is verdict
    assert score.parts == {"correct": correct, "box": box, "last_number": last_number}
    assert score.reward == pytest.approx(sum(score.parts.values()))
    assert score.verifier == "math/2"


@pytest.mark.parametrize(
    ("completion", "marks", "verdict", "box"),
    [
        ("FINAL: 12", ("final",), Verdict.CORRECT, 0.1),
        ("FINAL: 12", ("boxed",), Verdict.UNPARSED, 0.0),
        ("FINAL: 11 \\boxed{12}", ("boxed", "final"), Verdict.CORRECT, 0.1),
        ("\\boxed{12}\nFINAL: 11", ("final", "boxed"), Verdict.WRONG, 0.1),
        ("<answer>12</answer>", ("boxed", "tag"), Verdict.CORRECT, 0.1),
        ("it is 12", ("boxed", "number"), Verdict.CORRECT, 0.0),
        ("\\boxed{12} 13", ("boxed", "number"), Verdict.CORRECT, 0.1),
        ("\\boxed{12} 13", ("number", "boxed"), Verdict.WRONG, 0.1),
        ("#### 12", ("hashes", "number"), Verdict.CORRECT, 0.1),
    ],
)
def test_marks(completion: str, marks: tuple[AnswerMark, ...], verdict: Verdict, box: float) -> None:
    score = score_math("12", completion, "", marks=marks)
    assert (score.verdict, score.parts["box"]) == (verdict, box)


def test_what_was_looked_for_is_said() -> None:
    assert score_math("12", "none", "", marks=("boxed", "final")).detail == "no \\boxed{} and no FINAL:"
    detail = score_math("12", "\\boxed{\x1b[31m\n" + "9" * 500 + "}", "").detail
    assert len(detail) <= 80
    assert detail.isprintable()


@pytest.mark.parametrize(
    ("question", "gold", "answer", "is_right"),
    [
        (r"Simplify $\sqrt{50}$.", r"5\sqrt{2}", r"\sqrt{50}", False),
        (r"Simplify $\sqrt{50}$.", r"5\sqrt{2}", r"\sqrt {50}", False),
        (r"Simplify $\sqrt{50}$.", r"5\sqrt{2}", r"5\sqrt2", True),
        (r"Simplify $\sqrt{50}$.", r"5\sqrt{2}", r"\sqrt{2}\cdot 5", True),
        (r"Expand $(x+1)(x+2)$.", "x^2+3x+2", "(x+1)(x+2)", False),
        (r"Expand $(x+1)(x+2)$.", "x^2+3x+2", "2+3x+x^2", True),
        (r"Factor $x^2+3x+2$.", "(x+1)(x+2)", "x^2 + 3x + 2", False),
        (r"Factor $x^2+3x+2$.", "(x+1)(x+2)", "(x+2)(x+1)", True),
        (r"Reduce $\frac{15}{20}$.", r"\frac34", r"\dfrac{15}{20}", False),
        (r"Reduce $\frac{15}{20}$.", r"\frac34", "0.75", True),
        (r"Write 0.75 as a fraction.", r"\frac34", "0.75", False),
        (r"Write 10.75 as a fraction.", r"\frac34", "0.75", True),
        (r"Write 0.755 as a fraction.", r"\frac34", "0.75", True),
        (r"What is $2^{10}$?", "1024", "2^{10}", False),
        (r"What is $2^{10}$?", "2^{10}", "x = 2^{10}.", True),
        (r"Spin it. [asy]draw((0.75,1));[/asy] How likely?", r"\frac34", "0.75", True),
        (r"There are 5 ducks.", "5", "5.0", True),
        (r"There are 5.0 ducks.", "5", "5.0", True),
        (r"There are 1,000 ducks.", "1000", "1,000", True),
        (r"Find $x+1$.", "x+1", "x+1", True),
        ("", r"5\sqrt{2}", r"\sqrt{50}", True),
    ],
)
def test_the_problem_repeated_is_no_answer(question: str, gold: str, answer: str, is_right: bool) -> None:
    assert is_right_answer(gold, [answer], question) == is_right
    completion = f"\\boxed{{{answer}}}"
    assert (score_math(gold, completion, "", question=question).verdict is Verdict.CORRECT) == is_right


@pytest.mark.parametrize(
    ("gold", "completion", "is_right"),
    [
        ("1, 2", r"\boxed{2} and \boxed{1}", True),
        ("1, 2", r"$\boxed{1}$, so $\boxed{2}$", False),
        ("2", r"\boxed{1} and \boxed{2}", True),
        ("1", r"\boxed{1} and \boxed{2}", False),
        ("1", r"\boxed{1} and \boxed{1}", True),
    ],
)
def test_boxes_in_a_list_may_be_one_answer(gold: str, completion: str, is_right: bool) -> None:
    assert (score_math(gold, completion, "").verdict is Verdict.CORRECT) == is_right


def test_an_empty_answer_is_not_restated() -> None:
    assert not is_restated("x", "", "x")
    assert not is_restated("x", "$", "x")
