"""The pages of results: their tables say what the archives say."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from groupwise.config import find_recipe, load_recipe, make_recipe
from groupwise.runs import Run, RunLog
from groupwise.sweeps.folder import changed_keys
from groupwise.types import (
    Finish,
    Group,
    Message,
    Problem,
    Prompt,
    Rollout,
    Score,
    ScoredGroup,
    StepRecord,
    Verdict,
)
from tests.unit.sweeps.made_up import evaluation

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "benchmarks" / "results_pages.py"
FIGURE_SCRIPT = ROOT / "benchmarks" / "results_figure.py"
ARCHIVES_SCRIPT = ROOT / "benchmarks" / "archives.py"
CORPORA_SCRIPT = ROOT / "benchmarks" / "corpora.py"


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def reader(path: Path, imported: Path = ARCHIVES_SCRIPT) -> ModuleType:
    """A script that imports another script."""
    if imported.stem not in sys.modules:
        script(imported)
    return script(path)


def read_from(module: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of the archives, the pages and their tables.toml."""
    monkeypatch.setattr(module, "RESULTS", folder)
    monkeypatch.setattr(module, "TABLES", folder / "tables.toml")
    monkeypatch.setattr(module, "stored", folder.joinpath)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = reader(SCRIPT)
    read_from(module, tmp_path, monkeypatch)
    return module


def write_run(run_dir: Path, scores: list[float], step_s: float) -> None:
    log = RunLog(run_dir)
    for step, score in enumerate(scores):
        if step:
            log.write_step(StepRecord(step, "grpo", step, {"time/step_s": step_s, "time/eval_s": 2.0}))
        log.write_eval(evaluation(step, round(1000 * score), 1000), [])
    log.close()


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    archives = script(ARCHIVES_SCRIPT)
    for name, text in (("b/run.json", "{}"), ("a.json", "[1]"), ("b/deep/er.txt", "x\n")):
        path = tmp_path / "first" / "it" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    packed = archives.pack(tmp_path / "first" / "it", tmp_path / "packed")
    assert packed == tmp_path / "packed" / "it.tar.xz"
    again = archives.unpack(packed, tmp_path / "second")
    assert again == tmp_path / "second" / "it"
    assert (again / "b" / "deep" / "er.txt").read_text() == "x\n"
    os.utime(again / "a.json", (0, 0))
    (again / "b").chmod(0o700)
    assert archives.pack(again, tmp_path / "packed again").read_bytes() == packed.read_bytes()


def test_archives_are_read_by_name_and_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archives = script(ARCHIVES_SCRIPT)
    monkeypatch.setattr(archives, "ARCHIVES", tmp_path / "packed")
    (tmp_path / "it" / "run").mkdir(parents=True)
    (tmp_path / "it" / "run" / "run.json").write_text("{}")
    archives.pack(tmp_path / "it", tmp_path / "packed")
    assert (archives.stored("it/run") / "run.json").read_text() == "{}"
    assert archives.stored("it/run/run.json").parent == archives.stored("it/run")


def test_results_are_small_and_have_one_page_per_archive() -> None:
    results = ROOT / "docs" / "results"
    files = [path for path in results.rglob("*") if path.is_file()]
    assert len(files) < 40
    assert sum(path.stat().st_size for path in files) < 3_000_000
    pages = {page.stem: page.read_text(encoding="utf-8") for page in results.glob("*.md") if page.stem != "README"}
    archives = (ROOT / "benchmarks" / "results" / "archives").iterdir()
    assert set(pages) == {path.name.removesuffix(".tar.xz") for path in archives}
    headings = ["Question", "Set-up", "Result", "What it means", "Limits"]
    for name, text in pages.items():
        assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == headings, name
        assert f"({name}.md)" in (results / "README.md").read_text(encoding="utf-8")


