"""Foreign text: shared, cut only with a sign, within the budget, and inert wherever it goes."""

import json

import pytest

from groupwise.base.harmless import cell, escape, json_block, visible
from groupwise.web.report.page import MAX_TEXT_CHARS, Texts

HOSTILE = "</script><!-- \x1b[31m \u202e \ud800 \u2028 &amp; \"quoted\" 'single' ]]>"


def test_json_in_a_page_cannot_leave_its_element_and_comes_back_as_it_was() -> None:
    block = json_block({HOSTILE: [HOSTILE]})
    assert "<" not in block
    block.encode("utf-8")
    assert json.loads(block) == {HOSTILE: [HOSTILE]}


def test_what_cannot_be_seen_is_shown() -> None:
    assert visible("a\x1b[31m\u202e\ud800\nb\tc") == "a⟨U+001B⟩[31m⟨U+202E⟩⟨U+D800⟩\nb\tc"
    assert escape("<b a='\x00'>") == "&lt;b a=&#x27;⟨U+0000⟩&#x27;&gt;"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx"])
def test_a_spreadsheet_sees_no_formula(text: str) -> None:
    assert str(cell(text)).startswith("'")
    assert cell("run-1") == "run-1"
    assert cell(-1.5) == -1.5


def test_the_same_text_is_kept_once() -> None:
    texts = Texts()
    assert [texts.add("a"), texts.add("b"), texts.add("a")] == [0, 1, 0]
    assert texts.all() == ["a", "b"]


def test_a_long_text_is_cut_with_a_sign() -> None:
    texts = Texts()
    texts.add("x" * MAX_TEXT_CHARS)
    texts.add("y" * (MAX_TEXT_CHARS + 5))
    whole, cut = texts.all()
    assert whole == "x" * MAX_TEXT_CHARS
    assert cut.startswith("y" * MAX_TEXT_CHARS + "\n\n[cut here: 5 of 200,005 characters")
    assert texts.num_cut == 1


def test_the_many_leave_room_for_the_few() -> None:
    texts = Texts(max_all_bytes=100, reserved_bytes=40)
    assert [texts.add(letter * 25, is_one_of_many=True) for letter in "abc"] == [0, 1, None]
    assert texts.add("d" * 40) == 2
    assert texts.add("e" * 40) is None
    assert texts.num_left_out == 2
    # What is written as six characters counts as six.
    assert Texts(max_all_bytes=100, reserved_bytes=0).add("<" * 17) is None
