"""Styles of the pages: contrast in both themes by WCAG 2 (4.5 for text, 3 for lines), and colours that exist."""

import itertools
import re

import pytest

from groupwise.web.bundle import read_asset
from groupwise.web.dashboard.loopback_server import STYLE as DASHBOARD_STYLE
from groupwise.web.label_page import STYLE as AUDIT_STYLE
from groupwise.web.report.page import STYLE as REPORT_STYLE

COLOURS = {
    name: {"light": light, "dark": dark}
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", read_asset("base.css"))
}
TEXT = [("ink", "page"), ("ink", "card"), ("ink", "field"), ("dim", "page"), ("dim", "card"), ("dim", "field")]
TEXT += [
    ("accent", "page"),
    ("correct", "correct-soft"),
    ("wrong", "wrong-soft"),
    ("none", "none-soft"),
    ("page", "ink"),
    ("card", "accent"),
    ("good", "card"),
    ("bad", "bad-soft"),
]
TEXT += [(verdict, "card") for verdict in ("correct", "wrong", "none")]
LINES = [(f"s{number}", "page") for number in range(8)] + [(f"q{number}", "page") for number in range(9)]


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_the_measure_itself() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_and_lines_be_seen(theme: str) -> None:
    for pairs, least in ((TEXT, 4.5), (LINES, 3.0)):
        for front, back in pairs:
            measured = contrast(COLOURS[front][theme], COLOURS[back][theme])
            assert measured >= least, f"{front} on {back}, {theme}: {measured:.2f}"


@pytest.mark.parametrize("style", [REPORT_STYLE, DASHBOARD_STYLE, AUDIT_STYLE], ids=["report", "dashboard", "audit"])
def test_every_variable_that_is_used_is_declared(style: str) -> None:
    # The colour of a line and the number of models are set by the script, where something is drawn.
    assert set(re.findall(r"var\((--[\w-]+)", style)) - {"--c", "--models"} <= set(re.findall(r"(--[\w-]+):", style))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_ordered_values_go_one_way_in_lightness(theme: str) -> None:
    """Their order is visible without colours too. The first few are close together, where white leaves no room."""
    levels = [luminance(COLOURS[f"q{number}"][theme]) for number in range(9)]
    assert all(later < earlier + 0.005 for earlier, later in itertools.pairwise(levels)), levels
    assert levels[0] > 2 * levels[-1]
