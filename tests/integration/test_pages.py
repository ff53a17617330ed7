"""Pages of files in a browser: what the scripts of a report and of an audit do when someone uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from groupwise.audit.survey import audit_run
from groupwise.web.label_page import write_page
from groupwise.web.report.report import make_report, write_report
from tests.integration.browser import CHROMIUM, NO_CHROMIUM, Browser
from tests.integration.dashboard_site import click, count, text
from tests.integration.synthetic_run import write_synthetic_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_run(tmp_path_factory.mktemp("pages") / "run", num_steps=60, groups_per_step=2)


@pytest.fixture(scope="module")
def report(run_dir: Path) -> str:
    path = run_dir.parent / "report.html"
    write_report(make_report([run_dir]), path)
    return path.as_uri()


def texts(selector: str) -> str:
    return f"[...document.querySelectorAll({json.dumps(selector)})].map((found) => found.textContent)"


def press(selector: str, *keys: str) -> str:
    return (
        f"(() => {{ const found = document.querySelector({json.dumps(selector)}); found.focus();"
        f"for (const key of {json.dumps(keys)}) found.dispatchEvent(new KeyboardEvent('keydown', {{ key }})); }})()"
    )


def test_a_step_is_pointed_at_in_all_charts(tab: Browser, report: str) -> None:
    tab.open(report)
    reward = '[data-chart="reward"]'
    held_out = '[data-chart="pass_at_1"] .readout'
    at_rest = tab.evaluate(text(held_out))
    assert at_rest.startswith("pass@1")
    assert "at step" not in at_rest
    tab.evaluate(press(f"{reward} svg", "Home", *["ArrowRight"] * 45))
    tab.wait(f"{text(f'{reward} .step')} === 'step 45, grpo'")
    assert set(tab.evaluate(texts("figure .step"))) == {"step 45, grpo"}
    sections = json.loads(tab.evaluate(text("#data")))["sections"]
    (chart,) = (chart for chart in sections["curves"]["charts"] if chart["name"] == "reward")
    (line,) = chart["lines"]
    value = line["y"][line["x"].index(45)]
    assert float(tab.evaluate(text(f"{reward} .readout b"))) == pytest.approx(value, rel=0.01)
    # An evaluation is said with its own step: there is none at 45.
    assert tab.evaluate(text(held_out)).endswith("at step 40")
    assert tab.evaluate(f"document.querySelector('{reward} .cursor').hidden") is False
    tab.evaluate(f"document.querySelector('{reward} svg').dispatchEvent(new FocusEvent('blur'))")
    tab.wait(f"{text(held_out)} === {json.dumps(at_rest)}")
    assert set(tab.evaluate(texts("figure .step"))) == {""}


def test_the_pointer_reads_the_step_below_it(tab: Browser, report: str) -> None:
    tab.open(report)
    place = "document.querySelector('[data-chart=reward] svg').getBoundingClientRect().toJSON()"
    tab.evaluate("document.querySelector('[data-chart=reward]').scrollIntoView()")
    box = tab.evaluate(place)
    # The axis goes from 0 to 60, 46 pixels from the left to 8 from the right.
    x = box["left"] + 46 + (box["width"] - 54) * 50 / 60
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=box["top"] + box["height"] / 2)
    tab.wait(f"{text('[data-chart=reward] .step')} === 'step 50, grpo'")
    cursor = tab.evaluate("document.querySelector('[data-chart=reward] .cursor').getBoundingClientRect().left")
    assert cursor == pytest.approx(x, abs=1)


def test_problems_are_narrowed_and_opened(tab: Browser, report: str) -> None:
    tab.open(report)
    rows = count(".row:not(.head)")
    assert tab.evaluate(rows) == 25
    gained = next(name for name in tab.evaluate(texts(".pill-tools button")) if name.startswith("Gained"))
    tab.evaluate(click(".pill-tools button:nth-child(2)"))
    assert tab.evaluate(rows) == min(25, int(gained.split()[1]))
    tab.evaluate(click(".pill-tools.more button:last-child"))
    assert tab.evaluate(rows) == int(gained.split()[1])
    tab.evaluate(click(".row:nth-child(3) .pill"))
    title = tab.evaluate(text("#problem-title"))
    assert title.endswith(f"2 of {gained.split()[1]}")
    tab.evaluate(press("#close", "ArrowRight"))
    tab.press("ArrowRight")
    tab.wait(f"{text('#problem-title')} !== {json.dumps(title)}")
    assert tab.evaluate("location.hash").startswith("#problem-")
    tab.press("Escape")
    tab.wait("!document.getElementById('problem').open && location.hash === '#pills'")


def test_a_theme_is_chosen_and_kept(tab: Browser, report: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    tab.open(report)
    light = tab.evaluate(background)
    assert tab.evaluate(text("#theme")) == "Dark"
    tab.evaluate(click("#theme"))
    dark = tab.evaluate(background)
    assert dark != light
    tab.open(report)
    assert (tab.evaluate(background), tab.evaluate(text("#theme"))) == (dark, "Light")
    tab.evaluate("localStorage.clear()")


def test_labels_are_kept_narrowed_and_imported(tab: Browser, run_dir: Path, tmp_path: Path) -> None:
    page = write_page(audit_run(run_dir), run_dir, tmp_path / "page.html").as_uri()
    tab.open(page)
    number = tab.evaluate(count("article"))
    assert number > 3
    progress = text("#progress")
    assert tab.evaluate(progress) == f"0 of {number} labelled"
    right = 'article [data-question="verdict"][data-answer="right"]'
    tab.evaluate(click(right))
    tab.evaluate("(() => { const note = document.querySelector('textarea'); note.value = '<b>why</b>';"
                 "note.dispatchEvent(new Event('input', { bubbles: true })); })()")  # fmt: skip
    tab.open(page)
    assert tab.evaluate(progress) == f"1 of {number} labelled"
    assert tab.evaluate(f"document.querySelector({json.dumps(right)}).getAttribute('aria-pressed')") == "true"
    assert tab.evaluate("document.querySelector('textarea').value") == "<b>why</b>"
    tab.evaluate("(() => { const f = document.getElementById('filter'); f.value = 'unlabelled';"
                 "f.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert tab.evaluate(count("article:not([hidden])")) == number - 1
    # A newer label of another chain, from a file.
    chain = tab.evaluate("document.querySelectorAll('article')[1].dataset.chain")
    entry = {"chain": chain, "verdict": "wrong", "reasoning": None, "note": "", "time": "2040-01-01T00:00:00Z"}
    table = {"format": "groupwise-audit-labels/1", "run": "run", "labels": [entry, {"chain": 3}]}
    content = json.dumps(json.dumps(table))
    tab.evaluate(
        f"(() => {{ const files = new DataTransfer(); files.items.add(new File([{content}], 'labels.json'));"
        "const field = document.getElementById('import'); field.files = files.files;"
        "field.dispatchEvent(new Event('change')); })()"
    )
    tab.wait(f"{text('#message')} === 'Imported 1 newer label of 2.'")
    assert tab.evaluate(progress) == f"2 of {number} labelled"
    tab.evaluate("localStorage.clear()")
