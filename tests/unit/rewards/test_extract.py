import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.config.build import ConfigError
from groupwise.rewards.extract import (
    AnswerMark,
    after_final,
    after_hashes,
    check_marks,
    describe_missing,
    final_answer,
    last_boxed,
    last_fenced,
    last_number,
    last_tag,
    mark_answer,
)
from groupwise.rewards.numbers import NUMBER


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (r"so \boxed{5}", "5"),
        (r"first \boxed{3}, no: \boxed{5}.", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{6} then \fbox{7}", "7"),
        (r"\fbox{7} then \boxed{6}", "6"),
        (r"$x = \boxed 9$", "9"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a} then cut off \boxed{b", "a"),
        (r"\boxed{a}" + r" \boxed{b" * 6, "a"),
        (r"stray } and { before \boxed{4}", "4"),
        (r"\boxed{\boxed{6}}", "6"),
        (r"\boxed{}", ""),
        (r"\boxed{open", None),
        (r"\boxed 12", None),
        (r"\boxedfoo{12}", None),
        ("boxed{5}", None),
        (r"\\boxed{5}", None),
        (r"\\\boxed{5}", "5"),
        (r"\boxed{4} \\boxed{5}", "4"),
        ("", None),
    ],
)
def test_last_boxed(completion: str, expected: str | None) -> None:
    found = last_boxed(completion)
    assert (None if found is None else found.text) == expected


@pytest.mark.parametrize(
    ("completion", "listed"),
    [
        (r"\boxed{1}, \boxed{2} and $\boxed{3}$.", "1, 2, 3"),
        (r"$\boxed{(1,2)} \quad \text{or} \quad \boxed{(2,1)}$", "(1,2), (2,1)"),
        (r"\boxed{4}. So \boxed{1}; \boxed{2}", "1, 2"),
        (r"\boxed{1}" + "x" * 300 + r"\boxed{2}, \boxed{3}", "2, 3"),
        (r"\boxed{3} \boxed{5}", ""),
        (r"\boxed{3} = \boxed{5}", ""),
        (r"\boxed{3, \boxed{5}", ""),
        (r"\boxed{5}", ""),
    ],
)
def test_boxes_in_a_list(completion: str, listed: str) -> None:
    found = last_boxed(completion)
    assert found is not None
    assert found.listed == listed


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
@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "x", " "]), max_size=24).map("".join))
def test_last_boxed_agrees_with_the_slow_one(completion: str) -> None:
    found = last_boxed(completion)
    assert (None if found is None else found.text) == _last_boxed_slowly(completion)


def test_open_boxes_take_linear_time() -> None:
    started = time.process_time()
    for completion in ("\\boxed{" * 50_000, "\\boxed{" * 50_000 + "}", "\\" * 200_000 + "boxed{", "\\boxed{x" * 40_000):
        last_boxed(completion)
    assert time.process_time() - started < 10.0


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
        ("FINAL: 18", "18"),
        ("so\nFinal: 18\nFINAL: 19 \nbye", "19"),
        ("**Final answer:** $\\frac12$", "$\\frac12$"),
        ("**Final Answer**: 5", "5"),
        ("### Final answer: x = 5", "x = 5"),
        ("final answer:", ""),
        ("The final answer: 5", None),
        ("Finally: 5", None),
        ("final 5", None),
        ("semifinal: 5", None),
        ("", None),
    ],
)
def test_after_final(completion: str, expected: str | None) -> None:
    found = after_final(completion)
    assert (None if found is None else found.text) == expected


def test_lines_that_look_like_a_final_one_take_linear_time() -> None:
    started = time.process_time()
    for completion in ("*" * 200_000, " \n" * 100_000, "final answer " * 20_000, "FINAL:\n" * 30_000, "> " * 100_000):
        after_final(completion)
    assert time.process_time() - started < 10.0


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


NUMBERS = [
    ("it is 5.", "5"),
    ("from 3 to -4", "-4"),
    ("5-3", "3"),
    ("x = 1,234.50 dollars", "1,234.50"),
    ("1, 2, 3", "3"),
    ("1,2345", "2345"),
    ("a half is 1/2", "1/2"),
    ("The probability is 2/3.", "2/3"),
    ("It is $\\frac{2}{3}$.", "\\frac{2}{3}"),
    ("14{,}916 of them", "14{,}916"),
    ("it is .5", ".5"),
    ("wait...5", "5"),
    ("about 1e3.", "1e3"),
    ("1,234.", "1,234"),
    ("1 000 or so", "1 000"),
    ("2 1/2 hours", "2 1/2"),
    ("2½ hours", "2½"),
    ("$3 \\times 10^{4}$", "3 \\times 10^{4}"),
    ("3-4", "4"),
    ("it is −7.", "−7"),
    ("a loss of -$5", "-$5"),
    ("50%", "50"),
    ("none", None),
    ("on 2/3/4", None),
    ("version 1.2.3", None),
    ("at 12:30", None),
    ("٣", None),
]


@pytest.mark.parametrize(("completion", "expected"), NUMBERS)
@pytest.mark.parametrize(("before", "after"), [("", ""), ("7 ", " and so on" * 100), ("x" * 500, " " + "y" * 500)])
def test_last_number(completion: str, expected: str | None, before: str, after: str) -> None:
    found = last_number(f"{before} {completion}{after}")
    assert (None if found is None else found.text) == (expected or ("7" if before == "7 " else None))


