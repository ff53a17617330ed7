"""The search: it finds what is there to be found, goes on where it was, and knows when the ranges are used up."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.cli import main
from groupwise.config import ConfigError
from groupwise.sweeps import run_jobs
from groupwise.sweeps.arms import resolve
from groupwise.sweeps.folder import jobs_of
from groupwise.sweeps.optuna_search import SearchResult, check_search, objective_of, propose, run_search, values_of
from groupwise.sweeps.run_jobs import JobProgress, JobRunner, StopSwitch
from groupwise.sweeps.spec import HELD_OUT, SearchSpec, SweepSpec, parse_spec
from groupwise.sweeps.sweep_records import read_sweep

pytest.importorskip("optuna")

pytestmark = pytest.mark.extras

FAKE_TRAIN = (sys.executable, str(Path(__file__).with_name("fake_train.py")))
SPEC = """
name = "found"
recipe = "demo"
[search]
trials = 4
[[search.ranges]]
name = "rate"
key = "stages.grpo.optimizer.learning_rate"
low = 1e-6
high = 1e-2
log = true
"""
CHOICES = """
[[search.ranges]]
name = "epochs"
key = "stages.grpo.epochs_per_batch"
choices = [1, 2]
"""


def parts(text: str) -> tuple[SweepSpec, SearchSpec]:
    spec = parse_spec(text)
    assert spec.search is not None
    return spec, spec.search


def search(text: str, folder: Path, stop: StopSwitch | None = None) -> SearchResult:
    spec, wanted = parts(text)
    sweep = resolve(spec, Path())
    check_search(wanted, sweep)
    stop = stop or StopSwitch()
    return run_search(wanted, sweep, folder, JobRunner(folder, train=FAKE_TRAIN, stop=stop), stop)


def test_a_search_goes_on_where_it_was_and_says_what_was_best(tmp_path: Path) -> None:
    first = search(SPEC.replace("trials = 4", "trials = 2"), tmp_path)
    assert [run.status for run in first.runs] == ["finished"] * 2
    more = search(SPEC, tmp_path)
    assert [arm.name for arm in more.sweep.arms] == [f"trial-{number:03d}" for number in range(4)]
    assert more.sweep.arms[:2] == first.sweep.arms
    scores = {run.job.arm.name: run.score for run in more.runs}
    assert more.best is not None
    assert more.best_value == scores[more.best.name] == max(score for score in scores.values() if score is not None)
    assert len(list(tmp_path.glob("runs/*/seed-0/starts"))) == 4
    assert all(len(path.read_text().splitlines()) == 1 for path in tmp_path.glob("runs/*/seed-0/starts"))
    # Asked once more there is nothing to do, and a study of the same trials proposes the same.
    assert search(SPEC, tmp_path).best == more.best
    there = read_sweep(tmp_path)
    assert there is not None
    assert there.arms == more.sweep.arms
    _, wanted = parts(SPEC)
    values = values_of(wanted, more.runs)
    assert propose(wanted, more.sweep, values, 2) == propose(wanted, more.sweep, values, 2)


def test_proposals_gather_where_it_is_good() -> None:
    """Without runs: values as the objective has them, best at 1e-4."""
    spec, wanted = parts(SPEC)
    sweep = resolve(spec, Path())
    values: dict[str, float] = {}
    key = "stages.grpo.optimizer.learning_rate"
    for _ in range(30):
        (arm,), _refusal = propose(wanted, sweep, values, 1)
        sweep = replace(sweep, arms=(*sweep.arms, arm))
        values[arm.name] = -abs(math.log10(arm.settings[key]) + 4)
    early, late = (sum(values[arm.name] for arm in arms) / 10 for arms in (sweep.arms[:10], sweep.arms[20:]))
    assert late > early + 0.3


def test_ranges_that_are_used_up_end_the_search(tmp_path: Path) -> None:
    text = SPEC[: SPEC.index("[[search.ranges]]")] + CHOICES
    found = search(text, tmp_path)
    assert sorted(arm.settings["stages.grpo.epochs_per_batch"] for arm in found.sweep.arms) == [1, 2]
    assert found.end == "the search stops after 2 trials: Optuna proposes only values that were tried before"


def test_a_stop_leaves_the_rest_to_the_next_sitting(tmp_path: Path) -> None:
    now = iter([0.0, 1.0])
    stop = StopSwitch(limit_s=1.0, clock=lambda: next(now, 9.0))
    found = search(SPEC, tmp_path, stop)
    assert len(found.runs) < 4
    assert len(search(SPEC, tmp_path).runs) == 4


def test_an_arm_counts_when_all_its_seeds_have_finished(tmp_path: Path) -> None:
    spec, wanted = parts(SPEC.replace('"demo"', '"demo"\nseeds = [0, 1]'))
    found = search(SPEC.replace("trials = 4", "trials = 1"), tmp_path)
    job = found.runs[0].job
    finished, failed = JobProgress(job, "finished"), JobProgress(job, "failed")
    assert values_of(wanted, [finished, failed]) == {}
    assert values_of(wanted, [finished, finished]) == {"trial-000": job.score}
    assert objective_of(job, HELD_OUT) == job.score
    assert objective_of(job, "reward/mean") == 0.5
    assert objective_of(job, "policy/loss") is None
    assert [job.seed for job in jobs_of(resolve(spec, Path()), tmp_path, found.sweep.arms)] == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SPEC.replace("trials = 4", 'trials = 4\nobjective = "reward/maen"'),
            "objective = .*did you mean 'reward/mean'",
        ),
        (SPEC.replace("trials = 4", 'trials = 4\nobjective = "eval/mean_reward"'), "objective = 'eval/mean_reward'"),
        (SPEC.replace("learning_rate", "learning_rat"), "unknown key; did you mean 'learning_rate'"),
        (SPEC + CHOICES.replace("[1, 2]", "[1, 0]"), "arm 'epochs = 0': .*epochs_per_batch = 0: must be at least 1"),
    ],
)
def test_what_can_be_known_before_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        search(text, tmp_path)


def test_ranges_that_no_longer_hold_what_was_tried_are_refused(tmp_path: Path) -> None:
    search(SPEC.replace("trials = 4", "trials = 1"), tmp_path)
    with pytest.raises(ConfigError, match=r"trial-000 .* is outside them"):
        search(SPEC.replace("1e-6", "9e-3"), tmp_path)


def test_what_cannot_be_run_is_not(tmp_path: Path) -> None:
    """32 problems a step are not divided by most numbers."""
    text = SPEC[: SPEC.index("[[search.ranges]]")] + (
        '[[search.ranges]]\nname = "update"\nkey = "stages.grpo.problems_per_update"\nlow = 8\nhigh = 32\n'
    )
    found = search(text.replace("trials = 4", "trials = 2"), tmp_path)
    assert all(32 % arm.settings["stages.grpo.problems_per_update"] == 0 for arm in found.sweep.arms)
    assert len(found.sweep.arms) == 2


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_jobs, "TRAIN", FAKE_TRAIN)
    Path("search.toml").write_text(SPEC + CHOICES)
    assert main(["sweep", "search.toml", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "found: up to 4 trials × 1 seed = 4 runs of demo" in output
    assert "rate: stages.grpo.optimizer.learning_rate: 1e-06 to 0.01" in output
    assert "epochs: stages.grpo.epochs_per_batch: one of [1, 2]" in output
    assert main(["sweep", "search.toml", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["counts"]["finished"] == 4
    assert table["best"]["value"] == max(run["score"] for run in table["runs"])
    assert main(["sweep", "search.toml"]) == 0
    assert f"Best: {table['best']['arm']} with" in capsys.readouterr().out
    assert main(["sweep", "search.toml", "--arms", "trial-000"]) == 2
    assert "a search finds its arms itself" in capsys.readouterr().err
