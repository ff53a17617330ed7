"""What a section of a report gets and returns, the long texts that sections share, and the page around them.

A page is one HTML file that needs no network and works from `file://`. Three measures make untrusted text harmless: it
is JSON without "<" in an inert element; the script shows it only through textContent; and a content security policy
allows only the page's own script and style, by their hashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from groupwise.base.harmless import escape, json_block, visible
from groupwise.web.bundle import bundle_script, bundle_style, content_policy, fill_page
from groupwise.web.report.charts import Chart
from groupwise.web.report.inputs import Sources

SCRIPT = bundle_script("report.js")
STYLE = bundle_style("base.css", "charts.css", "report.css")
MAX_TEXT_CHARS = 200_000
"""Maximum length of a text; a browser still shows this quickly."""
MAX_ALL_BYTES = 2_600_000
RESERVED_BYTES = 500_000
"""Bytes reserved for single texts: an example is never left out because there are many problems."""


class Texts:
    """The long texts of a report: each stored once, within a size budget.

    A page is sent by mail and opened on a phone, so its size is limited. A text that was cut says so; texts that were
    left out are counted, and the page says so.
    """

    def __init__(self, max_all_bytes: int = MAX_ALL_BYTES, reserved_bytes: int = RESERVED_BYTES) -> None:
        self._numbers: dict[str, int] = {}
        self._max_all_bytes = max_all_bytes
        self._reserved_bytes = reserved_bytes
        self.num_bytes = 0
        self.num_left_out = 0
        self.num_cut = 0

    def add(self, text: str, is_one_of_many: bool = False) -> int | None:
        """Store `text` and return its index in `all()`; None if the budget is used up."""
        shown = visible(text[:MAX_TEXT_CHARS])
        if len(text) > MAX_TEXT_CHARS:
            shown += f"\n\n[cut here: {len(text) - MAX_TEXT_CHARS:,} of {len(text):,} characters are not in this page]"
        if shown in self._numbers:
            return self._numbers[shown]
        # "<" takes six characters in the page.
        size = len(shown.encode("utf-8")) + 5 * shown.count("<")
        if self.num_bytes + size > self._max_all_bytes - (self._reserved_bytes if is_one_of_many else 0):
            self.num_left_out += 1
            return None
        self.num_cut += len(text) > MAX_TEXT_CHARS
        self.num_bytes += size
        self._numbers[shown] = len(self._numbers)
        return self._numbers[shown]

    def all(self) -> list[str]:
        return list(self._numbers)


@dataclass(frozen=True, slots=True)
class Material:
    """The input of sections."""

    sources: Sources
    texts: Texts = field(default_factory=Texts)
    """Long texts; a section keeps only their numbers."""


@dataclass(frozen=True, slots=True)
class Content:
    """A rendered section. `data` goes into the JSON file, and `html` is made only from it."""

    data: Mapping[str, Any]
    html: str
    charts: tuple[Chart, ...] = ()
    """Charts for the page, plots and CSV files; the page's script draws them where `markup.chart_grid` says."""


def render_page(
    title: str,
    subtitle: str,
    sections: Mapping[str, tuple[str, str]],
    data: Mapping[str, Any],
    kind: str = "report",
    source: str = "the run",
) -> str:
    """Return the page of sections, given by name as (title, HTML).

    `kind` says what the page is, `source` what files it was made from.
    """
    named = [(escape(name), escape(heading), html) for name, (heading, html) in sections.items()]
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in named)
    body = "\n".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{heading}</h2>\n{html}</section>'
        for name, heading, html in named
    )
    return fill_page(
        "report.html",
        policy=content_policy(SCRIPT, STYLE),
        kind=escape(kind),
        title=escape(title),
        subtitle=escape(subtitle),
        source=escape(source),
        style=STYLE,
        links=links,
        sections=body.replace(" %", "&nbsp;%"),  # a number stays on the line of its unit
        data=json_block(data),
        script=SCRIPT,
    )
