"""Writer and reader together: what goes in comes out, whatever happens to the process, the disk or the text."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.runs import Run, RunLog, RunLogError, RunReadError
from groupwise.runs.catalogue import UndeclaredMetric, metric
from groupwise.runs.files import encode_line, read_lines
from groupwise.runs.records import (
    eval_from_json,
    eval_metrics,
    eval_to_json,
    group_from_json,
    group_to_json,
    step_from_json,
    step_to_json,
)
from groupwise.types import GroupTrace, StepRecord, TokenTrace


def exactly(group: Any) -> str:
    """NaN is not equal to itself; the repr of a record tells any two floats apart."""
    return repr(group)


def test_a_group_survives_json_bit_for_bit(sample: Any) -> None:
    group = sample.group()
    line = encode_line(group_to_json(group))
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert exactly(group_from_json(json.loads(line))) == exactly(group)
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@given(value=st.floats(), text=st.text())
def test_any_number_and_any_text_survive(value: float, text: str) -> None:
    record = StepRecord(3, text, 3, {"reward/mean": value})
    back = step_from_json(json.loads(encode_line(step_to_json(record))))
    assert back.stage == text
    read = back.metrics["reward/mean"]
    assert read == value if abs(value) <= 1e100 else math.isnan(read)


def test_an_eval_survives_and_its_metrics_are_declared(sample: Any) -> None:
    record = sample.eval(10, mean_reward=math.nan)
    assert repr(eval_from_json(json.loads(encode_line(eval_to_json(record))))) == repr(record)
    for name in eval_metrics(record):
        metric(name)


def test_traces_of_tokens_survive(tmp_path: Path, sample: Any) -> None:
    tokens = TokenTrace((sample.hostile, "b"), (-0.1, -2.5), (1.0, math.inf), (0.0, 0.25), (1.5, 0.0))
    without_reference = dataclasses.replace(tokens, ratios=(0.5, 1.0), divergences=None)
    log = RunLog(tmp_path)
    log.write_tokens(4, "rl", [GroupTrace("p", (tokens, None)), GroupTrace("q", (without_reference,))])
    first, second = Run(tmp_path).tokens(4)
    assert second == GroupTrace("q", (without_reference,))
    assert first.rollouts[1] is None
    # JSON has no infinity: what is not finite reads back as unknown.
    assert repr(first.rollouts[0]) == repr(dataclasses.replace(tokens, ratios=(1.0, math.nan)))
    assert Run(tmp_path).tokens(5) == []


def test_what_is_written_is_read(tmp_path: Path, sample: Any) -> None:
    log = RunLog(tmp_path / "run")
    log.write_recipe('[model]\nname = "tiny"\n')
    log.write_info({"version": "0.1.0", "path": tmp_path, "rate": math.inf})
    log.write_event("started", pid=3, note=sample.hostile)
    groups = [sample.group("a"), sample.group("b")]
    log.write_eval(sample.eval(0), groups)
    for step in (1, 2):
        log.write_rollouts(step, "rl", groups)
        log.write_step(sample.step(step, policy__loss=1e-17, reward__part__format=0.1))
    log.close()

    run = Run(tmp_path / "run")
    assert run.name == "run"
    assert run.recipe == {"model": {"name": "tiny"}}
    assert run.info == {"version": "0.1.0", "path": str(tmp_path), "rate": None}
    assert run.steps() == [sample.step(step, policy__loss=1e-17, reward__part__format=0.1) for step in (1, 2)]
    assert run.evals() == [sample.eval(0)]
    assert run.rollout_steps() == [1, 2]
    assert run.eval_rollout_steps() == [0]
    assert exactly(run.rollouts(2)) == exactly(groups)
    assert exactly(run.eval_rollouts(0)) == exactly(groups)
    (event,) = run.events()
    assert (event["kind"], event["pid"], event["note"]) == ("started", 3, sample.hostile)
    assert event["time"].startswith("20")


def test_a_new_run_reads_as_empty_and_no_run_as_an_error(tmp_path: Path) -> None:
    RunLog(tmp_path / "run")
    run = Run(tmp_path / "run")
    assert (run.steps(), run.evals(), run.events(), run.rollouts(1), run.rollout_steps()) == ([], [], [], [], [])
    with pytest.raises(RunReadError, match=r"has no recipe\.toml"):
        _ = run.recipe
    with pytest.raises(RunReadError, match="no run at"):
        Run(tmp_path / "nowhere")


def test_an_undeclared_metric_writes_nothing(tmp_path: Path, sample: Any) -> None:
    log = RunLog(tmp_path)
    with pytest.raises(UndeclaredMetric, match="reward/maen"):
        log.write_step(sample.step(1, reward__maen=1.0))
    assert Run(tmp_path).steps() == []


def test_metrics_are_strict_json(tmp_path: Path, sample: Any) -> None:
    RunLog(tmp_path).write_step(sample.step(1, policy__loss=math.nan, policy__ratio_max=math.inf))
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["metrics"]["policy/loss"] is None
    assert math.isnan(Run(tmp_path).steps()[0].metrics["policy/ratio_max"])


def test_every_torn_end_is_tolerated_by_readers_and_repaired_by_the_writer(tmp_path: Path, sample: Any) -> None:
    log = RunLog(tmp_path)
    for step in (1, 2):
        log.write_step(sample.step(step))
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    first_length = whole.index(b"\n") + 1
    for length in range(first_length, len(whole)):
        path.write_bytes(whole[:length])
        seen = [record.step for record in Run(tmp_path).steps()]
        # Without its newline the last line is whole all the same; any shorter and it is not there yet.
        assert seen == ([1, 2] if length == len(whole) - 1 else [1])
        RunLog(tmp_path).write_step(sample.step(3))
        assert [record.step for record in Run(tmp_path).steps()] == [*seen, 3]


def test_a_torn_event_does_not_spoil_the_next(tmp_path: Path) -> None:
    RunLog(tmp_path).write_event("one")
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"time": "20')
    RunLog(tmp_path).write_event("two")
    assert [event["kind"] for event in Run(tmp_path).events()] == ["one", "two"]


@pytest.mark.parametrize(
    "damage", [b"{\x00\x00}", b"[1]", b'{"step": 2}', b'{"step": 2, "metrics": 5}', b"\xff", b"[" * 20_000]
)
def test_damage_in_the_middle_names_file_and_line(tmp_path: Path, sample: Any, damage: bytes) -> None:
    log = RunLog(tmp_path)
    for step in (1, 2, 3):
        log.write_step(sample.step(step))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], damage, lines[2], b""]))
    with pytest.raises(RunReadError, match=r"metrics\.jsonl, line 2"):
        Run(tmp_path).steps()


def test_rewind_forgets_what_came_after(tmp_path: Path, sample: Any) -> None:
    log = RunLog(tmp_path)
    log.write_event("started")
    for step in range(1, 6):
        log.write_rollouts(step, "rl", [sample.group()])
        log.write_tokens(step, "rl", [GroupTrace("p", (None,))])
        log.write_step(sample.step(step))
        log.write_eval(sample.eval(step), [sample.group()])
    (tmp_path / "rollouts" / ".000006.jsonl.tmp").write_bytes(b"half")
    (tmp_path / "rollouts" / "notes.txt").write_bytes(b"mine")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 6, "sta')

    log = RunLog(tmp_path)
    log.rewind(3)
    run = Run(tmp_path)
    assert [record.step for record in run.steps()] == [1, 2, 3]
    assert [record.step for record in run.evals()] == [1, 2, 3]
    assert run.rollout_steps() == run.token_steps() == run.eval_rollout_steps() == [1, 2, 3]
    assert len(run.events()) == 1
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir())[-1] == "notes.txt"
    assert not list((tmp_path / "rollouts").glob(".*"))

    for step in (4, 5):
        log.write_step(sample.step(step))
    assert (tmp_path / "metrics.jsonl").read_bytes() == before, "a resumed run writes what an uninterrupted one would"
    log.rewind(0)
    assert run.steps() == []
    assert run.rollout_steps() == []


def test_rewind_that_dies_leaves_the_old_file(tmp_path: Path, sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog(tmp_path)
    for step in (1, 2):
        log.write_step(sample.step(step))

    def fail(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunLogError, match="Read-only file system"):
        log.rewind(1)
    assert [record.step for record in Run(tmp_path).steps()] == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_names_the_file_and_the_way_out(tmp_path: Path, sample: Any) -> None:
    log = RunLog(tmp_path)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunLogError, match=r"metrics\.jsonl: the disk is full\. Make room, then resume"):
        log.write_step(sample.step(1))
    (tmp_path / "rollouts" / ".000001.jsonl.tmp").symlink_to("/dev/full")
    with pytest.raises(RunLogError, match=r"000001\.jsonl: the disk is full"):
        log.write_rollouts(1, "rl", [sample.group()])
    assert list((tmp_path / "rollouts").iterdir()) == []


def test_half_a_line_is_taken_out_again(tmp_path: Path, sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog(tmp_path)
    log.write_step(sample.step(1))
    before = (tmp_path / "metrics.jsonl").read_bytes()
    real_write = os.write
    calls = []

    def half_then_full(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return real_write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_then_full)
        with pytest.raises(RunLogError, match="disk is full"):
            log.write_step(sample.step(2))
    assert len(calls) == 2
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    log.write_step(sample.step(2))
    assert [record.step for record in Run(tmp_path).steps()] == [1, 2]


def test_rollouts_that_fail_half_way_leave_the_file_of_before(tmp_path: Path, sample: Any) -> None:
    log = RunLog(tmp_path)
    log.write_rollouts(1, "rl", [sample.group("first")])
    bad = sample.group("bad")
    bad.group.prompt.problem.meta["level"] = {1, 2}
    with pytest.raises(RunLogError, match="problem 'bad' has a value that JSON cannot represent"):
        log.write_rollouts(1, "rl", [sample.group("second"), bad])
    (group,) = Run(tmp_path).rollouts(1)
    assert group.group.prompt.problem.id == "first"
    assert len(list((tmp_path / "rollouts").iterdir())) == 1


def test_a_run_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLogError, match="could not write"):
        RunLog(tmp_path / "file" / "run")


def test_a_million_steps_still_sort(tmp_path: Path, sample: Any) -> None:
    log = RunLog(tmp_path)
    for step in (2, 999_999, 1_000_000):
        log.write_rollouts(step, "rl", [])
    assert Run(tmp_path).rollout_steps() == [2, 999_999, 1_000_000]


@pytest.mark.parametrize(("written", "read"), [("sick", "problem"), ("watch", "warning"), ("problem", "problem")])
def test_findings_of_older_runs_have_the_severities_of_today(tmp_path: Path, written: str, read: str) -> None:
    log = RunLog(tmp_path)
    log.write_event("finding", disease="truncation", stage="grpo", severity=written)
    log.write_event("other", severity=written)
    finding, other = Run(tmp_path).events()
    assert (finding["severity"], finding["check"], other["severity"]) == (read, "truncation", written)


def test_events_set_their_own_time(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sets time of an event itself"):
        RunLog(tmp_path).write_event("started", time=3)


def test_sinks_get_each_record_after_it_is_on_disk(tmp_path: Path, sample: Any) -> None:
    heard: list[tuple[str, int]] = []

    class Listener:
        def write(self, record: Any) -> None:
            heard.append(("step", len(list(read_lines(tmp_path / "metrics.jsonl")))))

        def write_eval(self, record: Any) -> None:
            heard.append(("eval", len(list(read_lines(tmp_path / "evals.jsonl")))))

        def close(self) -> None:
            heard.append(("close", 0))

    log = RunLog(tmp_path, sinks=[Listener()])
    log.write_step(sample.step(1))
    log.write_eval(sample.eval(1), [])
    log.close()
    assert heard == [("step", 1), ("eval", 1), ("close", 0)]


def test_reading_a_run_needs_neither_torch_nor_rich() -> None:
    code = (
        "import sys, groupwise.runs, groupwise.runs.progress, groupwise.base.stats;"
        "print([m for m in ('torch', 'rich', 'numpy', 'tensorboard', 'wandb') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_sweep_is_told_from_a_run(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(RunReadError, match=r"is a sweep and not a run: `groupwise sweep .* --analyse-only`"):
        Run(tmp_path)
