"""HTML building blocks of the sections. Every text passed in is escaped here.

Completions are not passed in: `text_slot` makes an empty element that the page's script fills through textContent.
"""

from __future__ import annotations

from collections.abc import Sequence

from groupwise.base.harmless import escape
from groupwise.web.report.charts import Chart


def paragraph(text: str, class_name: str = "") -> str:
    return f"<p{_class(class_name)}>{escape(text)}</p>"


def sentence(text: str) -> str:
    """Return `text` with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "?", "!")) else ".")


def notes(texts: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>' if texts else ""


def chart_grid(section: str, charts: Sequence[Chart]) -> str:
    """Return the places of charts; the page's script draws them from the data."""
    figures = "".join(
        f'<figure class="chart" data-section="{escape(section)}" data-chart="{escape(chart.name)}">'
        f'<figcaption><b>{escape(chart.title)}</b> <span class="caption">{escape(chart.caption)}.</span></figcaption>'
        '<div class="drawing"></div></figure>'
        for chart in charts
    )
    return f'<div class="charts">{figures}</div>' if charts else ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], label: str, class_name: str = "") -> str:
    """Return a table. The first column names the row; text of a cell after a newline is shown smaller.

    `class_name` is "told" if the last column holds sentences.
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>{"".join(f"<td>{_cell(value)}</td>" for value in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table{_class(class_name)}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def definitions(pairs: Sequence[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>' for name, value in pairs)}</dl>"


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def text_slot(number: int | None, label: str) -> str:
    """Return the place of text `number` of the page's texts."""
    if number is None:
        return paragraph("Left out to keep this page small; it is in the run directory.", "dim")
    return f'<pre data-text="{number}" tabindex="0" aria-label="{escape(label)}"></pre>'


def bar(parts: Sequence[tuple[str, str, float]], label: str) -> str:
    """Return a bar of shares, given as (class, name, share), with a legend."""
    position, rects, words = 0.0, [], []
    for class_name, name, share in parts:
        width = 1000 * share
        rects.append(f'<rect class="{escape(class_name)}" x="{position:.2f}" y="0" width="{width:.2f}" height="10"/>')
        words.append(
            f'<span><svg class="swatch {escape(class_name)}" viewBox="0 0 10 10" aria-hidden="true">'
            f'<rect class="{escape(class_name)}" width="10" height="10" rx="2"/></svg>{escape(name)}</span>'
        )
        position += width
    return (
        f'<div class="bar"><p class="bar-label">{escape(label)}</p>'
        f'<svg class="bar-strip" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">{"".join(rects)}'
        f'</svg><p class="legend">{"".join(words)}</p></div>'
    )


def _cell(value: str) -> str:
    first, _, second = value.partition("\n")
    return escape(first) + (f"<small>{escape(second)}</small>" if second else "")


def _class(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""
