"""The page around the sections: one HTML file that needs no network and works from `file://`.

Three walls keep foreign text from doing anything. It travels as JSON without "<" in an inert element; the script shows
it through textContent alone; and a content policy lets nothing run, load or style but our own script and style, named
by their hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.base.harmless import escape, json_block, policy_hash
from groupwise.web.bundle import bundle_script, bundle_style, fill_page

SCRIPT = bundle_script("report.js")
STYLE = bundle_style("base.css", "charts.css", "report.css")


@dataclass(frozen=True, slots=True)
class Part:
    """A section as the page shows it."""

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
    """`kind` and `source`: what the page is, and of what files it was made, in words of ours."""
    policy = (
        f"default-src 'none'; script-src {policy_hash(SCRIPT)}; style-src {policy_hash(STYLE)}; "
        "base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<a href="#{escape(part.name)}">{escape(part.title)}</a>' for part in parts)
    sections = "\n".join(
        f'<section id="{escape(part.name)}" aria-labelledby="{escape(part.name)}-title">'
        f'<h2 id="{escape(part.name)}-title">{escape(part.title)}</h2>\n{part.html}</section>'
        for part in parts
    )
    return fill_page(
        "report.html",
        policy=policy,
        kind=escape(kind),
        title=escape(title),
        subtitle=escape(subtitle),
        source=escape(source),
        style=STYLE,
        links=links,
        sections=sections,
        data=json_block(data),
        script=SCRIPT,
    )
