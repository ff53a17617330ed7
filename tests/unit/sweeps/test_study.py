"""A sweep's folder is read whatever state it is in; what is missing is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.runs import RunLog, RunReadError
from groupwise.sweeps.folder import MAX_REASON_CHARS, gap_words, read_study
from groupwise.sweeps.sweep_records import RunStatus, SeedRun
from groupwise.types import Finish, Group, Message, Problem, Prompt, Rollout, Score, ScoredGroup, Verdict
from tests.unit.sweeps.made_up import NUM_STEPS, Truth, write_sweep

HOSTILE = "<b>x</b>\u202e\x1b[31m"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    truths = [
        Truth("∞", math.inf),
        Truth("0", 0.0, stops_after={1: 12, 2: 0}),
        Truth("0.02", 0.02, is_base=True),
        Truth("1", 1.0, failure={0: "a\nValueError: no", 1: "x" * 9000}, stops_after={0: 7, 1: 0}),
    ]
    modes = [Truth("base", "a", is_base=True), Truth(HOSTILE, HOSTILE)]
    return write_sweep(tmp_path / "sweep", {"kl": truths, "mode": modes})


def edit(sweep: Path, **changes: object) -> None:
    path = sweep / "sweep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_was_asked(sweep: Path) -> None:
    study = read_study(sweep)
    assert (study.name, study.seeds, study.recipe_path) == ("made-up", (0, 1, 2), "made-up.toml")
    kl, mode = study.knobs
    # In the order of its values, which the file's is not.
    assert [(arm.label, arm.value) for arm in kl.arms] == [
        ("0", 0.0),
        ("0.02", 0.02),
        ("1", 1.0),
        ("∞", math.inf),
    ]
    assert kl.is_ordered
    assert not mode.is_ordered
    assert kl.keys == ("kl.key",)
    # The base is one arm in both knobs, with a label of its own in each.
    bases = [arm for knob in (kl, mode) for arm in knob.arms if arm.is_base]
    assert [arm.name for arm in bases] == ["base", "base"]
    assert bases[0].runs == bases[1].runs
    assert [arm.label for arm in bases] == ["0.02", "base"]
    assert len(study.arms) == 5


def test_foreign_labels_show_what_they_hide(sweep: Path) -> None:
    assert read_study(sweep).knobs[1].arms[1].label == "<b>x</b>⟨U+202E⟩⟨U+001B⟩[31m"


def test_equal_labels_are_told_apart(sweep: Path) -> None:
    table = json.loads((sweep / "sweep.json").read_text())
    table["knobs"][1]["labels"] = ["same", "same"]
    edit(sweep, knobs=table["knobs"])
    assert [arm.label for arm in read_study(sweep).knobs[1].arms] == ["same (base)", "same (mode-1)"]


def test_a_knob_may_leave_labels_and_values_to_its_arms(sweep: Path) -> None:
    table = json.loads((sweep / "sweep.json").read_text())
    for knob in table["knobs"]:
        del knob["labels"], knob["values"]
    edit(sweep, knobs=table["knobs"])
    assert [arm.value for arm in read_study(sweep).knobs[0].arms] == [0.0, 0.02, 1.0, math.inf]


def test_the_state_of_each_run(sweep: Path) -> None:
    study = read_study(sweep)
    states = {arm.name: [run.status.value for run in arm.runs] for arm in study.arms}
    assert states == {
        "kl-0": ["finished"] * 3,
        "kl-1": ["finished", "unfinished", "missing"],
        "base": ["finished"] * 3,
        "kl-3": ["failed", "failed", "finished"],
        "mode-1": ["finished"] * 3,
    }
    assert [(arm.name, run.seed, gap_words(run)) for arm, run in study.gaps] == [
        ("kl-1", 1, f"unfinished, 12 of {NUM_STEPS} steps"),
        ("kl-1", 2, "not started"),
        ("kl-3", 0, f"failed after 7 of {NUM_STEPS} steps (ValueError: no)"),
        ("kl-3", 1, f"failed after 0 steps ({'x' * MAX_REASON_CHARS})"),
    ]
    assert [len(run.steps) for run in study.arms[1].runs] == [NUM_STEPS, 12, 0]


def test_a_failure_that_was_made_good_is_none(sweep: Path) -> None:
    (sweep / "failures.jsonl").write_text(json.dumps({"arm": "base", "seed": 0, "last_lines": ["boom"]}) + "\n")
    study = read_study(sweep)
    assert all(run.is_finished for arm in study.arms if arm.name == "base" for run in arm.runs)


def test_a_run_that_said_why_it_failed_is_believed(sweep: Path) -> None:
    """Also where the sweep was killed before it could write the failure down."""
    run = next(run for arm, run in read_study(sweep).runs if run.status is RunStatus.UNFINISHED)
    RunLog(run.path).write_event("failed", step=12, reason="TrainingFailed: NaN")
    again = next(other for _, other in read_study(sweep).runs if other.path == run.path)
    assert (again.status, again.reason) == (RunStatus.FAILED, "TrainingFailed: NaN")
    RunLog(run.path).write_event("resumed", step=12)
    assert next(r for _, r in read_study(sweep).runs if r.path == run.path).status is RunStatus.UNFINISHED


def test_a_damaged_run_does_not_end_the_reading(sweep: Path) -> None:
    with open(sweep / "runs" / "base" / "seed-1" / "evals.jsonl", "a") as file:
        file.write("{nonsense}\n")
    run = next(arm for arm in read_study(sweep).arms if arm.name == "base").runs[1]
    assert run.status is RunStatus.DAMAGED
    assert "evals.jsonl, line" in run.reason


def test_answers_of_the_last_evaluation_are_read_where_all_were_kept(sweep: Path) -> None:
    def group(number: int, *verdicts: Verdict) -> ScoredGroup:
        prompt = Prompt(Problem(f"p{number}", (Message("user", "?"),), "7"), (1,))
        rollouts = tuple(Rollout((1,), (0.0,), "7", Finish.STOP, 0) for _ in verdicts)
        none = (0.0,) * len(verdicts)
        return ScoredGroup(Group(prompt, rollouts), tuple(Score(0.0, one) for one in verdicts), none, none, False)

    def read() -> SeedRun:
        return next(arm for arm in read_study(sweep).arms if arm.name == "base").runs[1]

    path, right, wrong = sweep / "runs" / "base" / "seed-1", Verdict.CORRECT, Verdict.WRONG
    assert (read().status, read().pass_rates) == (RunStatus.FINISHED, {})
    record = replace(read().evals[-1], num_problems=3)
    both = [group(0, right, wrong), group(1, wrong, Verdict.ERROR), group(2, right, right)]
    log = RunLog(path)
    for step, groups in ((record.step - 5, []), (record.step, both)):
        log.write_eval(replace(record, step=step), groups)
    log.close()
    assert read().pass_rates == {"p0": 0.5, "p1": 0.0, "p2": 1.0}
    # One that could not be judged, or that is missing: what is left are other problems than the score is of.
    for groups in ([*both[:2], group(2, Verdict.ERROR)], both[:2]):
        log = RunLog(path)
        log.write_eval(record, groups)
        log.close()
        assert (read().status, read().pass_rates) == (RunStatus.FINISHED, {})
    (path / "eval_rollouts" / f"{record.step:06d}.jsonl").write_text("{nonsense}\n")
    assert read().status is RunStatus.DAMAGED
    log = RunLog(path)
    log.write_event("resumed", step=record.step)
    log.close()
    assert read().status is RunStatus.UNFINISHED


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "is not a sweep: it has no sweep.json"),
        ("{", "not JSON"),
        ("[]", "expected a JSON object, got a list"),
        ('{"format": 9}', "format is 9, and this version of groupwise reads 1"),
        ('{"format": 1}', "not a valid sweep"),
        ('{"format": 1, "seeds": [0], "knobs": [], "arms": [{"name": "../up", "label": "x"}]}', "run name '../up'"),
        ('{"format": 1, "seeds": [], "arms": [], "knobs": [{"name": "k", "arms": ["a"]}]}', "names the arm 'a'"),
    ],
)
def test_what_is_no_sweep_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(RunReadError, match=says):
        read_study(tmp_path)