def _last_number_slowly(completion: str) -> str | None:
    return next((found[0] for found in reversed(list(NUMBER.finditer(completion))) if not found["chain"]), None)


_WORDS = st.lists(st.sampled_from(["so", "a", "it is", "x=", "\n", "y" * 90]), min_size=1, max_size=12).map(" ".join)
_NUMBERS = st.sampled_from(
    ["7.", "2 1/2", "1 000", "1/2/3", "3 \\times 10^{4}", "\\frac 1 2", "-.5,", "12:30", "$1,000"]
)


@settings(deadline=None)
@given(st.lists(st.tuples(_WORDS, _NUMBERS), max_size=5), _WORDS)
def test_last_number_agrees_with_the_slow_one(parts: list[tuple[str, str]], end: str) -> None:
    completion = " ".join(word for part in parts for word in part) + " " + end
    found = last_number(completion)
    assert (None if found is None else found.text) == _last_number_slowly(completion)


@pytest.mark.parametrize(
    ("completion", "marks", "expected"),
    [
        ("#### 1\n\\boxed{2}", ("boxed", "hashes"), "2"),
        ("\\boxed{2}\n#### 1", ("boxed", "hashes"), "2"),
        ("\\boxed{2}\n#### 1", ("hashes", "boxed"), "1"),
        ("\\boxed{2}\n#### 1", ("tag", "hashes"), "1"),
        ("\\boxed{2", ("boxed", "hashes"), None),
        ("#### 1", ("boxed",), None),
        ("FINAL: 3\n<answer>4</answer> 5", ("final", "tag"), "3"),
        ("FINAL: 3\n<answer>4</answer> 5", ("tag", "final"), "4"),
        ("FINAL: 3\n<answer>4</answer> 5", ("boxed", "number"), "5"),
        ("FINAL: $\\boxed{3}$", ("final",), "3"),
        ("<answer>\\boxed{3}</answer>", ("tag",), "3"),
        ("neither", ("boxed", "hashes", "final", "tag", "number"), None),
    ],
)
def test_the_first_mark_that_is_there_decides(
    completion: str, marks: tuple[AnswerMark, ...], expected: str | None
) -> None:
    found = final_answer(completion, marks)
    assert (None if found is None else found.text) == expected


@pytest.mark.parametrize("mark", ["boxed", "hashes", "final", "tag", "number"])
def test_a_marked_answer_is_found_again(mark: AnswerMark) -> None:
    found = final_answer("12 and\n" + mark_answer(mark, "34"), (mark,))
    assert found is not None
    assert found.text == "34"
    assert mark == "number" or final_answer(mark_answer(mark, "34"), ("tag" if mark == "boxed" else "boxed",)) is None


def test_marks_are_checked() -> None:
    check_marks(("boxed", "final"))
    for marks in ((), ("boxed", "boxed"), ("box",)):
        with pytest.raises(ConfigError, match=r"answer_marks = \[.*\]: expected one or more of boxed, hashes"):
            check_marks(marks)  # type: ignore[arg-type]
    assert describe_missing(("boxed", "hashes")) == "no \\boxed{} and no ####"


SQL = frozenset(("sql",))


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("```sql\nSELECT 1\n```", "\nSELECT 1\n"),
        ("so\n```sql\na\n```\nno:\n```sql\nb\n```\nyes", "\nb\n"),
        ("```sql\na\n```\n```python\nb\n```", "\na\n"),
        ("```SQL\na\n```\n```\nb\n```", "\na\n"),
        ("```python\na\n```\n```\nb\n```", "\nb\n"),
        ("```sql\na\n```\n```sql\ncut off", "\na\n"),
        ("```sql\nforgotten\n```sql\nb\n```", "\nb\n"),
        ("```sql\na;```\nText", "\na;"),
        ("use ```sql a``` here", " a"),
        ("  ```sql\n  a\n  ```", "\n  a\n"),
        ("````sql\na\n````", "\na\n"),
        ("```SELECT 1```", "SELECT 1"),
        ("```a b```c", "a b"),
        ("```\nSELECT 1\n```and so on", "\nSELECT 1\n"),
        ("```python \na\n``` \n", " \na\n"),
        ("```sql\n```", "\n"),
        ("```sql\r\na\r\n```\r\n", "\r\na\r\n"),
        ("```sql", None),
        ("``a``", None),
        ("", None),
    ],
)
def test_last_fenced(completion: str, expected: str | None) -> None:
    assert last_fenced(completion, SQL) == expected


def test_a_fence_in_a_string_is_part_of_the_string() -> None:
    document = '{"code": "```py\\nx = \\"1\\"\\n```", "n": 1}'
    completion = f"```json\n{document}\n```"
    assert last_fenced(completion, frozenset(("json",)), skip_strings=True) == f"\n{document}\n"
    assert last_fenced(completion, frozenset(("json",))) != f"\n{document}\n"


@pytest.mark.parametrize("unit", ["```", "```sql\n", "```sql ", "```\n", " ", "\n", '```json\n"\\"', '```json\n"', "`"])
def test_fences_take_linear_time(unit: str) -> None:
    started = time.process_time()
    last_fenced(unit * (200_000 // len(unit)), SQL, skip_strings=True)
    last_fenced("```json\n" + unit * (200_000 // len(unit)), SQL, skip_strings=True)
    assert time.process_time() - started < 10.0
