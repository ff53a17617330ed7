from __future__ import annotations

import json
from pathlib import Path

import pytest

from groupwise.cli import main
from groupwise.evals.reach import time_to_scores
from groupwise.runs import RunLog, RunReadError
from tests.factories import make_eval, make_step


def make_run(
    path: Path,
    scores: dict[int, float],
    *,
    seed: int = 0,
    rate: float = 1e-6,
    seconds: float = 2.0,
    device: str = "a GPU",
) -> Path:
    """Ten steps."""
    log = RunLog(path)
    log.write_recipe(f'name = "countdown"\nseed = {seed}\n[[stages]]\nlearning_rate = {rate}\n')
    log.write_info({"machine": {"device_name": device}})
    for step in range(11):
        if step:
            times = {"time/step_s": seconds, "time/eval_s": 0.5, "time/checkpoint_s": 0.25}
            log.write_step(make_step(step, times | {"tokens/total": 100.0 * step}))
        if step in scores:
            log.write_eval(make_eval(step, scores[step]), [])
    return path


def test_seconds_until_the_first_evaluation_that_is_good_enough(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {0: 0.1, 5: 0.4, 10: 0.35})
    (low, high), _ = time_to_scores([run], [0.5, 0.4])
    (reached,) = low.runs
    assert (low.score, reached.step, reached.train_s, reached.aside_s, reached.tokens) == (0.4, 5, 10.0, 3.75, 500.0)
    assert (low.num_problems, low.device) == (50, "a GPU")
    assert low.seconds is not None
    assert low.seconds[0] == 10.0
    assert high.runs[0].step is None
    assert (high.num_reached, high.seconds) == (0, None)
    assert high.runs[0].train_s == 20.0


def test_runs_that_differ_in_their_seed_are_one_row_with_an_interval(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / f"seed-{seed}", {0: 0.1, 4 + seed: 0.6}, seed=seed, seconds=1.0) for seed in range(3)]
    other = make_run(tmp_path / "other", {0: 0.1, 2: 0.6}, rate=1e-5)
    (tmp_path / "broken").mkdir()
    rows, errors = time_to_scores([tmp_path / "broken", *paths, other], [0.6])
    assert ["broken has no" in error for error in errors] == [True]
    assert [len(row.runs) for row in rows] == [3, 1]
    assert rows[0].label != rows[1].label
    assert rows[0].seconds is not None
    average, low, high = rows[0].seconds
    # 4, 5, 6: standard error 1/√3, and Student's quantile with two degrees of freedom is 4.303.
    assert (average, low, high) == pytest.approx((5.0, 5 - 4.303 / 3**0.5, 5 + 4.303 / 3**0.5), abs=0.01)


def test_a_sweep_stands_for_its_runs(tmp_path: Path) -> None:
    for arm, rate in (("fast", 1e-5), ("slow", 1e-7)):
        for seed in (0, 1):
            make_run(tmp_path / "runs" / arm / f"seed-{seed}", {0: 0.1, 4: 0.6}, seed=seed, rate=rate)
        (tmp_path / "runs" / arm / "seed-0.log").touch()
    (tmp_path / "sweep.json").write_text("{}")
    rows, _ = time_to_scores([tmp_path], [0.6])
    assert [(row.label, row.num_reached) for row in rows] == [("countdown (fast)", 2), ("countdown (slow)", 2)]


def test_seconds_of_two_machines_are_not_averaged(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", {0: 0.1}), make_run(tmp_path / "b", {0: 0.1}, seed=1, device="another GPU")]
    with pytest.raises(RunReadError, match="a GPU and another GPU"):
        time_to_scores(runs, [0.5])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", {0: 0.1, 5: 0.4})
    assert main(["reach", str(run), "--scores", "0.4,0.9"]) == 0
    shown = capsys.readouterr().out
    assert " 10s " in shown
    assert "0 of 1" in shown
    assert main(["reach", str(run), "--scores", "40", "--json"]) == 2
    assert "--scores" in capsys.readouterr().err
    assert main(["reach", str(run), "--scores", "0.4", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["seconds"] == [10.0, None, None]
