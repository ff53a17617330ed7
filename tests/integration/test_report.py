"""`groupwise report`: fast, small, inert, sane on runs that lack this or that; in a real browser where there is one."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from groupwise.base.harmless import visible
from groupwise.cli import main
from groupwise.runs import Run, RunReadError
from groupwise.runs.records import group_to_json
from groupwise.runs.results import Result, append_group, write_result
from groupwise.web.report.report import SECTIONS, make_report
from tests.integration.synthetic_run import HOSTILE, write_synthetic_run
from tests.page_policy import assert_policy_names_code

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MAX_SECONDS = 10
MAX_BYTES = 5_000_000
LONG = HOSTILE + "x" * 100_000 + HOSTILE


class Page(HTMLParser):
    """Elements with their attributes, the text of each <pre>, and whether every element is closed in its turn."""

    VOID = frozenset({"meta", "line", "rect", "circle", "path"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.pre_texts: list[str] = []
        self.title = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "pre":
            self.pre_texts.append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["pre"]:
            self.pre_texts[-1] += data
        if self._open[-1:] == ["title"]:
            self.title += data


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_run(tmp_path_factory.mktemp("report") / "synthetic")


@pytest.fixture(scope="module")
def page(run_dir: Path) -> Path:
    assert main(["report", str(run_dir)]) == 0
    return run_dir / "report.html"


def data_of(page: Path) -> dict[str, object]:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return dict(json.loads(block))


def test_quick_and_small(run_dir: Path) -> None:
    num_completions = sum(
        len(scored.scores) for step in Run(run_dir).rollout_steps() for scored in Run(run_dir).rollouts(step)
    )
    assert num_completions == 12_800
    start = time.monotonic()
    report = make_report([run_dir])
    assert time.monotonic() - start < MAX_SECONDS
    assert len(report.html.encode()) < MAX_BYTES
    assert set(report.twin["sections"]) == SECTIONS.keys() - {"unread"}
    assert report.twin["sections"]["summary"]["cards"][0]["gain"]["verdict"] == "better"


def test_small_whatever_the_evaluation(tmp_path: Path) -> None:
    """500 problems with 8 completions of 4,000 characters at both ends: 32 MB of text."""
    path = write_synthetic_run(tmp_path / "run", num_steps=41, groups_per_step=1)
    long = "".join(f" {number}" for number in range(900))[:4000]
    for step in (0, 40):
        (scored, *_) = Run(path).eval_rollouts(step)
        lines = []
        for number in range(500):
            table = group_to_json(scored)
            table["problem"]["id"] = f"p{number}"
            rollout, score = table["rollouts"][0], table["scores"][0]
            table["rollouts"] = [rollout | {"text": f"{step} {number} {index}{long}"} for index in range(8)]
            lines.append(json.dumps(table | {"scores": [score] * 8, "rewards": [1.0] * 8, "advantages": [0.0] * 8}))
        (path / "eval_rollouts" / f"{step:06d}.jsonl").write_text("\n".join(lines) + "\n")
    report = make_report([path])
    assert len(report.html.encode()) < MAX_BYTES
    notes = report.twin["sections"]["pills"]["notes"]
    assert any("problems are shown" in note for note in notes)
    assert any("texts were left out" in note for note in notes)
    # What is picked by rule is there nevertheless.
    assert all(
        entry["text"] is not None for e in report.twin["sections"]["examples"]["examples"] for entry in e["completions"]
    )


def test_the_twin_is_the_data_of_the_page(page: Path) -> None:
    assert json.loads(page.with_suffix(".json").read_text()) == data_of(page)


def test_hostile_text_is_data_and_nothing_else(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = Page(text)
    tags = [tag for tag, _ in found.elements]
    assert (tags.count("script"), tags.count("style"), tags.count("img"), tags.count("title")) == (2, 1, 0, 1)
    for tag, attributes in found.elements:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "style")}, tag
        assert (attributes.get("href") or "#").startswith("#")
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e]", text) is None
    texts = data_of(page)["texts"]
    assert isinstance(texts, list)
    assert visible(HOSTILE) in texts
    assert visible(LONG) in texts


def test_the_policy_names_exactly_the_script_and_the_style(page: Path) -> None:
    assert_policy_names_code(page.read_text())


@pytest.mark.parametrize(
    ("break_it", "says", "lacks"),
    [
        ("no evals", "There is no held-out evaluation", "pills"),
        ("no rollouts", "No training rollouts were saved", "behaviours"),
        ("no eval rollouts", "completions of the evaluation at step 0 and 60 were not saved", "pills"),
        ("sft only", "The run is not marked as finished: 40 of 200 steps", "behaviours"),
        ("nothing yet", "The run is not marked as finished: 0 of 200 steps", "curves"),
        ("half a line", "The run is not marked as finished: 59 of 200 steps", None),
        ("no info", "run.json is missing", None),
        ("no recipe", "recipe.toml is missing", None),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, break_it: str, says: str, lacks: str | None) -> None:
    path = write_synthetic_run(tmp_path / "run", num_steps=40 if break_it == "sft only" else 60, groups_per_step=1)
    metrics = path / "metrics.jsonl"
    if break_it in ("no evals", "nothing yet"):
        (path / "evals.jsonl").unlink()
    if break_it in ("no rollouts", "nothing yet"):
        shutil.rmtree(path / "rollouts")
    if break_it in ("no eval rollouts", "nothing yet"):
        shutil.rmtree(path / "eval_rollouts")
    if break_it == "nothing yet":
        metrics.unlink()
    if break_it == "half a line":
        metrics.write_bytes(metrics.read_bytes()[:-100])
    if break_it in ("sft only", "nothing yet", "half a line"):
        (path / "events.jsonl").unlink()
    if break_it.startswith("no ") and (file := {"no info": "run.json", "no recipe": "recipe.toml"}.get(break_it)):
        (path / file).unlink()
    report = make_report([path])
    assert says in report.html
    assert lacks is None or lacks not in report.twin["sections"]
    Page(report.html)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run", num_steps=41, groups_per_step=1)
    file = path / "rollouts" / "000041.jsonl"
    file.write_text("{}\n")
    with pytest.raises(RunReadError, match=r"000041\.jsonl, line 1"):
        make_report([path])


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "neither a run" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "report.pdf")]) == 2
    assert "ends in .html" in capsys.readouterr().err


def write_result_of(run: Path, step: int, folder: Path) -> Path:
    result = Result(
        model={"path": "./a-model", "checkpoint": None, "fingerprint": f"model-{step}"},
        task={"name": "countdown", "options": {}},
        data={"fingerprint": "data", "count": 200},
        verifier="countdown/1",
        sampling={"n": 1, "temperature": 0.0},
        cost={"seconds": 12.0, "tokens": 3400},
    )
    write_result(folder, dataclasses.replace(result, is_finished=True))
    for scored in Run(run).eval_rollouts(step):
        append_group(folder, scored)
    return folder


def test_runs_and_results_side_by_side(run_dir: Path, tmp_path: Path) -> None:
    other = write_synthetic_run(tmp_path / "synthetic", num_steps=60, groups_per_step=2, seed=1, hostile=False)
    results = [write_result_of(run_dir, step, tmp_path / f"result-{step}") for step in (0, 200)]
    twin = make_report([run_dir, other, *results]).twin
    # Two folders of one name can be told apart.
    assert len({run["label"] for run in twin["runs"]}) == 2
    cards = twin["sections"]["summary"]["cards"]
    assert [card["label"] for card in cards][-1] == "result-0 → result-200"
    assert len(cards) == 3
    pills = twin["sections"]["pills"]
    assert pills["models"][-2:] == ["result-0", "result-200"]
    assert all(len(problem["cells"]) == len(pills["models"]) for problem in pills["problems"])
    reward = twin["sections"]["curves"]["charts"][0]
    assert {line["run"] for line in reward["lines"]} == {0, 1}


def test_results_alone_are_compared(run_dir: Path, tmp_path: Path) -> None:
    results = [write_result_of(run_dir, step, tmp_path / f"result-{step}") for step in (0, 200)]
    report = make_report(results)
    (card,) = report.twin["sections"]["summary"]["cards"]
    assert card["headline"] == "result-200 is better than result-0"
    # The same completions as in the run: the same numbers.
    assert card["gain"] == make_report([run_dir]).twin["sections"]["summary"]["cards"][0]["gain"]
    assert report.charts == ()
    Page(report.html)


def test_models_that_began_alike_are_shown_once(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("rollouts"))
    models = make_report([run_dir, copy]).twin["sections"]["pills"]["models"]
    assert models == ["before training", "synthetic · step 200 (best)", "copy · step 200 (best)"]


def test_plots_and_tables(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run", num_steps=60, groups_per_step=1)
    out = tmp_path / "pages" / "page.html"
    plots, tables = tmp_path / "plots", tmp_path / "csv"
    assert main(["report", str(path), "--out", str(out), "--plots", str(plots), "--csv", str(tables)]) == 0
    assert out.with_suffix(".json").is_file()
    names = {file.stem for file in tables.iterdir()}
    assert names >= {"reward", "pass_at_1", "kl", "clip", "entropy", "grad_norm", "length", "dead_groups", "time"}
    assert {file.name for file in plots.iterdir()} == {
        f"{name}.{end}" for name in names for end in ("png", "svg", "csv")
    }


def browse(page: Path, folder: Path, *options: str, fragment: str = "") -> subprocess.CompletedProcess[str]:
    """Open the page in a headless browser; what its console says is in stderr."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={folder / 'profile'}", *options, page.as_uri() + fragment]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def console_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_in_a_browser_nothing_fails_and_hostile_text_is_text(page: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text("<script>noSuchFunction()</script>")
    assert console_lines(browse(broken, tmp_path, "--dump-dom")), "errors would not be seen"

    for number, hostile in ((1, HOSTILE), (2, LONG)):
        done = browse(page, tmp_path, "--dump-dom", fragment=f"#problem-{number}")
        assert console_lines(done) == []
        found = Page(done.stdout)
        assert found.title == "synthetic – report"
        assert found.pre_texts.count(visible(hostile)) == 2  # before and after training, in the dialog
        tags = [tag for tag, _ in found.elements]
        assert (tags.count("script"), tags.count("img")) == (2, 0)
        charts = [attributes for tag, attributes in found.elements if tag == "figure"]
        drawn = [attributes for tag, attributes in found.elements if tag == "svg" and attributes.get("role") == "img"]
        assert len(charts) == len(drawn) > 10
        assert "NaN" not in re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_screenshots_in_both_themes(page: Path, tmp_path: Path) -> None:
    """Each theme has its background; whether it looks good is for people to judge."""
    image = pytest.importorskip("PIL.Image")
    brightness = {}
    for theme, options in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
        shot = tmp_path / f"{theme}.png"
        done = browse(page, tmp_path, f"--screenshot={shot}", "--window-size=900,1200", *options)
        assert console_lines(done) == []
        with image.open(shot) as picture:
            brightness[theme] = picture.convert("L").getpixel((5, 5))
    assert brightness["light"] > 230
    assert brightness["dark"] < 40
