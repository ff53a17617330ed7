from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from groupwise.config import ConfigError
from groupwise.models.tiny import (
    DEFAULT_SIZES,
    MARKUP_TOKENS,
    PAD_TOKEN,
    ROLE_TOKENS,
    START_TOKEN,
    STOP_TOKEN,
    make_tiny,
    make_tokenizer,
)

TOKENIZER = make_tokenizer()
SPECIAL = (PAD_TOKEN, START_TOKEN, STOP_TOKEN, *ROLE_TOKENS)
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_layers": 2}

pieces = st.one_of(st.text(), st.sampled_from((*MARKUP_TOKENS, *SPECIAL, "<|", "|>", "<think", " <answer> ")))


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=6).map("".join))
@example("\x00\x7f\n\r\n\t  two  spaces , and . dots 'll n't")
@example("👩‍👩‍👧‍👦 é e\u0301 \u2028 \ufeff \U0010ffff")
def test_any_text_round_trips(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_plain_text_is_its_utf8_bytes(text: str) -> None:
    if any(token in text for token in (*MARKUP_TOKENS, *SPECIAL)):
        return
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text


def test_markup_is_one_token_that_survives_decoding_and_special_tokens_do_not() -> None:
    for text in MARKUP_TOKENS:
        ids = TOKENIZER.encode(text)
        assert len(ids) == 1
        assert TOKENIZER.decode(ids, skip_special_tokens=True) == text
    for text in SPECIAL:
        ids = TOKENIZER.encode(text)
        assert len(ids) == 1
        assert TOKENIZER.decode(ids, skip_special_tokens=True) == ""


def test_half_a_character_decodes_to_the_replacement_character() -> None:
    assert TOKENIZER.decode(list("é".encode())[:1]) == "\ufffd"


def test_stop_and_padding_are_different_tokens() -> None:
    assert TOKENIZER.eos_token == STOP_TOKEN
    assert TOKENIZER.pad_token == PAD_TOKEN
    assert TOKENIZER.eos_token_id != TOKENIZER.pad_token_id
    assert len(TOKENIZER) == 256 + len(MARKUP_TOKENS) + len(SPECIAL)


def test_chat_template_spends_two_tokens_per_message() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1 = ?"}]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|><|system|>Be brief.<|im_end|><|user|>1 + 1 = ?<|im_end|><|assistant|>"
    ids = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert len(ids) == 1 + 2 + len("Be brief.") + 2 + len("1 + 1 = ?") + 1


def test_saved_tokenizer_reads_back_the_same(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "a<think>b</think> , ok .<|im_end|>\x00"
    assert again.encode(text) == TOKENIZER.encode(text)
    assert again.decode(again.encode(text)) == text
    assert again.chat_template == TOKENIZER.chat_template
    assert (again.eos_token, again.pad_token, again.bos_token) == (STOP_TOKEN, PAD_TOKEN, START_TOKEN)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
def test_seed_alone_moves_the_weights(name: str) -> None:
    first, _ = make_tiny(name, SMALL, seed=1)
    torch.rand(7)
    same, _ = make_tiny(name, SMALL, seed=1)
    other, _ = make_tiny(name, SMALL, seed=2)
    weights, others = same.state_dict(), other.state_dict()
    for key, weight in first.state_dict().items():
        assert torch.equal(weight, weights[key])
    assert not torch.equal(first.model.layers[0].mlp.up_proj.weight, others["model.layers.0.mlp.up_proj.weight"])


def test_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    make_tiny("tiny-qwen3", SMALL, seed=1)
    assert torch.equal(torch.rand(4), expected)


def test_defaults_and_architectures() -> None:
    qwen, tokenizer = make_tiny("tiny-qwen3", {}, seed=0)
    assert qwen.lm_head.weight is qwen.model.embed_tokens.weight
    assert qwen.config.hidden_size == DEFAULT_SIZES["hidden_size"]
    assert qwen.config.max_position_embeddings == DEFAULT_SIZES["context_tokens"]
    assert qwen.config.vocab_size == len(tokenizer)
    assert qwen.config.eos_token_id == qwen.generation_config.eos_token_id == tokenizer.eos_token_id
    assert qwen.dtype == torch.float32
    assert not qwen.training
    llama, _ = make_tiny("tiny-llama", SMALL, seed=0)
    assert llama.lm_head.weight is not llama.model.embed_tokens.weight
    assert len(llama.model.layers) == 2


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"model\.path = 'tiny-qwen': .*did you mean 'tiny-qwen3'"):
        make_tiny("tiny-qwen", {}, seed=0)
    with pytest.raises(ConfigError, match=r"model\.tiny\.hiden_size: unknown key; did you mean 'hidden_size'"):
        make_tiny("tiny-qwen3", {"hiden_size": 64}, seed=0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden_size": 130}, r"hidden_size = 130: .*130 / 4 = 32\.50; use 128"),
        ({"hidden_size": 2}, r"hidden_size = 2: .*2 / 4 = 0\.50; use 4"),
        ({"hidden_size": 60}, r"hidden_size = 60: .*60 / 4 heads = 15; use 64"),
        ({"num_heads": 4, "num_kv_heads": 3}, r"num_kv_heads = 3: .*4 / 3 = 1\.33; use one of 1, 2, 4"),
        ({"num_layers": 0}, r"num_layers = 0: must be at least 1; the default is 4"),
    ],
)
def test_impossible_sizes_show_the_arithmetic(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.tiny\." + message):
        make_tiny("tiny-llama", sizes, seed=0)
