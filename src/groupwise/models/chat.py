"""Conversion between text and token ids: problems to prompts, demonstrations to ids, and ids to the text of each token.

Token ids are authoritative: a rollout is trained on the ids that were sampled and never encoded again from its text.
Prompts are never truncated; a prompt that does not fit is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from groupwise.config.build import ConfigError
from groupwise.models.templates import template_of
from groupwise.types import Problem, Prompt

_INCOMPLETE = "\ufffd"
"""Character that decoding returns for an incomplete sequence of bytes."""


def set_template_options(tokenizer: Any, options: Mapping[str, Any], path: str) -> None:
    """Write options into the chat template, so they stay with the tokenizer."""
    if not options:
        return
    given = tokenizer.chat_template
    templates = given if isinstance(given, dict) else {"default": given}
    for name in options:
        if not any(re.search(rf"\b{re.escape(name)}\b", text) for text in templates.values()):
            raise ConfigError(
                f"model.chat_template_options.{name}: the chat template of {path} does not use this name; remove it"
            )
    # JSON's true, false, numbers and strings are valid in Jinja.
    opening = "".join(f"{{%- set {name} = {json.dumps(value)} %}}" for name, value in options.items())
    changed = {name: opening + text for name, text in templates.items()}
    tokenizer.chat_template = changed if isinstance(given, dict) else changed["default"]


class Prompts:
    """Encoded prompts: each problem's messages with the chat template, up to the start of the assistant's turn."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._template = template_of(tokenizer)
        self._by_id: dict[str, Prompt] = {}

    def __getitem__(self, problem: Problem) -> Prompt:
        return self.of([problem])[0]

    def of(self, problems: Sequence[Problem]) -> list[Prompt]:
        """Return the prompts of many problems, which is faster than one after the other."""
        new = list({problem.id: problem for problem in problems if problem.id not in self._by_id}.values())
        conversations = [
            ([{"role": message.role, "content": message.content} for message in problem.messages], True)
            for problem in new
        ]
        for problem, answer in zip(new, self._template.render(conversations), strict=True):
            text = self._template.text_of(answer, f"the messages of problem {problem.id!r}", problem.messages)
            self._by_id[problem.id] = Prompt(problem=problem, token_ids=encode_rendered(self._tokenizer, text))
        return [self._by_id[problem.id] for problem in problems]


def encode_rendered(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Encode what a chat template has written, which spells out the special tokens."""
    return tuple(int(token_id) for token_id in tokenizer(text, add_special_tokens=False)["input_ids"])


def encode_completion(tokenizer: Any, text: str, stop_id: int) -> tuple[int, ...]:
    """Return the ids of a demonstration's completion, with the stop token that ends a rollout.

    Special tokens spelled out in the text are encoded as such, so the text should not end with the stop token.
    """
    return (*tokenizer.encode(text, add_special_tokens=False), stop_id)


class Pieces:
    """The text of each token, special ones spelled out. Joined, they are the text of the completion.

    A token is decoded behind another token, because some tokenizers drop the space before the first one.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._anchor_text = self._decode(self._anchor)
        self._known: dict[int, str] = {}

    def of(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        pieces: list[str] = []
        open_ids: list[int] = []
        """Tokens of a character that is still incomplete."""
        for token_id in token_ids:
            piece = self._piece(token_id)
            pieces.append(piece)
            if _INCOMPLETE not in piece:  # and it cannot complete the tokens before it
                open_ids = []
                continue
            open_ids.append(token_id)
            text = self._text(open_ids)
            pieces[-len(open_ids) :] = [text, *[""] * (len(open_ids) - 1)]
            if not text.endswith(_INCOMPLETE):
                open_ids = []
        return tuple(pieces)

    def _piece(self, token_id: int) -> str:
        if token_id not in self._known:
            self._known[token_id] = self._text([token_id])
        return self._known[token_id]

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._decode([*self._anchor, *token_ids]).removeprefix(self._anchor_text)

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            token_ids,
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
            spaces_between_special_tokens=False,
        )
        return text


def check_fits(prompts: Iterable[Prompt], max_new_tokens: int, context_tokens: int) -> None:
    """Raise a ConfigError unless the longest prompt leaves room for the longest completion."""
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids), default=None)
    if longest is None:
        return
    length = len(longest.token_ids)
    if length + max_new_tokens <= context_tokens:
        return
    room = context_tokens - length
    fix = (
        f"lower max_new_tokens to {room} or less, or remove the long prompts"
        if room > 0
        else "the prompt alone leaves no room: shorten or remove it, or use a model with a longer context"
    )
    raise ConfigError(
        f"max_new_tokens = {max_new_tokens}: the longest prompt has {length} tokens (problem {longest.problem.id!r}), "
        f"{length} + {max_new_tokens} = {length + max_new_tokens} > {context_tokens} tokens of context; {fix}"
    )
