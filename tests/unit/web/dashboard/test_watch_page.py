"""The dashboard's page as a document: its policy, its ids, its controls."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from groupwise.base.harmless import policy_hash
from groupwise.web.dashboard.loopback_server import PAGE, PAGE_POLICY, SCRIPT, STYLE


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
    for tag, content, allowed in (("script", SCRIPT, "script-src"), ("style", STYLE, "style-src")):
        assert re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", PAGE, re.DOTALL) == [content]
        assert f"{allowed} {policy_hash(content)};" in PAGE_POLICY
    assert "unsafe" not in PAGE_POLICY


def test_nothing_is_loaded_and_no_attribute_acts(document: Document) -> None:
    for tag, attributes in document.elements:
        assert not {name for name in attributes if name.startswith("on") or name in ("style", "src", "action")}, tag
        assert (attributes.get("href") or "data:").startswith("data:")
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", PAGE) == []


def test_every_id_is_there_once(document: Document) -> None:
    ids = ids_of(document)
    assert len(ids) == len(set(ids))
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
