"""Chat templates: honest ones as transformers renders them, all others refused within seconds."""

import time
from typing import Any

import pytest

from groupwise.config import ConfigError, ModelConfig
from groupwise.models.chat import Prompts
from groupwise.models.load import prepare_template
from groupwise.models.templates import FALLBACK_TEMPLATE, TINY_TEMPLATE
from groupwise.models.tiny import make_tokenizer
from groupwise.types import Message, Problem

CHATML = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\n' }}\n{%- endif %}\n"
)
GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message.role == 'assistant' else message.role %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
LOOP = "{{% for i in range(99999) %}}{}{{% endfor %}}"
NESTED = LOOP.format(LOOP.format(LOOP.format("")))
USER = Message("user", " 1 + 1 = ? <|im_end|> é東 ")


def tokenizer_with(template: Any, path: str = "a/model") -> Any:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    prepare_template(tokenizer, ModelConfig(path=path))
    return tokenizer


def problem(*messages: Message) -> Problem:
    return Problem("p", messages, "2")


@pytest.mark.parametrize("template", [CHATML, GEMMA, FALLBACK_TEMPLATE, TINY_TEMPLATE, {"default": CHATML, "rag": "x"}])
def test_prompts_are_those_of_transformers(template: Any) -> None:
    tokenizer = tokenizer_with(template)
    conversations = [(USER,), (USER, Message("assistant", "3"), Message("user", "No."))]
    if template is not GEMMA:
        conversations.append((Message("system", "Be brief."), USER))
    problems = [Problem(str(number), messages, "2") for number, messages in enumerate(conversations)]
    expected = [
        tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in messages],
            add_generation_prompt=True,
            return_dict=False,
        )
        for messages in conversations
    ]
    assert [list(prompt.token_ids) for prompt in Prompts(tokenizer).of(problems)] == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for message in messages %}", r"has a syntax error \(TemplateSyntaxError: Unexpected end of template"),
        ("{{ messages | no_such_filter }}", r"has a syntax error \(TemplateAssertionError: No filter named"),
        ("You are helpful.", "ignores the messages: it writes the same for different ones"),
        (NESTED, r"goes beyond its limits of time and memory \(more than 1 s of CPU time"),
        ("{{ 10 ** (10 ** 9) }}", "goes beyond its limits"),
        ("{{ 'a' * 10 ** 11 }}", r"goes beyond its limits of time and memory \(MemoryError"),
        ("{{ messages[0].content }}{{ 'a' * 10 ** 7 }}", r"goes beyond its limits .*returned 10000\d+ characters"),
        ("{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}", "goes beyond its limits"),
        ({"rag": CHATML}, "chat template is missing"),
    ],
)
def test_templates_that_are_refused_when_the_model_is_loaded(template: Any, message: str) -> None:
    start = time.monotonic()
    with pytest.raises(ConfigError, match=rf"^model\.path = 'a/model': .*{message}"):
        tokenizer_with(template)
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (
            GEMMA,
            (Message("system", "Be brief."), USER),
            r"refuses the messages of problem 'p' \(TemplateError: System role not supported\); if it knows no system "
            r"role, leave task\.options\.system empty and put that text into the prompts",
        ),
        (TINY_TEMPLATE, (Message("tool", "3"),), r"refuses the messages of problem 'p' .*roles that it knows"),
        ("{{ messages[2].content }}", (USER,), r"refuses the messages of problem 'p' \(UndefinedError"),
    ],
)
def test_messages_that_a_template_cannot_write(template: str, messages: tuple[Message, ...], message: str) -> None:
    tokenizer = tokenizer_with(template)
    with pytest.raises(ConfigError, match=rf"^model\.path = 'a/model': the model's chat template .*{message}"):
        Prompts(tokenizer).of([problem(*messages)])


def test_the_first_failure_ends_the_rendering() -> None:
    """A thousand prompts do not wait for a thousand deadlines."""
    tokenizer = tokenizer_with(CHATML + "{% if '=' in messages[0].content %}" + NESTED + "{% endif %}")
    problems = [Problem(str(number), (USER,), "2") for number in range(1000)]
    start = time.monotonic()
    with pytest.raises(ConfigError, match="goes beyond its limits"):
        Prompts(tokenizer).of(problems)
    assert time.monotonic() - start < 60
