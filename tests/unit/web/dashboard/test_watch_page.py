"""The dashboard's page as a text: nothing in it turns text into markup, and what it names is there."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from groupwise.base.harmless import policy_hash
from groupwise.runs.catalogue import METRICS
from groupwise.web.dashboard import routes
from groupwise.web.dashboard.loopback_server import content_policy
from groupwise.web.dashboard.watch_page import PAGE, SCRIPT
from groupwise.web.dashboard.watch_page_style import STYLE


class Document(HTMLParser):
    """Elements with their attributes, and whether each is closed in its turn."""

    VOID = frozenset({"meta", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


@pytest.fixture(scope="module")
def document() -> Document:
    return Document(PAGE)


def ids_of(document: Document) -> list[str]:
    return [found for _, attributes in document.elements if (found := attributes.get("id"))]


def test_one_script_and_one_style_named_by_the_policy(document: Document) -> None:
    tags = [tag for tag, _ in document.elements]
    assert (tags.count("script"), tags.count("style"), tags.count("title")) == (1, 1, 1)
    policy = content_policy(PAGE)
    assert f"script-src {policy_hash(SCRIPT)};" in policy
    assert f"style-src {policy_hash(STYLE)};" in policy
    assert "unsafe" not in policy


def test_nothing_is_loaded_and_no_attribute_acts(document: Document) -> None:
    for tag, attributes in document.elements:
        assert not {name for name in attributes if name.startswith("on") or name in ("style", "src", "action")}, tag
        assert (attributes.get("href") or "data:").startswith("data:")
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", PAGE) == []


@pytest.mark.parametrize(
    "way",
    ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc", "DOMParser"],
)
def test_there_is_no_way_from_text_to_markup(way: str) -> None:
    assert way not in SCRIPT


def test_every_id_is_there_once(document: Document) -> None:
    ids = ids_of(document)
    assert len(ids) == len(set(ids))
    asked = set(re.findall(r'byId\("([^"]+)"\)', SCRIPT))
    assert len(asked) > 30
    assert asked <= set(ids)
    for _, attributes in document.elements:
        for name in ("for", "list", "aria-labelledby", "aria-controls"):
            assert (attributes.get(name) or ids[0]) in ids


def test_every_control_has_a_name(document: Document) -> None:
    """A field has a label of its own or stands in one; a button has words or a label."""
    for tag, attributes in document.elements:
        if tag == "input" and attributes.get("type") == "number":
            assert attributes.get("aria-label")
    for symbol in re.findall(r"<button([^>]*)>[^\w<]+</button>", PAGE):
        assert "aria-label" in symbol


def test_every_metric_is_in_the_catalogue() -> None:
    named = set(
        re.findall(r'"((?:reward|score|groups|rollouts|policy|kl|engine|time|memory|sft|eval)/[a-z0-9_]+)"', SCRIPT)
    )
    assert len(named) > 15
    assert named <= set(METRICS)


def test_filters_are_parameters_of_the_interface() -> None:
    (names,) = re.findall(r"const FILTERS = \[(.*?)\];", SCRIPT, re.DOTALL)
    assert routes.__doc__ is not None
    described = routes.__doc__[routes.__doc__.index("/groups?…") : routes.__doc__.index("LINE =")]
    for name in re.findall(r'"(\w+)"', names):
        assert re.search(rf"\b{name}\b", described), name


def test_every_colour_that_is_used_is_defined() -> None:
    used = set(re.findall(r"var\((--[a-z0-9-]+)", STYLE)) | {f"--s{number}" for number in range(8)}
    # --c is the colour of a run, set where it is drawn.
    assert used - {"--c"} <= set(re.findall(r"(--[a-z0-9-]+):", STYLE))
