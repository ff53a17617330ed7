"""The sentence at the top: paired where completions were kept, from the intervals where not, and honest about doubt."""

import math
from pathlib import Path
from typing import Any

import pytest

from groupwise.base.stats import paired_interval, student_interval
from groupwise.types import StepRecord, Verdict
from groupwise.web.report.gains import run_gain, seeds_gains, stage_gains
from groupwise.web.report.inputs import read_sources
from groupwise.web.report.report import make_report

RIGHT, WRONG, ERROR = ("7", Verdict.CORRECT), ("8", Verdict.WRONG), ("", Verdict.ERROR)
STEPS = [StepRecord(1, "sft", 1, {}), StepRecord(2, "grpo", 1, {})]


def test_an_error_is_no_wrong_answer(make: Any) -> None:
    assert make.group("a", [RIGHT, ERROR]).pass_rate == 1.0
    assert make.group("a", [ERROR]).pass_rate is None


def test_paired_over_the_problems_that_both_judged(make: Any, tmp_path: Path) -> None:
    before = [make.group(name, [WRONG]) for name in "abcd"] + [make.group("e", [ERROR]), make.group("f", [RIGHT])]
    after = [make.group(name, [RIGHT]) for name in "abce"] + [make.group("d", [WRONG]), make.group("f", [RIGHT])]
    evals = [(make.evaluation(0, 0.2, 0.1, 0.4), before), (make.evaluation(2, 0.8, 0.6, 0.9), after)]
    gain = run_gain(read_sources([make.run(tmp_path / "run", STEPS, evals)]).runs[0])
    assert gain is not None
    assert (gain.is_paired, gain.num_problems) == (True, 5)
    assert (gain.low, gain.high) == paired_interval([1, 1, 1, 0, 0])
    assert gain.difference == pytest.approx(0.6)
    assert gain.before.value == pytest.approx(0.2)
    assert gain.sentence().startswith("held-out pass@1 20.0 % → 80.0 %, +60.0 points (95 % interval ")


def test_from_the_intervals_where_completions_were_not_kept(make: Any, tmp_path: Path) -> None:
    evals = [(make.evaluation(0, 0.10, 0.05, 0.20), []), (make.evaluation(2, 0.50, 0.40, 0.60), [])]
    path = make.run(tmp_path / "run", STEPS, evals)
    for file in (path / "eval_rollouts").iterdir():
        file.unlink()
    gain = run_gain(read_sources([path]).runs[0])
    assert gain is not None
    assert not gain.is_paired
    # Newcombe's method 10 by hand: 0.4 - sqrt(0.1² + 0.1²), 0.4 + sqrt(0.1² + 0.05²).
    assert gain.low == pytest.approx(0.4 - math.sqrt(0.02))
    assert gain.high == pytest.approx(0.4 + math.sqrt(0.0125))
    assert gain.verdict == "better"


@pytest.mark.parametrize(("after", "verdict"), [(0.9, "better"), (0.1, "worse"), (0.5, "unclear")])
def test_the_verdict_needs_the_whole_interval(make: Any, tmp_path: Path, after: float, verdict: str) -> None:
    evals = [(make.evaluation(0, 0.5, 0.4, 0.6), []), (make.evaluation(2, after, after - 0.05, after + 0.05), [])]
    path = make.run(tmp_path / "run", STEPS, evals)
    for file in (path / "eval_rollouts").iterdir():
        file.unlink()
    gain = run_gain(read_sources([path]).runs[0])
    assert gain is not None
    assert gain.verdict == verdict


def test_each_stage_starts_where_the_one_before_ended(make: Any, tmp_path: Path) -> None:
    evals = [(make.evaluation(step, value, value, value), []) for step, value in ((0, 0.1), (1, 0.3), (2, 0.7))]
    (run,) = read_sources([make.run(tmp_path / "run", STEPS, evals)]).runs
    assert [(name, gain.before.value, gain.after.value) for name, gain in stage_gains(run)] == [
        ("sft", 0.1, 0.3),
        ("grpo", 0.3, 0.7),
    ]


