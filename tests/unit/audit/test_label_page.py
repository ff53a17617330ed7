"""The page and the terminal: hostile text stays text, kept labels are there, nothing is fetched."""

import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from groupwise.audit.labels import agreement, merge_labels
from groupwise.audit.show_audit import show_agreement, show_audit
from groupwise.audit.survey import audit_run
from groupwise.runs import RunLogError
from groupwise.types import Verdict
from groupwise.web.label_page import write_page
from tests.page_policy import assert_policy_names_code

HOSTILE = (
    "<script>alert(1)</script></script></pre></article></main>]]><img src=x onerror=alert(1)>&lt;b&gt;&amp;"
    "\x1b[31mred\x1b]0;title\x07\x00\x9b2J \u202eback\u202c \u200b \ud800 <!-- --> \"quoted\" 'single' `tick` [bold]"
)
SHOWN = re.sub(
    "[\x00\x07\x1b\x9b\u200b\u202c\u202e\ud800]", lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", HOSTILE
)
VOID = {"meta", "input", "br"}
OPTIONAL_END = {"th", "td", "dt", "dd"}


class Page(HTMLParser):
    """Every element with its attributes, and the text of those that hold what a model wrote."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID | OPTIONAL_END:
            self._open.append(f"{tag}.{dict(attributes).get('class') or ''}")
            self.texts.setdefault(self._open[-1], []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().split(".")[0] == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data


@pytest.fixture
def run_dir(make_run: Callable[..., Path]) -> Path:
    long = HOSTILE + "x" * 100_000 + HOSTILE
    texts = [(HOSTILE, Verdict.CORRECT), (long, Verdict.WRONG), (f"1 + 1 = 3 \\boxed{{7}}{HOSTILE}", Verdict.CORRECT)]
    return make_run({1: [(HOSTILE, HOSTILE, texts)]}, "a-run")


def rendered(run_dir: Path) -> str:
    return write_page(audit_run(run_dir), run_dir).read_text(encoding="utf-8")


def test_hostile_text_is_shown_as_text(run_dir: Path) -> None:
    page = Page(rendered(run_dir))
    assert page.texts["pre.prompt"] == [SHOWN] * 3
    assert sorted(page.texts["pre.completion"], key=len) == [
        SHOWN,
        f"1 + 1 = 3 \\boxed{{7}}{SHOWN}",
        SHOWN + "x" * 100_000 + SHOWN,
    ]
    tags = [tag for tag, _ in page.elements]
    assert (tags.count("script"), tags.count("article"), tags.count("img")) == (2, 3, 0)


def test_no_handlers_no_addresses_no_control_codes(run_dir: Path) -> None:
    text = rendered(run_dir)
    for tag, attributes in Page(text).elements:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "style")}, tag
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]", text) is None
    # The name of SVG is no address: nothing is fetched from it.
    assert re.findall(r"https?:(?!//www\.w3\.org/2000/svg\")", text) == []


def test_the_policy_names_exactly_the_script_and_the_style(run_dir: Path) -> None:
    assert_policy_names_code(rendered(run_dir))


def test_kept_labels_are_in_the_page_and_cannot_leave_their_block(run_dir: Path, tmp_path: Path) -> None:
    chain = audit_run(run_dir).chains[0]
    note = "</script><script>alert(1)</script><!--"
    entry = {"chain": chain.id, "verdict": "wrong", "reasoning": None, "note": note, "time": "2030-01-01T00:00:00Z"}
    file = tmp_path / "labels.json"
    file.write_text(json.dumps({"format": "groupwise-audit-labels/1", "run": "a-run", "labels": [entry]}))
    merge_labels(run_dir, file)
    text = rendered(run_dir)
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 2
    data = json.loads(page.texts["script."][0])
    assert data["labels"] == {chain.id: entry}
    assert data["run"] == "a-run"
    assert text.count("alert(1)</script>") == 0


def test_every_chain_can_be_labelled(run_dir: Path) -> None:
    audit = audit_run(run_dir)
    elements = Page(rendered(run_dir)).elements
    assert [values["data-chain"] for tag, values in elements if tag == "article"] == [
        chain.id for chain in audit.chains
    ]
    buttons = [(values["data-question"], values["data-answer"]) for _, values in elements if "data-answer" in values]
    answers = ("right", "wrong", "unsure")
    assert buttons == [(question, answer) for question in ("verdict", "reasoning") for answer in answers] * 3


def test_a_page_that_cannot_be_written(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLogError, match="could not write"):
        write_page(audit_run(run_dir), run_dir, tmp_path / "file" / "page.html")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_terminal_gets_no_codes_and_no_markup(run_dir: Path, is_terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=is_terminal, color_system=None)
    show_audit(audit_run(run_dir), console)
    show_agreement(agreement(run_dir), console)
    text = stream.getvalue()
    without_styles = re.sub(r"\x1b\[[0-9;]*m", "", text) if is_terminal else text
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", without_styles) is None
    assert "[bold]" in without_styles  # of the model, and not read as markup
    assert "1 + 1 = 3" in without_styles
    assert "No labels yet" in without_styles
