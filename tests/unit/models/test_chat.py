from __future__ import annotations

from typing import Any

import pytest

from groupwise.config import ConfigError
from groupwise.models.chat import Pieces, Prompts, check_fits, encode_completion, set_template_options
from groupwise.models.tiny import make_tokenizer
from groupwise.types import Message, Problem, Prompt

TOKENIZER = make_tokenizer()


def make_problem(content: str, problem_id: str = "p") -> Problem:
    return Problem(id=problem_id, messages=(Message("user", content),), answer="2")


def test_prompt_ends_where_the_assistant_begins() -> None:
    problem = make_problem("1 + 1 = ?")
    prompt = Prompts(TOKENIZER)[problem]
    assert prompt.problem is problem
    assert all(type(token_id) is int for token_id in prompt.token_ids)
    assert TOKENIZER.decode(list(prompt.token_ids)) == "<|im_start|><|user|>1 + 1 = ?<|im_end|><|assistant|>"


THINKING = "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}{{ style | default('plain') }}"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "<think>plain"),
        ({"enable_thinking": True}, "<think>plain"),
        ({"enable_thinking": False}, "plain"),
        ({"style": 'a "quoted" \\ name', "enable_thinking": False}, 'a "quoted" \\ name'),
        ({"style": 3}, "<think>3"),
    ],
)
def test_options_of_a_template_are_written_into_it(options: dict[str, Any], expected: str) -> None:
    tokenizer = make_tokenizer()
    for template in (THINKING, {"default": THINKING, "other": "nothing"}):
        tokenizer.chat_template = template
        set_template_options(tokenizer, options, "a model")
        prompt = Prompts(tokenizer)[make_problem("1 + 1 = ?")]
        assert tokenizer.decode(list(prompt.token_ids)) == expected


def test_an_option_that_the_template_does_not_read_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = THINKING
    with pytest.raises(ConfigError, match=r"options\.enable_thinkin: the chat template of a model does not use"):
        set_template_options(tokenizer, {"enable_thinkin": False}, "a model")
    assert tokenizer.chat_template == THINKING


def test_a_completion_decodes_to_its_text_and_ends_with_the_stop_token() -> None:
    text = "<think> a , b .  c 'm\n</think><answer>2</answer>"
    ids = encode_completion(TOKENIZER, text, TOKENIZER.eos_token_id)
    assert ids[-1] == TOKENIZER.eos_token_id
    assert ids.count(TOKENIZER.eos_token_id) == 1
    assert TOKENIZER.bos_token_id not in ids
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text


def test_prompt_and_completion_together_are_the_template_of_the_whole_conversation() -> None:
    prompt = Prompts(TOKENIZER)[make_problem("1 + 1 = ?")]
    completion = encode_completion(TOKENIZER, "2", TOKENIZER.eos_token_id)
    messages = [{"role": "user", "content": "1 + 1 = ?"}, {"role": "assistant", "content": "2"}]
    assert [*prompt.token_ids, *completion] == TOKENIZER.apply_chat_template(messages, return_dict=False)


@pytest.mark.parametrize(
    "text", ["<think> a , b .  c 'm\n</think>", "naïve 東京 🎲🎲 \U0001f468\u200d\U0001f469 end", "", " "]
)
def test_pieces_are_the_text_token_by_token(text: str) -> None:
    ids = encode_completion(TOKENIZER, text, TOKENIZER.eos_token_id)
    pieces = Pieces(TOKENIZER).of(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text + TOKENIZER.eos_token
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_that_is_never_completed_stays_a_mark() -> None:
    dice = TOKENIZER.encode("🎲", add_special_tokens=False)
    assert len(dice) > 1
    broken = [*dice[:-1], *TOKENIZER.encode("ab", add_special_tokens=False)]
    pieces = Pieces(TOKENIZER).of(broken)
    assert len(pieces) == len(broken)
    assert "".join(pieces) == TOKENIZER.decode(broken)
    assert pieces[-2:] == ("a", "b")


def test_the_longest_prompt_must_leave_room() -> None:
    prompts = [Prompt(make_problem("", name), (1,) * length) for name, length in (("a", 5), ("long", 30), ("b", 7))]
    check_fits(prompts, max_new_tokens=70, context_tokens=100)
    check_fits([], max_new_tokens=70, context_tokens=10)
    message = r"max_new_tokens = 71: .* 30 tokens \(problem 'long'\), 30 \+ 71 = 101 > 100 .*to 70 or less"
    with pytest.raises(ConfigError, match=message):
        check_fits(prompts, max_new_tokens=71, context_tokens=100)
    with pytest.raises(ConfigError, match=r"30 \+ 1 = 31 > 30 .*the prompt alone leaves no room"):
        check_fits(iter(prompts), max_new_tokens=1, context_tokens=30)