def test_pages_are_made_of_the_archives() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_picture_is_made_of_the_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = reader(FIGURE_SCRIPT)
    assert not figure.is_stale(figure.read_panels(), figure.RESULTS / "held-out.png")

    read_from(figure, tmp_path, monkeypatch)
    write_run(tmp_path / "run", [0.1, 0.3], step_s=28.0)
    panel = '[[figure.panels]]\ntitle = "it"\nlines = [{ runs = ["run"], label = "it", colour = "blue" }]\n'
    (tmp_path / "tables.toml").write_text(2 * panel)
    figure.draw(figure.read_panels(), tmp_path / "held-out.png")
    assert not figure.is_stale(figure.read_panels(), tmp_path / "held-out.png")
    (tmp_path / "tables.toml").write_text(2 * panel.replace("blue", "orange"))
    assert figure.is_stale(figure.read_panels(), tmp_path / "held-out.png")
    (tmp_path / "tables.toml").write_text(2 * panel)
    write_run(tmp_path / "second", [0.1, 0.4], step_s=28.0)
    (tmp_path / "second" / "evals.jsonl").replace(tmp_path / "run" / "evals.jsonl")
    assert figure.is_stale(figure.read_panels(), tmp_path / "held-out.png")


def test_pages_that_say_something_else_are_stale(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path.parent)
    here = tmp_path.name
    for number in (0, 1):
        write_run(tmp_path / str(number), [0.1, 0.3], step_s=28.0)
    (tmp_path.parent / "README.md").write_text("# No table\n")
    (tmp_path / "README.md").write_text("<!-- table: it -->\n<!-- end of table -->\n")
    spec = '[it]\nkind = "seeds"\nrows = [{ label = "it", runs = "0 1" }]\n[reports]\n"report.html" = ["0", "1"]\n'
    (tmp_path / "tables.toml").write_text(spec)

    def run(*options: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["results_pages.py", *options])
        return tables.main(), capsys.readouterr().out.splitlines()

    assert run("--check") == (1, [f"{here}/README.md: stale", f"{here}/report.html: stale"])
    assert run() == (0, [f"{here}/README.md: written", f"{here}/report.html: written"])
    assert run("--check") == (0, [])
    assert "| it | 10.0 % | 30.0, 30.0 % |" in (tmp_path / "README.md").read_text()
    page = tmp_path / "report.html"
    page.write_text(page.read_text().replace("<style>", "<style>\n"))
    assert run("--check") == (0, [])  # how a report looks is another matter
    write_run(tmp_path / "1", [0.1, 0.4], step_s=28.0)
    assert run("--check") == (1, [f"{here}/README.md: stale", f"{here}/report.html: stale"])


def test_before_and_after_and_two_runs_side_by_side(tables: ModuleType, tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.3, 0.5], step_s=28.0)
    found = {
        "num_problems": 1000,
        "first_value": 0.1,
        "second_value": 0.5,
        "difference": 0.4,
        "low": 0.37,
        "high": 0.43,
    }
    found |= {"gained": [1, 2, 3], "lost": [1], "p": 1.5e-9, "test": "mcnemar"}
    (tmp_path / "a.json").write_text(json.dumps(found))
    row = {"label": "it", "run": "a", "compare": "a.json", "first": "one", "second": "two"}
    shown = tables.before_after([row]).splitlines()[-1]
    assert shown == ("| it | 10.0 % (8.3 to 12.0) | 50.0 % (46.9 to 53.1) | +40.0 (+37.0 to +43.0) | 1,000 | 1.0 min |")
    shown = tables.against([row]).splitlines()[-1]
    assert shown.startswith("| it | one: 10.0 % (8.3 to 12.0) | two: 50.0 %")
    assert shown.endswith("| +40.0 (+37.0 to +43.0) | 3 | 1 | 1.5e-09 |")
    (tmp_path / "a.json").write_text(json.dumps(found | {"test": "paired_bootstrap"}))
    shown = tables.against([row]).splitlines()[-1]
    assert shown == "| it | one: 10.0 % | two: 50.0 % | +40.0 (+37.0 to +43.0) |  |  | 1.5e-09 |"


def test_a_line_an_experiment(tables: ModuleType, tmp_path: Path) -> None:
    for name, after in (("a", 0.5), ("b", 0.4)):
        write_run(tmp_path / name, [0.1, after], step_s=58.0)
        found = {"first_value": 0.1, "second_value": after, "difference": after - 0.1, "low": 0.2, "high": 0.45}
        (tmp_path / f"{name}.json").write_text(json.dumps(found | {"num_problems": 1000}))
    shown = tables.summary([{"label": "it", "runs": "a b"}]).splitlines()[-1]
    assert shown == "| it | 10.0 % (8.3 to 12.0) | 50.0, 40.0 % | +30.0 (+20.0 to +45.0) | 1,000 | 1.0 min |"


