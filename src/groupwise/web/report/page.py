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
from groupwise.web.report.page_script import SCRIPT
from groupwise.web.report.page_style import STYLE


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
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)} – {kind}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header><p class="eyebrow">groupwise {kind}</p><h1>{escape(title)}</h1><p class="dim">{escape(subtitle)}</p>'
        f'<nav aria-label="Sections">{links}<button type="button" id="theme" hidden>Dark</button></nav></header>\n'
        f"<main>\n{sections}\n</main>\n"
        f'<footer class="dim">Made by groupwise from files of {source} alone. The data behind this page is in the JSON '
        "file beside it.</footer>\n"
        "<noscript>Charts and completions need JavaScript; the tables do not.</noscript>\n"
        '<dialog id="problem" aria-labelledby="problem-title"><div class="dialog-head"><h2 id="problem-title"></h2>'
        '<button type="button" id="previous" aria-label="Previous problem">←</button>'
        '<button type="button" id="next" aria-label="Next problem">→</button>'
        '<button type="button" id="close" aria-label="Close">✕</button></div>'
        '<div id="problem-body"></div></dialog>\n'
        f'<script type="application/json" id="data">{json_block(data)}</script>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
