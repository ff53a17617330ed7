"""The curves of `groupwise watch` in a browser: what is left of many points, and axes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from groupwise.runs import RunLog
from groupwise.types import StepRecord
from tests.integration.browser import CHROMIUM, NO_CHROMIUM, Browser
from tests.integration.dashboard_site import count, curve, serving, text, write_long_run
from tests.integration.synthetic_run import RECIPE

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


def test_thinning_keeps_what_stands_out(tab: Browser, tmp_path: Path) -> None:
    """10,000 steps in a few points per column of pixels: against the figures, the one step that differs is there."""
    write_long_run(tmp_path / "long", num_steps=10_000, spike_step=5003)
    with serving(tmp_path) as address:
        tab.open(address)
        tab.wait(f"document.querySelector('{curve('reward')}')?.dataset.points === '10000'")
        path = tab.evaluate(f"document.querySelector('{curve('reward')}').getAttribute('d')")
        image = tab.evaluate("document.querySelector('[data-panel=\"reward\"] svg').getAttribute('viewBox')")
        tab.leave()
    width, height = (float(number) for number in image.split()[2:])
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", path)[1:]]
    assert 200 < len(points) < 2 * width
    assert [x for x, _ in points] == sorted(x for x, _ in points)

    # The axis goes from 0 to 10.6 (a little room), below 16 and above 22 pixels.
    def pixel(value: float) -> float:
        return height - 22 - value / (10 + 0.06 * 10) * (height - 38)

    above = [(x, y) for x, y in points if y < pixel(1.0) - 0.1]
    assert above == [(pytest.approx(46 + 5003 / 10_000 * (width - 54), abs=0.06), pytest.approx(pixel(10), abs=0.06))]


def test_ticks_of_a_small_share_differ(tab: Browser, tmp_path: Path) -> None:
    write_long_run(tmp_path / "long", num_steps=40, spike_step=3)
    labels = "document.querySelectorAll('[data-panel=clip] .plot text[text-anchor=end]')"
    with serving(tmp_path) as address:
        tab.open(address)
        ticks = tab.wait(f"{labels}.length > 2 && [...{labels}].map((label) => label.textContent)")
        assert len(set(ticks)) == len(ticks)
        tab.leave()


def test_what_explodes_is_drawn_on_a_log_axis(tab: Browser, tmp_path: Path) -> None:
    log = RunLog(tmp_path / "wild")
    log.write_recipe(RECIPE)
    for step in range(1, 61):
        metrics = {"reward/mean": 0.5, "policy/grad_norm": 3e14 if step == 30 else 0.4, "kl/ref_k3": 0.001 * step}
        log.write_step(StepRecord(step, "grpo", step, metrics))
    log.close()
    with serving(tmp_path) as address:
        tab.open(address)
        tab.wait(count(curve("grad_norm")))
        units = {name: tab.evaluate(text(f"[data-panel={name}] .unit")) for name in ("grad_norm", "kl", "reward")}
        assert [name for name, unit in units.items() if "log" in unit] == ["grad_norm"]
        labels = "document.querySelectorAll('[data-panel=grad_norm] .plot text[text-anchor=end]')"
        assert "1e12" in tab.evaluate(f"[...{labels}].map((label) => label.textContent)")
        # Smoothed, the curve comes back down at once: half of its points are near the usual 0.4.
        tab.evaluate("(() => { const s = document.getElementById('smooth'); s.value = '0.8';"
                     "s.dispatchEvent(new Event('input')); })()")  # fmt: skip
        tab.wait(f"{count('[data-panel=grad_norm] .raw')} === 1")
        path = tab.evaluate(f"document.querySelector('{curve('grad_norm')}').getAttribute('d')")
        tab.leave()
    heights = sorted(float(point.split()[1]) for point in re.split("[ML]", path)[1:])
    lowest, highest = heights[-1], heights[0]
    assert sum(height > lowest - 0.1 * (lowest - highest) for height in heights) > len(heights) / 2