def test_how_much_rollouts_of_a_group_differ(tables: ModuleType, tmp_path: Path) -> None:
    log = RunLog(tmp_path / "a")
    for step, (signal, identical, entropy) in enumerate([(1.0, 0.0, 0.8), (0.5, 0.9, 0.1), (0.25, 0.8, 0.3)], start=1):
        metrics = {"groups/signal_share": signal, "rollouts/identical_share": identical, "policy/entropy_nats": entropy}
        log.write_step(StepRecord(step, "grpo", step, metrics))
    log.close()
    shown = tables.diversity([{"label": "it", "runs": "a a", "first": "2", "last": "3"}]).splitlines()[-1]
    assert shown == "| it | 2 to 3 | 38, 38 % | 85, 85 % | 0.20, 0.20 |"


def test_rollouts_and_groups_that_taught(tables: ModuleType, tmp_path: Path) -> None:
    for seed, share in enumerate((0.5, 0.25)):
        log = RunLog(tmp_path / str(seed))
        for step in range(1, 41):
            count = 8.0 if step <= 20 else 16.0
            metrics = {"rollouts/count": 100.0, "groups/count": count, "groups/signal_share": share}
            log.write_step(StepRecord(step, "grpo", step, metrics))
        log.write_step(StepRecord(41, "sft", 1, {"policy/loss": 1.0}))
        log.close()
    shown = tables.effort([{"label": "it", "runs": "0 1"}]).splitlines()[-1]
    assert shown == "| it | 4; 4 | 480; 480 | 240; 120 | 8; 4 |"


def test_seeds_and_time_to_a_score(tables: ModuleType, tmp_path: Path) -> None:
    for seed, final in enumerate((0.5, 0.6, 0.7)):
        write_run(tmp_path / str(seed), [0.1, final], step_s=58.0)
    shown = tables.seeds([{"label": "it", "runs": "0 1 2"}]).splitlines()[-1]
    # Student's t with two degrees of freedom: 4.303 * 0.1 / sqrt(3).
    assert shown == "| it | 10.0 % | 50.0, 60.0, 70.0 % | 60.0 % (35.2 to 84.8) | 1,000 | 1.0 min |"
    runs = [{"step": 10, "train_s": seconds} for seconds in (55.2, 60.0, 66.0)]
    rows = [
        {"score": 0.4, "num_reached": 3, "runs": runs, "seconds": [60.4, 50.2, 70.9]},
        {"score": 0.5, "num_reached": 1, "runs": [runs[0], *[{"step": None, "train_s": 99.0}] * 2], "seconds": None},
    ]
    (tmp_path / "reach.json").write_text(json.dumps({"rows": rows}))
    assert tables.reach([{"label": "it", "reach": "reach.json"}]).splitlines()[-2:] == [
        "| it | 40 % | 3 of 3 | 60 s | 50 to 71 s | 55, 60, 66 s |",
        "| it | 50 % | 1 of 3 | – | – | 55, –, – s |",
    ]


@pytest.mark.parametrize(
    ("numbers", "target", "expected"),
    [
        ([54, 44, 54], 64, True),
        ([32, 15, 7, 4], 44, True),
        ([3, 4, 5], 60, False),
        ([2, 2, 4], 0, True),
        ([5], 4, False),
    ],
)
def test_which_problems_sums_are_enough_for(numbers: list[int], target: int, expected: bool) -> None:
    assert script(ROOT / "benchmarks" / "countdown_answers.py").is_sum(numbers, target) is expected


def answer(problem: int, text: str, verdict: Verdict, finish: Finish = Finish.STOP) -> ScoredGroup:
    prompt = Prompt(Problem(f"p{problem}", (Message("user", f"Question {problem}?\nBox it."),), "7"), (1,))
    group = Group(prompt, (Rollout((1, 2, 3), (0.0, 0.0, 0.0), text, finish, 0),))
    return ScoredGroup(group, (Score(0.0, verdict),), (0.0,), (0.0,), has_signal=False)


