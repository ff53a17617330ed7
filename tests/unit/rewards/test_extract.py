import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.extract import after_hashes, final_answer, last_boxed, last_number, last_tag


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (r"so \boxed{5}", "5"),
        (r"first \boxed{3}, no: \boxed{5}.", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"$x = \boxed 9$", "9"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a} then cut off \boxed{b", "a"),
        (r"stray } and { before \boxed{4}", "4"),
        (r"\boxed{\boxed{6}}", "6"),
        (r"\boxed{}", ""),
        (r"\boxed{open", None),
        (r"\boxed 12", None),
        ("boxed{5}", None),
        (r"\\boxed{5}", None),
        ("", None),
    ],
)
def test_last_boxed(completion: str, expected: str | None) -> None:
    found = last_boxed(completion)
    assert (None if found is None else found.text) == expected


def _last_boxed_slowly(completion: str) -> str | None:
    """Quadratic and obvious: from the last box to the first, the first one whose braces balance."""
    start = len(completion)
    while (start := completion.rfind("\\boxed{", 0, start)) >= 0:
        depth = 0
        for end in range(start + 6, len(completion)):
            depth += {"{": 1, "}": -1}.get(completion[end], 0)
            if depth == 0:
                return completion[start + 7 : end]
    return None


@settings(deadline=None)
@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "x", " "]), max_size=14).map("".join))
def test_last_boxed_agrees_with_the_slow_one(completion: str) -> None:
    found = last_boxed(completion)
    assert (None if found is None else found.text) == _last_boxed_slowly(completion)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [("#### 18", "18"), ("#### 1\n#### 2\nmore", "2"), ("##### 3", "3"), ("####", ""), ("### 3", None)],
)
def test_after_hashes(completion: str, expected: str | None) -> None:
    found = after_hashes(completion)
    assert (None if found is None else found.text) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer>5</answer>", "5"),
        ("<answer>5</answer> wait <answer>6</answer>", "6"),
        ("<answer>5</answer> wait <answer>6", "5"),
        ("<answer>5</answer></answer>", "5"),
        ("<answer><answer>5</answer>", "5"),
        ("</answer><answer>", None),
        ("</answer>5<answer>", None),
        ("<answer>5", None),
        ("5</answer>", None),
        ("<Answer>5</Answer>", None),
        ("", None),
    ],
)
def test_last_tag(completion: str, expected: str | None) -> None:
    found = last_tag(completion)
    assert (None if found is None else found.text) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("it is 5.", "5"),
        ("from 3 to -4", "-4"),
        ("5-3", "3"),
        ("x = 1,234.50 dollars", "1,234.50"),
        ("1, 2, 3", "3"),
        ("1,2345", "2345"),
        ("a half is 1/2", "1/2"),
        ("none", None),
        ("٣", None),
    ],
)
def test_last_number(completion: str, expected: str | None) -> None:
    assert last_number(completion) == expected


def test_final_answer_is_the_later_of_the_two() -> None:
    assert final_answer("#### 1\n\\boxed{2}") == (7, "2")
    assert final_answer("\\boxed{2}\n#### 1") == (10, "1")
    assert final_answer("neither") is None
