import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.format import excerpt, has_elements, is_single_element, score_copy
from groupwise.types import Verdict


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("<>/answer&;5 \n\t\x00\x0bé\ud800\U0001f600"), max_size=20))
def test_a_single_element_is_well_formed_xml(text: str) -> None:
    completion = f" <answer>{text}</answer>\n"
    if is_single_element(completion):
        element = ElementTree.fromstring(completion)
        assert element.tag == "answer"
        assert not len(element)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer>5</answer>", True),
        ("\n <answer> five </answer> ", True),
        ("<answer></answer>", True),
        ("so <answer>5</answer>", False),
        ("<answer>5</answer>.", False),
        ("<answer>5</answer><answer>5</answer>", False),
        ("<answer>a & b</answer>", False),
        ("<answer>\x00</answer>", False),
        ("<answer>\ud800</answer>", False),
        ("<answer>", False),
        ("<answer/answer>", False),
        ("", False),
    ],
)
def test_single_element(completion: str, expected: bool) -> None:
    assert is_single_element(completion) is expected


@pytest.mark.parametrize(
    ("completion", "verdict", "correct", "tag", "xml"),
    [
        ("<answer>42</answer>", Verdict.CORRECT, 1.0, 0.2, 0.1),
        ("it is <answer> 42 </answer>", Verdict.CORRECT, 1.0, 0.2, 0.0),
        ("<answer>24</answer>", Verdict.WRONG, 0.0, 0.2, 0.1),
        ("<answer>42 or 43</answer>", Verdict.UNPARSED, 0.0, 0.2, 0.1),
        ("<answer>42</answer><answer>43</answer>", Verdict.WRONG, 0.0, 0.2, 0.0),
        ("42", Verdict.UNPARSED, 0.0, 0.0, 0.0),
        ("<answer>42", Verdict.UNPARSED, 0.0, 0.0, 0.0),
    ],
)
def test_score_copy(completion: str, verdict: Verdict, correct: float, tag: float, xml: float) -> None:
    score = score_copy("42", completion, "format-copy/1")
    assert score.verdict is verdict
    assert score.parts == {"correct": correct, "tag": tag, "xml": xml}
    assert score.reward == pytest.approx(correct + tag + xml)


def test_excerpts_are_short_and_printable() -> None:
    shown = excerpt("a\x1b[31m\x00\ud800\n" * 1000)
    assert len(shown) <= 80
    assert shown.isprintable()
    shown.encode()


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>a</think><answer>b</answer>", True),
        ("  <think>a\n</think>\n\n<answer></answer>\n", True),
        ("<think>a<b>c</b></think><answer>1 < 2</answer>", True),
        ("x<think>a</think><answer>b</answer>", False),
        ("<think>a</think>x<answer>b</answer>", False),
        ("<think>a</think><answer>b</answer>x", False),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a</think>", False),
        ("<think>a<think>b</think><answer>c</answer>", False),
        ("<think>a</think></think><answer>c</answer>", False),
        ("<think>a<answer>c</answer></think>", False),
        ("</think><think><answer>c</answer>", False),
        ("", False),
    ],
)
def test_elements_once_each_in_order(completion: str, expected: bool) -> None:
    assert has_elements(completion, ("think", "answer")) is expected