def test_answers_of_several_evaluations_beside_each_other(tmp_path: Path) -> None:
    def solved(problem: int, text: str, verdict: Verdict) -> ScoredGroup:
        scored = answer(problem, text, verdict)
        asked = replace(scored.group.prompt.problem, meta={"nums": [problem, 4], "target": 9})
        return replace(scored, group=replace(scored.group, prompt=replace(scored.group.prompt, problem=asked)))

    log = RunLog(tmp_path / "run")
    first = [solved(5, "let me think", Verdict.UNPARSED), solved(3, "<answer>3\n| 4</answer>", Verdict.WRONG)]
    log.write_eval(evaluation(0, 0, 2), first)
    # In another order; problems are found by id.
    last = [solved(3, "<answer>3 + 4</answer>", Verdict.WRONG), solved(5, "<answer>5 + 4</answer>", Verdict.CORRECT)]
    log.write_eval(evaluation(8, 1, 2), last)
    log.close()
    module = script(ROOT / "benchmarks" / "countdown_answers.py")
    steps = dict(map(module.named_step, ("0=before", "8=after")))
    assert module.beside_each_other(Run(tmp_path / "run"), steps, count=2).splitlines()[-4:] == [
        "| numbers | target | before, step 0 | after, step 8 |",
        "|---|---|---|---|",
        "| 3 4 | 9 | `3 ¦ 4` | `3 + 4` |",
        "| 5 4 | 9 | none after 3 tokens | `5 + 4` ✓ |",
    ]


def test_what_mathematics_does_otherwise_than_before(tables: ModuleType, tmp_path: Path) -> None:
    module = script(ROOT / "benchmarks" / "math_answers.py")
    before = [
        answer(0, "3 + 4 = 8, so \\boxed{8}", Verdict.WRONG),
        answer(1, "```python\nprint(7)\n```\n```output\n9\n```\n\\boxed{9}", Verdict.WRONG),
        answer(2, "2 + 5 = 7: \\boxed{7}", Verdict.CORRECT),
        answer(3, "recheck. Let me re-check", Verdict.UNPARSED, Finish.LENGTH),
    ]
    after = [
        answer(3 - place, "2 + 5 = 7", Verdict(verdict)) for place, verdict in enumerate(["correct"] * 3 + ["wrong"])
    ]
    found = module.facts(before)
    assert found == {
        "answers": 4, "correct": 1, "without an answer": 1, "wrong, with a wrong equation": 1, "wrong, without one": 1,
        "with a program": 1, "with a program and its output": 1, "cut off": 1, "cut off, starting again": 1,
        "tokens": 12, "equations": 2, "wrong equations": 1,
    }  # fmt: skip
    (tmp_path / "answers.json").write_text(json.dumps({"before": found, "after": module.facts(after)}))
    shown = tables.math_answers([{"label": "it", "answers": "answers.json"}]).splitlines()
    assert shown[2].startswith("| correct | 25.0 % (")
    assert shown[-1] == "| equations written | 2 (50.0 % wrong) | 4 (0.0 % wrong) |"
    seeds = [{"label": f"seed {seed}", "answers": "answers.json"} for seed in range(2)]
    assert tables.math_answers(seeds).startswith(
        "| share of answers | seed 0, before | seed 0, after | seed 1, after |\n"
    )
    pairs = module.pairs_of(before, after)
    assert [list(kind.values()) for kind in module.by_first_answer(pairs)] == [
        ["cut off", 1, 0, 1],
        ["ended, with a program", 1, 0, 1],
        ["ended, without", 2, 1, 1],
    ]
    # Three had ended, and all stayed as long: in the order of their ids.
    assert [list(kind.values())[1:] for kind in module.by_length(pairs)] == [[0, 0, 0], [1, 0, 0], [1, 0, 1], [1, 1, 1]]
    page = module.side_by_side(before, after, "Both")
    assert "## Wrong before, right after: 2 of 4" in page
    assert "## Wrong both times: 1 of 4\n\n**Question 0?** Right: 7." in page
    assert "````text\n```python" in page  # a fence that no line of the answer ends


