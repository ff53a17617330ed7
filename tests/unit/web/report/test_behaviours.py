"""The signs of reasoning: what counts, what does not, and that looking around anchors finds what a search finds."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from groupwise.web.report.behaviours import BEHAVIOURS, behaviours_in, normal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Let me check: 3 + 4 = 7.", {"verifies"}),
        ("We double-check the sum. I\u2019ll verify it.", {"verifies"}),
        ("Plugging this back into the equation", {"verifies"}),
        ("Wait, that is 12.", {"backtracks"}),
        ("So 5. But wait - no.", {"backtracks"}),
        ("Hmm. That doesn\u2019t work", {"backtracks"}),
        ("I made a mistake above.", {"backtracks"}),
        ("Alternatively, take 8.", {"explores"}),
        ("Let's try a different pair.", {"explores"}),
        ("LET ME START OVER.", {"restarts"}),
        ("I'll try again from scratch", {"restarts"}),
        ("Wait. Let me check. Alternatively, let's start over.", {"verifies", "backtracks", "explores", "restarts"}),
    ],
)
def test_signs(text: str, expected: set[str]) -> None:
    assert behaviours_in(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "They wait for an hour, and the waiter paid by cheque.",
        "A checkered board has 64 squares.",
        "She walked over the bridge, and again over the road.",
        "Each ticket costs a different price.",
        "The wrong door",
    ],
)
def test_words_of_a_story_are_no_signs(text: str) -> None:
    assert behaviours_in(text) == frozenset()


FRAGMENTS = ["wait", "wait,", "but", "let me", "check", "double-", "double-check", "verify", "start", "over", "again"]
FRAGMENTS += [
    "try",
    "another",
    "way",
    "hmmmm",
    "that's",
    "wrong",
    "i made a",
    "mistake",
    "error",
    "doesn't",
    "work",
    "or",
]
FRAGMENTS += [
    "plugging it",
    "back",
    ".",
    "\n",
    "what",
    "if",
    "maybe",
    "from",
    "scratch",
    "that",
    "alternatively",
    "x" * 60,
]


@example(["another", *["wait"] * 5, "wait,", "but", "let me", ".", "alternatively", "wait"], "")
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30), st.sampled_from([" ", "", "  "]))
def test_around_the_anchors_is_as_good_as_everywhere(words: list[str], separator: str) -> None:
    text = separator.join(words)
    slow = {behaviour.name for behaviour in BEHAVIOURS if behaviour.regex.search(normal(text))}
    assert behaviours_in(text) == slow


@pytest.mark.parametrize("unit", ["over ", "wait", "check check: ", " ", "let me try ", "n't work"])
def test_time_is_linear(unit: str) -> None:
    start = time.process_time()
    behaviours_in(unit * (200_000 // len(unit)))
    assert time.process_time() - start < 3
