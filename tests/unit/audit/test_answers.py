"""What is read from one completion."""

import time

import pytest

from groupwise.audit.answers import answer_marks, copied_share, read_completion

PROMPT = "A farmer has 12 cows and 30 hens, and he sells 7 of the cows on Monday. How many cows does he keep then?"


def test_marks_of_every_kind_in_order() -> None:
    text = "\\boxed{1} then <answer> 2 </answer>\n#### 3\n\\fbox{x^{2}}"
    assert [mark.text.strip() for mark in answer_marks(text)] == ["1", "2", "3", "x^{2}"]


def test_a_mark_in_a_mark_counts_once() -> None:
    assert [mark.text for mark in answer_marks("<answer>\\boxed{5}</answer>")] == ["\\boxed{5}"]
    assert [mark.text for mark in answer_marks("\\boxed{\\boxed{5}}")] == ["\\boxed{5}"]


@pytest.mark.parametrize("text", ["", "5", "\\boxed{5", "<answer>5", "\\boxed{ }", "\\\\boxed{5}", "####"])
def test_no_mark(text: str) -> None:
    assert answer_marks(text) == ()


def test_answers_that_differ_only_in_spaces_are_one() -> None:
    assert read_completion("", "\\boxed{1, 2} and \\boxed{1,2}").answers == ("1,2",)
    assert read_completion("", "\\boxed{1} and \\boxed{2}").answers == ("1", "2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{5}", False),
        ("The answer is \\boxed{5}.", False),
        ("<think></think><answer>5</answer>", False),
        ("12 - 7 = 5 \\boxed{5}", True),
        ("He had twelve and sold seven of them, so five are left: \\boxed{5}", True),
        ("<answer>1+2+3+4+5+6+7+8+9</answer>", False),
    ],
)
def test_reasoning(text: str, expected: bool) -> None:
    assert read_completion(PROMPT, text).has_reasoning is expected


def test_false_equations_but_not_those_of_the_answer() -> None:
    reading = read_completion(PROMPT, "12 - 7 = 6 and 1 + 1 = 2.\n<answer>1 + 1 = 3</answer>")
    assert (reading.num_equations, reading.false_equations) == (2, ("12 - 7 = 6",))


def test_words_after_the_answer_count_from_where_it_is_first_given() -> None:
    assert read_completion("", "So \\boxed{5}.").num_words_after == 0
    assert read_completion("", "\\boxed{4}? No: \\boxed{5} cows").num_words_after == 1
    assert read_completion("", "\\boxed{5} is it. Let me check again. \\boxed{5}").text_after.startswith("is it.")
    assert read_completion("", "<think>x</think><answer>5</answer></think>").num_words_after == 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("12", "12"),
        ("30 hens", "30 hens"),
        ("2", ""),
        ("1", ""),
        ("5", ""),
        ("7", "7"),
        ("How many cows", "How many cows"),
    ],
)
def test_restated(answer: str, expected: str) -> None:
    assert read_completion(PROMPT, f"\\boxed{{{answer}}}").restated == expected


def test_a_short_restated_answer_beside_reasoning_is_chance_and_a_long_one_is_not() -> None:
    reasoning = "Here 5 + 7 = 12, which is what the farmer had in the beginning. "
    assert read_completion(PROMPT, reasoning + "\\boxed{12}").restated == ""
    assert read_completion(PROMPT, reasoning + "\\boxed{12 cows and 30 hens}").restated == "12 cows and 30 hens"
    assert read_completion("It is 7.5 or 7,500.", "\\boxed{7}").restated == ""


def test_copied_share() -> None:
    assert copied_share(PROMPT, f"Question: {PROMPT.upper()}") == 1.0
    assert 0.4 < copied_share(PROMPT, PROMPT[: len(PROMPT) * 2 // 3]) < 0.8
    assert copied_share(PROMPT, "12 cows and 30 hens") == 0.0
    assert copied_share("too short", "too short") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 14_000 + "}" * 14_000,
        "<answer>" * 12_000,
        "#" * 100_000,
        "<answer>a</answer>" * 5000,
        "1 " * 50_000,
    ],
)
def test_hostile_completions_take_linear_time(text: str) -> None:
    started = time.process_time()
    read_completion("1 " * 20_000, text)
    assert time.process_time() - started < 5.0
