"""The page around the sections: one HTML file that needs no network and works from `file://`.

Three measures make untrusted text harmless: it is JSON without "<" in an inert element; the script shows it only
through textContent; and a content security policy allows only the page's own script and style, by their hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.base.harmless import escape, json_block
from groupwise.web.bundle import bundle_script, bundle_style, content_policy, fill_page

SCRIPT = bundle_script("report.js")
STYLE = bundle_style("base.css", "charts.css", "report.css")


@dataclass(frozen=True, slots=True)
class Part:
    """A section on the page."""

    name: str
    title: str
    html: str


def render_page(
    title: str,
    subtitle: str,
    parts: Sequence[Part],
    data: Mapping[str, Any],
    kind: str = "report",
    source: str = "the run",
) -> str:
    """Return the page. `kind` says what it is, `source` what files it was made from."""
    links = "".join(f'<a href="#{escape(part.name)}">{escape(part.title)}</a>' for part in parts)
    sections = "\n".join(
        f'<section id="{escape(part.name)}" aria-labelledby="{escape(part.name)}-title">'
        f'<h2 id="{escape(part.name)}-title">{escape(part.title)}</h2>\n{part.html}</section>'
        for part in parts
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
        sections=sections.replace(" %", "&nbsp;%"),  # a number stays on the line of its unit
        data=json_block(data),
        script=SCRIPT,
    )
