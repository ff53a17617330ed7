"""Rendering of chat templates. They come with a model and are programs, so they are not trusted.

Contract: a conversation is rendered as by `apply_chat_template` of transformers, in a process with limits on time and
memory. A template that does not end, asks for gigabytes or raises is an answer without a text. Only the templates
below are rendered in this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from groupwise.base.text_layout import shortened
from groupwise.config.build import ConfigError, require
from groupwise.types import Message
from groupwise.workers import Answer, Limits, Outcome, WorkerPool

FALLBACK_TEMPLATE = (
    "{{ bos_token if bos_token else '' }}"
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""Used if a tokenizer has no chat template, as with base models: `User: …`, a blank line, `Assistant:`."""
TINY_TEMPLATE = (
    "{{ '<|im_start|>' }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('role ' + message['role'] + ': must be system, user or assistant') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""That of the tiny models."""

LIMITS = Limits(seconds=1.0, memory_mb=1024)
"""For one conversation. Usual templates take less than a millisecond."""
TOTAL_S = 300.0
"""CPU time for all conversations."""

_SYNTAX_ERRORS = ("TemplateSyntaxError", "TemplateAssertionError")
_TOO_MUCH = ("MemoryError", "OverflowError", "RecursionError", "returned ")
_MEND = (
    "edit it in the model's folder (chat_template.jinja, or chat_template in tokenizer_config.json), or remove it: "
    "prompts are then written as `User: …`"
)


Conversation = tuple[Sequence[Mapping[str, str]], bool]
"""Messages, and whether they are followed by the start of the assistant's turn."""


@dataclass(frozen=True)
class Template:
    text: str
    names: tuple[tuple[str, str], ...]
    """The special tokens, which a template knows by name."""
    where: str
    """Begins the messages of errors."""

    def render(self, conversations: Sequence[Conversation]) -> Iterator[Answer]:
        """Yield the text of each conversation, or the reason why there is none."""
        if not conversations or self.text in (FALLBACK_TEMPLATE, TINY_TEMPLATE):
            yield from (_render_here(self, conversation) for conversation in conversations)
            return
        with WorkerPool(_render, 1, LIMITS) as pool:
            seconds = 0.0
            for job in pool.submit(self, conversations):
                for answer in pool.answers((job,)):  # the caller stops at an error
                    yield answer
                    seconds += answer.seconds
                    if seconds > TOTAL_S:
                        raise ConfigError(f"{self.where} takes more than {TOTAL_S:g} s for all prompts; {_MEND}")

    def check(self) -> None:
        """Refuse a template that is none, that goes beyond the limits, or that ignores the messages."""
        one, other, _ = probe(self)
        for answer in (one, other):
            if answer.outcome is not Outcome.RAISED or answer.detail.startswith((*_SYNTAX_ERRORS, *_TOO_MUCH)):
                self.text_of(answer)
        if one.outcome is Outcome.DONE and one.value == other.value:
            raise ConfigError(f"{self.where} ignores the messages: it writes the same for different ones; {_MEND}")

    def text_of(self, answer: Answer, of: str = "a message", messages: Sequence[Message] = ()) -> str:
        """Return the rendered text. Without one, raise a ConfigError that says why: `messages` were those `of` what."""
        if answer.outcome is Outcome.DONE:
            return str(answer.value)
        detail = shortened(answer.detail, 200)
        if detail.startswith(_SYNTAX_ERRORS):
            raise ConfigError(f"{self.where} has a syntax error ({detail}); {_MEND}")
        if answer.outcome is not Outcome.RAISED or detail.startswith(_TOO_MUCH):
            raise ConfigError(f"{self.where} goes beyond its limits of time and memory ({detail}); {_MEND}")
        fix = "write messages with the roles that it knows"
        if any(message.role == "system" for message in messages):
            fix = "if it knows no system role, leave task.options.system empty and put that text into the prompts"
        raise ConfigError(f"{self.where} refuses {of} ({detail}); {fix}")


def template_of(tokenizer: Any) -> Template:
    where = f"model.path = {tokenizer.name_or_path!r}: the model's chat template"
    try:
        text = tokenizer.get_chat_template()
    except ValueError as error:
        raise ConfigError(f"{where} is missing: {error}") from None
    require(isinstance(text, str), f"{where} is {text!r:.80}, which is no text; {_MEND}")
    return Template(text, tuple(tokenizer.special_tokens_map.items()), where)


@lru_cache
def probe(template: Template) -> tuple[Answer, ...]:
    """Render two different openings, and the first of them with the assistant's answer."""
    asked, other = ({"role": "user", "content": content} for content in "ab")
    answer = {"role": "assistant", "content": "b"}
    return tuple(template.render([([asked], True), ([other], True), ([asked, answer], False)]))


def _render(template: Template, conversation: Conversation) -> str:
    messages, is_open = conversation
    names = dict(template.names)
    ((text,), _) = render_jinja_template(
        [messages], chat_template=template.text, add_generation_prompt=is_open, **names
    )
    text.encode()  # raises for lone surrogates, which no tokenizer takes
    return str(text)


def _render_here(template: Template, conversation: Conversation) -> Answer:
    try:
        return Answer(Outcome.DONE, _render(template, conversation), "", 0.0)
    except (jinja2.TemplateError, UnicodeEncodeError) as error:
        return Answer(Outcome.RAISED, None, f"{type(error).__name__}: {error}", 0.0)