def test_scores_of_models_side_by_side(tables: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    found = {"pass@1": {"value": 0.25, "low": 0.2, "high": 0.301}, "perplexity": {"value": 66.5, "low": 59, "high": 76}}
    (tmp_path / "base" / "general.json").write_text(json.dumps({"scores": found}))
    columns = [{"head": name, "file": "general.json", "score": name} for name in found]
    shown = tables.made(kind="scores", rows=[{"label": "it", "folder": "base"}], columns=columns).splitlines()
    assert shown[0] == "|  | pass@1 | perplexity |"
    assert shown[-1] == "| it | 25.0 % (20.0 to 30.1) | 66.5 (59.0 to 76.0) |"


def test_group_sizes(tables: ModuleType, tmp_path: Path) -> None:
    sizes = [
        {
            "size": size, "dead_share": 1 / size, "advantage_variance": {"r": 1 / size},
            "gradient_variance": {"r": 8 / size}, "signal_to_noise": {"r": 0.001 * size},
            "sample_s": 1.0, "learn_s": size / 4,
        }
        for size in (4, 8)
    ]  # fmt: skip
    slopes = {"r": {"advantage": [-1.0, -1.1, -0.9], "gradient": [-0.87, -0.9, -0.84]}}
    (tmp_path / "groups.json").write_text(json.dumps({"sizes": sizes, "slopes": slopes}))
    row = {"label": "it", "groups": "groups.json", "rule": "r"}
    shown = tables.made(kind="groups", rows=[row]).splitlines()
    assert shown[-2:] == [
        "| 4 | 25 % | 0.2500 | 1.000 | 0.0040 | 0.0013 |",
        "| 8 | 12 % | 0.1250 | 0.500 | 0.0080 | 0.0011 |",
    ]
    shown = tables.made(kind="doublings", rows=[row]).splitlines()
    assert shown[0] == "| G | sampling | learning | cost of doubling | gain, it |"
    # One second more of two, for twice the signal.
    assert shown[-2:] == ["| 4 | 1.00 s | 1.00 s |  |  |", "| 8 | 1.00 s | 2.00 s | 1.50 × | 2.00 × |"]
    shown = tables.made(kind="slopes", rows=[row]).splitlines()
    assert shown[-1] == "| it | −1.00 (−1.10 to −0.90) | −0.87 (−0.90 to −0.84) |"


@pytest.mark.parametrize("file", ["attacks.py", "bad_input.py", "faults.py"])
def test_corpora_are_tests(file: str) -> None:
    for functions in reader(ROOT / "benchmarks" / file, CORPORA_SCRIPT).CORPORA.values():
        for function in functions:
            path, _, name = function.partition("::")
            assert f"\ndef {name}(" in (ROOT / "tests" / path).read_text(), function


def test_attacks_are_counted_by_corpus() -> None:
    module = reader(ROOT / "benchmarks" / "attacks.py", CORPORA_SCRIPT)
    programs, answers = "tests/unit/sandbox/test_attacks.py::test_attack", module.CORPORA["hostile queries"][0]
    ends = [
        (f"{programs}[namespaces-fork]", "skipped"),
        (f"{programs}[landlock:1-fork]", "passed"),
        (f"{programs}[landlock:1-landlock]", "failed"),
        (f"tests/{answers}[landlock-x]", "passed"),
    ]
    shown = script(CORPORA_SCRIPT).table(ends, module.name_of, {answers.partition("::")[2] + "[landlock-x]": 7})
    assert shown.splitlines()[2:] == [
        "| hostile programs, namespaces | not offered by this machine |  |",
        "| hostile programs, landlock:1 | 2 | 1 |",
        "| hostile queries | 7 | 7 |",
    ]


def run_of(problem: int, text: str, verdict: Verdict, detail: str, query: str = "") -> ScoredGroup:
    prompt = Prompt(Problem(f"p{problem}", (Message("user", "Question?\nAnswer."),), query), (1,))
    group = Group(prompt, (Rollout((1, 2), (0.0, 0.0), text, Finish.STOP, 0),))
    return ScoredGroup(group, (Score(0.0, verdict, detail=detail),), (0.0,), (0.0,), has_signal=False)


def test_what_code_and_queries_do_otherwise_than_before(tables: ModuleType, tmp_path: Path) -> None:
    script(ROOT / "benchmarks" / "math_answers.py")
    module = script(ROOT / "benchmarks" / "code_answers.py")
    programs = [
        run_of(0, "def f(): ...\n# why\nassert f()", Verdict.WRONG, "0 of 3 tests; test 1: raised: AssertionError"),
        run_of(1, "def f(): ...", Verdict.WRONG, "2 of 3 tests; test 3: wrong value"),
        run_of(2, "def f(): ...", Verdict.CORRECT, "3 of 3 tests"),
    ]
    found = module.facts(programs, module.CODE)
    assert found == {
        "answers": 3, "correct": 1, "wrong, some tests pass": 1, "wrong, no test passes": 1, "tokens": 6,
        "wrong, the first failure is an error": 1, "with an assertion of its own": 1, "wrong by that assertion": 1,
        "with comments": 1,
    }  # fmt: skip
    (tmp_path / "code.json").write_text(json.dumps({"before": found, "after": found}))
    shown = tables.code_answers([{"label": "", "answers": "code.json"}]).splitlines()
    assert shown[0] == "| share of answers | before | after |"
    assert shown[2].startswith("| correct | 33.3 % (")
    assert shown[-1] == "| mean tokens | 2 | 2 |"


def test_held_out_queries_that_were_asked_for_in_training(tables: ModuleType, tmp_path: Path) -> None:
    script(ROOT / "benchmarks" / "math_answers.py")
    module = script(ROOT / "benchmarks" / "code_answers.py")
    texas, ohio, new = 'SELECT a FROM t WHERE s = "texas"', 'select a  from t where s = "ohio"', "SELECT MAX(b) FROM t"
    train = [Problem("t", (Message("user", "?"),), texas)]
    before = [
        run_of(0, "SELECT 1", Verdict.WRONG, "0 rows, not 1: SELECT 1", texas.lower()),
        run_of(1, "SELECT 2", Verdict.WRONG, "no such column: b: SELECT 2", ohio),
        run_of(2, "SELECT 3", Verdict.WRONG, "other rows: SELECT 3", new),
    ]
    after = [*before[1:], run_of(0, texas, Verdict.CORRECT, texas, texas)]
    found = module.how_new(train, module.pairs_of(before, after))
    assert [list(kind.values())[1:] for kind in found] == [[1, 0, 1], [1, 0, 0], [1, 0, 0]]
    facts = module.facts(before, module.SQL)
    assert [facts[f"wrong, {kind}"] for kind in ("the query fails", "it finds no rows", "it finds other rows")] == [
        1,
        1,
        1,
    ]
    (tmp_path / "sql.json").write_text(json.dumps({"queries": found}))
    shown = tables.by_kind([{"label": "seed 0", "answers": "sql.json"}], "in training", "queries").splitlines()
    assert shown[0] == "| in training | problems | before | after, seed 0 |"
    assert shown[2].startswith("| the same query | 1 | 0.0 % (0.0 to ")
    assert module.query_of(before[0].group.prompt.problem).startswith("**Question?**")


@pytest.mark.parametrize(
    ("recipe", "run"),
    [
        ("countdown-staged", "countdown/staged-refilled-2"),
        ("countdown-single", "countdown/single-refilled-1"),
        (str(ROOT / "benchmarks" / "recipes" / "countdown-small.toml"), "countdown/staged-1e-6"),
    ],
)
def test_a_recipe_is_what_was_run(recipe: str, run: str) -> None:
    """But for the model, the seed, how often it was looked at, and keys that move no number."""
    archives = sys.modules.get("archives") or script(ARCHIVES_SCRIPT)
    ran = make_recipe(Run(archives.stored(run)).recipe)
    changes = changed_keys(load_recipe(find_recipe(recipe)), ran)
    free = {"seed", "model.path", "engine.max_batch_rollouts", "checkpoints.every_steps", "verifier.workers"}
    assert set(changes) <= free


def test_time_to_accuracy_runs_recipes_and_goes_on(tmp_path: Path) -> None:
    module = script(ROOT / "benchmarks" / "time_to_accuracy.py")
    for case in module.CASES.values():
        load_recipe(find_recipe(case.recipe), [*case.overrides, "seed=1"])  # the keys are there
        command = module.train_command(case, tmp_path / "run", 1, ["model.path=x"])
        assert command[3:5] == ["train", case.recipe]
        assert command[-4:] == ["--set", "seed=1", "--set", "model.path=x"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").touch()
    assert module.train_command(case, tmp_path / "run", 1, [])[3:] == ["train", "--resume", str(tmp_path / "run")]
