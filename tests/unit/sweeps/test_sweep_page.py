"""The page of a sweep: the walls of a run's report, five panels a knob, the data beside it; in a real browser too."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from groupwise.sweeps.folder import read_study
from groupwise.sweeps.panels import charts_of, colours_of, write_sweep_csv, write_sweep_plots
from groupwise.sweeps.sweep_page import markdown, write_sweep_report
from tests.unit.sweeps.made_up import NUM_STEPS, Truth, make_knob, write_sweep

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = (
    "<script>document.title='owned'</script></script>]]><!--<img src=x onerror=\"document.title='owned'\">"
    "\x1b[31m\x00\u202e\ud800</li></section>&amp;$x_1$"
)
PANELS = ["pass_at_1", "reward", "kl", "clip", "grad_norm"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kl = [
        Truth("0.02", 0.02, is_base=True),
        Truth("1", 1.0, final=0.1, kl=1e-5),
        Truth("∞", math.inf, final=0.1, kl=0.0, failure={1: HOSTILE}, stops_after={1: 9}),
    ]
    modes = [Truth("base", "base", is_base=True), Truth(HOSTILE, HOSTILE, final=0.5, has_reference=False)]
    folder = tmp_path_factory.mktemp("sweep") / "made-up"
    return write_sweep(folder, {"KL-coefficient": kl, "mode": modes}, name=HOSTILE)


@pytest.fixture(scope="module")
def page(sweep: Path) -> Path:
    return write_sweep_report(sweep).path


def test_the_twin_is_the_data_of_the_page(sweep: Path, page: Path) -> None:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    twin = json.loads((sweep / "report.json").read_text())
    assert json.loads(block) == twin
    report = write_sweep_report(sweep)
    assert report.findings == tuple(finding["sentence"] for finding in twin["findings"])
    assert list(twin["sections"]) == ["summary", "knob-0", "knob-1", "runs"]
    assert [chart["name"] for chart in twin["sections"]["knob-0"]["charts"]] == PANELS
    assert twin["sections"]["runs"]["gaps"][0]["status"] == "failed"


def test_hostile_text_is_data_and_nothing_else(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(re.findall("<script", text)) == 2
    assert "<img" not in text
    assert "</script>]]>" not in text
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]", text) is None
    assert "unsafe" not in re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[0]
    assert not re.findall(r"<[^>]*\son\w+=", text.split("<script")[0])


def test_the_sentences_as_markdown(sweep: Path, page: Path) -> None:
    text = (sweep / "findings.md").read_text(encoding="utf-8")
    assert "\n## KL-coefficient\n" in text
    assert "- KL coefficient at 0.02 has the highest final score, " in text
    assert re.findall(r"(?<!\\)[<>\[\]`]", text) == []
    again = markdown({"title": "*a*\nb", "findings": []})
    assert again.startswith("# \\*a\\* b\n")


def test_what_the_page_says_of_gaps_and_methods(page: Path) -> None:
    text = page.read_text()
    assert "1 of 12 runs are not finished" in text
    assert "Holm" in text
    assert "Not recorded: " in text
    assert text.count('<figure class="chart"') == 10


def test_panels_are_means_and_ranges_over_seeds() -> None:
    knob = make_knob([Truth("a", 1.0), Truth("b", 2.0, stops_after={1: 10})])
    charts = {chart.name: chart for chart in charts_of(knob)}
    assert list(charts) == PANELS
    runs = knob.arms[0].runs
    line = charts["clip"].lines[0]
    assert line.x == tuple(range(1, NUM_STEPS + 1))
    for index in range(NUM_STEPS):
        values = [run.steps[index].metrics["policy/clip_share"] for run in runs]
        assert line.y[index] == pytest.approx(sum(values) / 3)
        assert (line.low[index], line.high[index]) == (min(values), max(values))
    # Where a seed ended early the others go on.
    left = [run.evals[-1].pass_at_1 for run in knob.arms[1].runs if run.is_finished]
    held_out = charts["pass_at_1"].lines[1]
    assert held_out.y[-1] == pytest.approx(sum(left) / 2)
    # One seed has no band.
    (alone,) = charts_of(make_knob([Truth("a", 1.0)], seeds=(0,)))[0].lines
    assert (alone.low, alone.high) == ((), ())


def test_axes_are_logarithmic_where_decades_are_spanned() -> None:
    wide = make_knob([Truth("a", 1.0, grad_norm=0.1), Truth("b", 2.0, grad_norm=100.0)])
    narrow = make_knob([Truth("a", 1.0), Truth("b", 2.0, has_reference=False)])
    assert {chart.name: chart.is_log for chart in charts_of(wide)}["grad_norm"]
    assert not {chart.name: chart.is_log for chart in charts_of(narrow)}["grad_norm"]


def test_colours_follow_ordered_values_and_are_the_same_in_all_panels() -> None:
    ordered = make_knob([Truth(str(value), float(value)) for value in range(5)])
    assert colours_of(ordered) == ["q0", "q2", "q4", "q6", "q8"]
    for chart in charts_of(ordered):
        assert [line.colour for line in chart.lines] == colours_of(ordered)
    names = make_knob([Truth(name, name) for name in "abcdefghij"])
    assert colours_of(names) == ["0", "1", "2", "3", "4", "5", "6", "7", "0", "1"]


def test_a_sweep_in_which_nothing_has_run(tmp_path: Path) -> None:
    nothing = dict.fromkeys((0, 1, 2), 0)
    truths = [Truth("1", 1.0, stops_after=nothing), Truth("2", 2.0, stops_after=nothing)]
    report = write_sweep_report(write_sweep(tmp_path, {"knob": truths}))
    assert report.findings[0] == "Knob: no finished run has been evaluated yet."
    assert "Not recorded by any run: Held-out pass@1, Training reward, KL of the step&#x27;s updates" in report.html
    assert write_sweep_csv(tmp_path, tmp_path / "csv")[0].read_text().count("\n") == 1


def test_the_dots_are_the_scores_of_the_table(sweep: Path, page: Path) -> None:
    sections = json.loads((sweep / "report.json").read_text())["sections"]
    first, _ = sections["summary"]["dots"]
    assert first["title"] == "KL coefficient"
    assert [row["label"] for row in first["rows"]] == ["0.02 (base)", "1", "∞"]
    for row, arm in zip(first["rows"], sections["knob-0"]["scores"], strict=True):
        assert {name: row[name] for name in ("value", "low", "high")} == arm["final"]
        assert row["low"] <= min(row["seeds"]) <= row["value"] <= max(row["seeds"]) <= row["high"]
        cell = f"<td>{row['words'][0]}<small>{row['words'][1]}</small></td>".replace(" %", "&nbsp;%")
        assert cell in page.read_text()


def test_plots_and_tables(sweep: Path, tmp_path: Path) -> None:
    paths = write_sweep_plots(sweep, tmp_path / "one")
    assert [path.name for path in paths] == [
        f"{knob}.{end}" for knob in ("KL-coefficient", "mode") for end in ("csv", "png", "svg")
    ]
    again = write_sweep_plots(sweep, tmp_path / "two")
    for first, second in zip(paths, again, strict=True):
        assert first.read_bytes() == second.read_bytes()
    rows = list(csv.DictReader(paths[0].read_text(encoding="utf-8").splitlines()))
    assert {row["panel"] for row in rows} == set(PANELS)
    last = [row for row in rows if row["panel"] == "pass_at_1" and row["arm"] == "base"][-1]
    base = next(arm for arm in read_study(sweep).arms if arm.name == "base")
    finals = [run.evals[-1].pass_at_1 for run in base.runs]
    assert float(last["mean"]) == pytest.approx(sum(finals) / 3)
    assert (float(last["low"]), float(last["high"])) == (min(finals), max(finals))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_in_a_browser_nothing_fails_and_every_panel_is_drawn(page: Path, tmp_path: Path) -> None:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    drawn = re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)
    assert drawn.count('role="img"') == 10
    assert "<title>owned" not in drawn
    assert "<img" not in drawn
    assert "NaN" not in drawn
    assert re.search(r'class="curve dash-0"[^>]*style="--c: var\(--q8\);"', drawn)
    # A row for each value of each knob and one for the axis; all three seeds of an arm, but for the one that failed.
    assert drawn.count('class="dot-row"') == 6
    assert len(re.findall(r'class="mark dot-seed"', drawn)) == 14
