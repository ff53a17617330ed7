"""Tiny models and a tokenizer made in code, for tests, recipes and tutorials that download no weights.

`make_tiny` gives a randomly initialized Qwen3 or Llama decoder of any small size and a byte-level tokenizer: id b is
byte b, so every text can be encoded and decodes to itself. Besides the bytes:

    `<think>` `</think>` `<answer>` `</answer>`       whole tokens that stay in the decoded text
    `<|pad|>` `<|im_start|>` `<|im_end|>`             special: padding, start of text, end of a message (stop)
    `<|system|>` `<|user|>` `<|assistant|>`           special: who speaks

Conversations take few tokens, for models with a short context: one token at the start, and two around a message:

    <|im_start|><|user|>1 + 1 = ?<|im_end|><|assistant|>        ... the completion, ended by <|im_end|>

The weights are a function of (name, sizes, seed). The global random state is left unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from groupwise.config.build import ConfigError, nearest
from groupwise.models.templates import TINY_TEMPLATE

_ARCHITECTURES = {
    "tiny-llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False}),
    "tiny-qwen3": (Qwen3Config, Qwen3ForCausalLM, {"tie_word_embeddings": True}),
}
TINY_NAMES = tuple(_ARCHITECTURES)

DEFAULT_SIZES: Mapping[str, int] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_layers": 4,
    "num_heads": 4,
    "num_kv_heads": 2,
    "context_tokens": 512,
}

MARKUP_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
PAD_TOKEN, START_TOKEN, STOP_TOKEN = "<|pad|>", "<|im_start|>", "<|im_end|>"
ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>")


def make_tiny(name: str, sizes: Mapping[str, int], seed: int) -> tuple[Any, Any]:
    """Return (model, tokenizer). `sizes` overrides DEFAULT_SIZES. The model is in float32, on the CPU, in eval mode."""
    tokenizer = make_tokenizer()
    config = tiny_config(name, sizes, tokenizer)
    # Weights are sampled on the CPU from the global generator, whose state is restored afterwards.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model = _ARCHITECTURES[name][1](config)
    return model.to(torch.float32).eval(), tokenizer


def tiny_config(name: str, sizes: Mapping[str, int], tokenizer: Any) -> Any:
    """Return the configuration of a tiny model, in the form of transformers."""
    if name not in TINY_NAMES:
        raise ConfigError(f"model.path = {name!r}: no such tiny model; {nearest(name, TINY_NAMES)}")
    checked = _check_sizes(sizes)
    kind, _, form = _ARCHITECTURES[name]
    return kind(
        vocab_size=len(tokenizer),
        hidden_size=checked["hidden_size"],
        intermediate_size=checked["intermediate_size"],
        num_hidden_layers=checked["num_layers"],
        num_attention_heads=checked["num_heads"],
        num_key_value_heads=checked["num_kv_heads"],
        head_dim=checked["hidden_size"] // checked["num_heads"],
        max_position_embeddings=checked["context_tokens"],
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
        **form,
    )


def make_tokenizer() -> Any:
    """Return the byte-level tokenizer with its chat template."""
    vocabulary = {symbol: byte for byte, symbol in sorted(bytes_to_unicode().items())}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    # `normalized=False` matches the text exactly. Markup is not special, so decoding keeps it.
    backend.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP_TOKENS])
    backend.add_special_tokens(
        [
            AddedToken(text, normalized=False, special=True)
            for text in (PAD_TOKEN, START_TOKEN, STOP_TOKEN, *ROLE_TOKENS)
        ]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=START_TOKEN,
        eos_token=STOP_TOKEN,
        pad_token=PAD_TOKEN,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TINY_TEMPLATE
    return tokenizer


def _check_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    for key, value in sizes.items():
        if key not in DEFAULT_SIZES:
            raise ConfigError(f"model.tiny.{key}: unknown key; {nearest(key, DEFAULT_SIZES)}")
        if value < 1:
            raise ConfigError(f"model.tiny.{key} = {value}: must be at least 1; the default is {DEFAULT_SIZES[key]}")
    checked = {**DEFAULT_SIZES, **sizes}
    hidden, heads, kv_heads = checked["hidden_size"], checked["num_heads"], checked["num_kv_heads"]
    if hidden % heads:
        raise ConfigError(
            f"model.tiny.hidden_size = {hidden}: must be a multiple of num_heads = {heads}, "
            f"and {hidden} / {heads} = {hidden / heads:.2f}; use {hidden // heads * heads or heads}"
        )
    if (hidden // heads) % 2:
        raise ConfigError(
            f"model.tiny.hidden_size = {hidden}: the rotary embedding rotates pairs of values, so the size of a head "
            f"must be even, and {hidden} / {heads} heads = {hidden // heads}; use {hidden + heads}"
        )
    if heads % kv_heads:
        divisors = ", ".join(str(count) for count in range(1, heads + 1) if heads % count == 0)
        raise ConfigError(
            f"model.tiny.num_kv_heads = {kv_heads}: must divide num_heads = {heads}, "
            f"and {heads} / {kv_heads} = {heads / kv_heads:.2f}; use one of {divisors}"
        )
    return checked
