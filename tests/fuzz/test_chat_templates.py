"""Any chat template is rendered, or refused with one error, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from groupwise.config import ConfigError, ModelConfig
from groupwise.models import templates
from groupwise.models.chat import Prompts
from groupwise.models.load import prepare_template
from groupwise.models.tiny import make_tokenizer
from groupwise.types import Message, Problem
from groupwise.workers import Limits, WorkerPool
from tests.fuzz import examples

MAX_S = 30.0
"""Far more than the limits below need, also on a busy machine."""
LIMITS = Limits(seconds=0.2, wall_seconds=5.0, memory_mb=256)
PROBLEM = Problem("p", (Message("system", "Be brief."), Message("user", "1 + 1 = ? é 東")), "2")


def words(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(text.split())


NAMES = words(
    "messages message messages[0].content message.role message['content'] add_generation_prompt bos_token loop "
    "loop.index loop.previtem self caller varargs range(99999) namespace(a=1) dict(a=1) cycler('a','b') joiner() "
    "lipsum(n=9) strftime_now('%Y') tools none undefined_name x ns.x f"
)
LITERALS = st.one_of(
    st.integers().map(str), st.text(max_size=4).map(repr), st.sampled_from(["[]", "{}", "true", "1e9"])
)
ATTRIBUTES = words("content role __class__ __mro__ __init__ __globals__ format join mro items 0 _")
FILTERS = words("trim upper tojson list length join map select sort center(99999999) e nothing last")
OPERATORS = words("+ - * ** / // % ~ == < in and or not is")


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, OPERATORS, inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, FILTERS).map("|".join),
        st.tuples(inner, ATTRIBUTES).map(".".join),
        st.tuples(inner, inner).map(lambda parts: f"{parts[0]}[{parts[1]}]"),
        st.tuples(inner, inner).map(lambda parts: f"{parts[0]}({parts[1]})"),
    )


EXPRESSIONS = st.recursive(NAMES | LITERALS, _larger, max_leaves=6)
STATEMENTS = st.sampled_from(
    [
        "{% for message in messages %}@#{% endfor %}",
        "{% for x in @ recursive %}#{{ loop(x) }}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}#{% endfor %}{% endfor %}",
        "{% if @ %}#{% elif @ %}#{% else %}#{% endif %}",
        "{% set x = @ %}#",
        "{% set ns = namespace(x=@) %}{% set ns.x = @ %}",
        "{% macro f(x) %}#{{ f(@) }}{% endmacro %}{{ f(@) }}",
        "{% call f() %}#{% endcall %}",
        "{% filter upper %}#{% endfilter %}",
        "{% generation %}#{% endgeneration %}",
        "{% include @ %}",
        "{% extends @ %}",
        "{% import @ as f %}",
        "{% block b %}#{{ self.b() }}{% endblock %}",
        "{{ raise_exception(@) }}",
        "{%- raw %}#{% endraw -%}{# # #}",
        "{{ @ }}",
    ]
)


@st.composite
def programs(draw: st.DrawFn, depth: int = 3) -> str:
    """Text, statements inside statements, and expressions where they belong."""
    text = "".join(draw(st.lists(STATEMENTS, min_size=1, max_size=3)))
    while "@" in text:
        text = text.replace("@", draw(EXPRESSIONS).replace("@", ""), 1)
    while "#" in text:
        inner = draw(programs(depth - 1)) if depth and draw(st.booleans()) else draw(st.text(max_size=3))
        text = text.replace("#", inner.replace("#", "").replace("@", ""), 1)
    return text


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(programs())
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    return text[:start] + draw(st.text(max_size=3)) + text[end:]


@pytest.fixture(scope="module", autouse=True)
def one_pool() -> Iterator[None]:
    """One pool for all: to start one takes longer than the templates."""
    with WorkerPool(templates._render, 1, LIMITS) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "WorkerPool", lambda *_: nullcontext(pool))
        yield


@examples(150)
@given(text=st.one_of(programs(), damaged(), st.text(), st.text("{}%#-abc '|\n")))
@example(text="{{ messages[0].content }}\ud800")
@example(text="{{ messages[0].content }}{{ '\\ud800' }}")
@example(text="{% for m in messages %}" * 500)
@example(text="{{ " + "(" * 5000 + " }}")
@example(text="{{ " + "-" * 5000 + "messages }}")
def test_any_template_is_rendered_or_refused(text: str) -> None:
    tokenizer: Any = make_tokenizer()
    tokenizer.chat_template = text
    start = time.monotonic()
    reason = ""
    try:
        prepare_template(tokenizer, ModelConfig(path="a/model"))
        Prompts(tokenizer).of([PROBLEM])
    except ConfigError as error:
        reason = str(error)
    assert not reason or reason.startswith("model.path = 'a/model': ")
    assert time.monotonic() - start < MAX_S


@pytest.mark.parametrize("template", [5, [], [{"name": 3}], {"default": None}, {"default": 7}, {}])
def test_what_is_no_text_is_refused(template: Any) -> None:
    tokenizer: Any = make_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=r"^model\.path = 'a/model'"):
        prepare_template(tokenizer, ModelConfig(path="a/model"))