def test_one_evaluation_is_no_gain(make: Any, tmp_path: Path) -> None:
    path = make.run(tmp_path / "run", STEPS, [(make.evaluation(0, 0.1, 0.0, 0.2), [])])
    assert run_gain(read_sources([path]).runs[0]) is None


def seeds_of(make: Any, folder: Path, scores: list[float], recipes: list[str]) -> list[Path]:
    """Runs from 0.5 to these scores, give or take 0.1, without completions."""
    paths = []
    for number, (score, recipe) in enumerate(zip(scores, recipes, strict=True)):
        ends = [make.evaluation(0, 0.5, 0.4, 0.6), make.evaluation(2, score, score - 0.1, score + 0.1)]
        path = make.run(folder / f"run-{number}", STEPS, [(end, []) for end in ends], recipe=recipe)
        for file in (path / "eval_rollouts").iterdir():
            file.unlink()
        paths.append(path)
    return paths


def test_seeds_of_a_recipe_are_summed_up(make: Any, tmp_path: Path) -> None:
    # Names may differ, and an older version may not have written an empty table.
    recipes = ['seed = 0\nname = "a"', 'seed = 1\nname = "b"\n[model.options]', "seed = 2", "seed = 3\n[model]\nx = 1"]
    paths = seeds_of(make, tmp_path, [0.8, 0.9, 0.55, 0.1], recipes)
    (found,) = seeds_gains(read_sources(paths).runs)
    assert found.runs == ("run-0", "run-1", "run-2")
    # Student's t with two degrees of freedom: 0.25 ± 4.3027 * 0.18028 / sqrt(3).
    assert (found.low, found.high) == pytest.approx((-0.19784, 0.69784), abs=1e-5)
    assert found.verdict == "unclear"
    assert found.sentence() == (
        "held-out pass@1 50.0 % → 80.0, 90.0, 55.0 %, +25.0 points on average (95 % interval "
        "−19.8 to +69.8, over 3 seeds or over problems, whichever is wider), 4 problems"
    )
    cards = make_report(paths).twin["sections"]["summary"]["cards"]
    assert [card["label"] for card in cards] == ["3 seeds: run-0, run-1, run-2", "run-0", "run-1", "run-2", "run-3"]


def test_seeds_that_agree_do_not_outvote_the_problems(make: Any, tmp_path: Path) -> None:
    """All are asked the same problems, and start from one model: their luck with these is shared."""
    paths = seeds_of(make, tmp_path, [0.52, 0.53, 0.52], ["seed = 0", "seed = 1", "seed = 2"])
    (found,) = seeds_gains(read_sources(paths).runs)
    low, _ = student_interval([gain.difference for gain in found.gains])
    assert low > 0
    # Newcombe's interval of each: 0.1 either way before and after.
    assert (found.low, found.high) == pytest.approx([0.07 / 3 + end * math.sqrt(0.02) for end in (-1, 1)])
    assert found.verdict == "unclear"


def test_what_is_no_set_of_seeds(make: Any, tmp_path: Path) -> None:
    twice = seeds_of(make, tmp_path / "twice", [0.8, 0.9], ["seed = 0", "seed = 0"])
    assert seeds_gains(read_sources(twice).runs) == []
    alone = seeds_of(make, tmp_path / "alone", [0.8, 0.9], ["seed = 0\nx = 1", "seed = 1\nx = 2"])
    assert seeds_gains(read_sources(alone).runs) == []
    going_on = seeds_of(make, tmp_path / "going-on", [0.8, 0.9], ["seed = 0", "seed = 1"])
    lines = (going_on[0] / "evals.jsonl").read_text().replace('"step":2', '"step":1')
    (going_on[0] / "evals.jsonl").write_text(lines)
    assert seeds_gains(read_sources(going_on).runs) == []
