"""From text to token ids: a problem becomes a prompt, a demonstration becomes the ids of its completion.

Token ids are the truth: a rollout is trained on the ids that were sampled and is never encoded again from its text.
Nothing here knows models or devices, and nothing cuts a prompt short: a prompt that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from groupwise.config.build import ConfigError
from groupwise.types import Problem, Prompt


def encode_prompt(tokenizer: Any, problem: Problem) -> Prompt:
    """The problem's messages through the chat template, up to where the assistant's turn begins."""
    messages = [{"role": message.role, "content": message.content} for message in problem.messages]
    # Without return_dict=False, transformers 5 answers with a BatchEncoding and not with the ids.
    token_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    return Prompt(problem=problem, token_ids=tuple(int(token_id) for token_id in token_ids))


def encode_completion(tokenizer: Any, text: str, stop_id: int) -> tuple[int, ...]:
    """The ids of a demonstration's completion, with the stop token that a rollout would have ended with.

    Special tokens spelled out in the text are encoded as those tokens: the text should not end with the stop token.
    """
    return (*tokenizer.encode(text, add_special_tokens=False), stop_id)


def check_fits(prompts: Iterable[Prompt], max_new_tokens: int, context_tokens: int) -> None:
    """ConfigError unless the longest prompt leaves room for the longest completion."""
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids), default=None)
    if longest is None:
        return
    length = len(longest.token_ids)
    if length + max_new_tokens <= context_tokens:
        return
    room = context_tokens - length
    fix = (
        f"lower max_new_tokens to {room} or less, or leave the long prompts out"
        if room > 0
        else "the prompt alone leaves no room: shorten it, leave it out, or take a model with a longer context"
    )
    raise ConfigError(
        f"max_new_tokens = {max_new_tokens}: the longest prompt has {length} tokens (problem {longest.problem.id!r}), "
        f"{length} + {max_new_tokens} = {length + max_new_tokens} > {context_tokens} tokens of context; {fix}"
    )
