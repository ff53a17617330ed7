"""Every endpoint over HTTP, as the page uses it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.runs import METRICS, Run, RunLog, layout
from groupwise.types import EvalRecord, Verdict
from groupwise.web.dashboard.state import EXAMINED_EVERY_S, CachedReading, examine_run


@pytest.fixture
def log(tmp_path: Path, sample: Any) -> RunLog:
    made: RunLog = sample.run(tmp_path / "runs/run", num_steps=3, groups_per_step=4)
    return made


@pytest.fixture
def client(log: RunLog, serve: Any) -> Iterator[Any]:
    with serve(log.run_dir.parent) as client:
        yield client


@pytest.fixture
def base(client: Any) -> str:
    return f"/api/runs/{client.run_id('run')}"


def make_eval(step: int, pass_at_1: float) -> EvalRecord:
    return EvalRecord(
        step=step, stage="grpo", pass_at_1=pass_at_1, low=0.1, high=0.9, num_problems=1, rollouts_per_problem=1,
        temperature=0.0, mean_reward=0.5, mean_tokens=10.0, truncated_share=0.0, unparsed_share=0.0, error_share=0.0,
        timed_out_share=0.0, seconds=1.0,
    )  # fmt: skip


def test_the_catalogue(client: Any) -> None:
    metrics = client.get("/api/catalogue")["metrics"]
    assert list(metrics) == list(METRICS)
    assert metrics["reward/part/"]["is_family"] is True
    assert metrics["time/step_s"] == {"meaning": METRICS["time/step_s"].meaning, "unit": "s", "is_family": False}


def test_runs(client: Any, log: RunLog, sample: Any) -> None:
    log.write_eval(make_eval(2, 0.5), [sample.group(random.Random(1), "e")])
    log.write_eval(make_eval(3, 0.4), [sample.group(random.Random(1), "e")])
    (run,) = client.get("/api/runs")["runs"]
    expected = {"name": "run", "task": "countdown", "model": "tiny-qwen3", "fingerprint": "f0", "step": 3}
    assert expected.items() <= run.items()
    assert run["stages"] == [{"name": "grpo", "algorithm": "grpo", "steps": 10}]
    assert (run["best"]["step"], run["last_eval"]["step"]) == (2, 3)
    assert run["index"]["is_begun"] is False
    assert 0 <= run["last_write_s"] < 100


@pytest.mark.parametrize("name", [layout.RECIPE, layout.INFO, layout.METRICS, layout.EVALS, layout.EVENTS])
@pytest.mark.parametrize("damage", ["digits", "brackets", "types", "fifo", "folder", "outside"])
def test_a_damaged_file_is_told_beside_its_run(
    client: Any, base: str, log: RunLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    monkeypatch.setattr("groupwise.web.dashboard.library.LOOK_EVERY_S", 0.0)
    RunLog(tmp_path / "runs/other").write_recipe("name = 'other'")
    path = log.run_dir / name
    path.unlink(missing_ok=True)
    if damage == "fifo":
        os.mkfifo(path)
    elif damage == "folder":
        path.mkdir()
    elif damage == "outside":
        (tmp_path / "secret").write_text("{}")
        path.symlink_to(tmp_path / "secret")
    else:
        value = {"digits": "9" * 400, "brackets": "[" * 20_000, "types": "[1]"}[damage]
        path.write_text(f"stages = {value}" if name == layout.RECIPE else f'{{"versions": {value}, "kind": {value}}}\n')
    runs = client.get("/api/runs")["runs"]
    errors = {run["name"]: run["errors"] for run in runs}
    assert errors.pop("other") == []
    ((error,),) = errors.values()
    assert name in error
    for endpoint in ("metrics", "evals", "events", "findings", "recipe", "groups"):
        reply = client.request(f"{base}/{endpoint}")
        assert reply.status == 200 or name in reply.json["error"], endpoint


def test_metrics_follow_the_file(client: Any, base: str, log: RunLog, sample: Any) -> None:
    first = client.get(f"{base}/metrics")
    assert [line["step"] for line in first["lines"]] == [1, 2, 3]
    assert (first["is_reset"], first["has_more"], first["warnings"]) == (True, False, [])
    log.write_step(sample.step(4))
    second = client.get(f"{base}/metrics", cursor=first["cursor"])
    assert ([line["step"] for line in second["lines"]], second["is_reset"]) == ([4], False)
    log.rewind(2)
    third = client.get(f"{base}/metrics", cursor=second["cursor"])
    assert ([line["step"] for line in third["lines"]], third["is_reset"]) == ([1, 2], True)
    with open(log.run_dir / layout.METRICS, "ab") as file:
        file.write(
            b'damage\n{"step":3}\n{"step":3,"stage":"grpo","stage_step":3,"metrics":{"a":1e999,"b":NaN}}\n{"half":'
        )
    fourth = client.get(f"{base}/metrics", cursor=third["cursor"])
    assert [line["metrics"] for line in fourth["lines"]] == [{"a": None, "b": None}]
    assert "line 3 is damaged" in fourth["warnings"][0]
    fifth = client.get(f"{base}/metrics", cursor=fourth["cursor"])
    assert (fifth["lines"], fifth["warnings"], fifth["is_reset"]) == ([], [], False)


def test_evals_and_events(client: Any, base: str, log: RunLog, sample: Any) -> None:
    assert client.get(f"{base}/evals")["lines"] == []
    log.write_eval(make_eval(3, 0.5), [sample.group(random.Random(1), "held-out")])
    assert client.get(f"{base}/evals")["lines"][0]["pass_at_1"] == 0.5
    log.write_event("checkpoint", name="000003")
    log.write_event("finding", severity="sick")
    lines = client.get(f"{base}/events")["lines"]
    assert [line["kind"] for line in lines] == ["started", "checkpoint", "finding"]
    assert lines[-1]["severity"] == "problem", "as older runs call it"
    page = client.get(f"{base}/groups", kind="eval")
    assert [group["problem_id"] for group in page["groups"]] == ["held-out"]


def test_findings(client: Any, base: str, log: RunLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.web.dashboard.state.EXAMINED_EVERY_S", 600.0)
    found = client.get(f"{base}/findings")
    assert (found["as_of_step"], found["error"]) == (3, None)
    assert [(stage["name"], stage["num_steps"]) for stage in found["stages"]] == [("grpo", 3)]
    (log.run_dir / layout.METRICS).write_bytes(b"damage\n")
    assert client.get(f"{base}/findings") == found, "a run is not examined at each request"


def test_findings_wait_and_come_again(log: RunLog, sample: Any) -> None:
    now = [0.0]
    findings = CachedReading(log.run_dir, examine_run, EXAMINED_EVERY_S, clock=lambda: now[0])
    assert findings.get()["as_of_step"] == 3
    log.write_step(sample.step(4))
    assert findings.get()["as_of_step"] == 3
    now[0] = EXAMINED_EVERY_S
    assert findings.get()["as_of_step"] == 4
    (log.run_dir / layout.METRICS).write_bytes(b"damage\n")
    now[0] = 2 * EXAMINED_EVERY_S
    assert "line 1" in findings.get()["error"]


def test_a_run_with_a_problem_and_a_loss_of_zero(tmp_path: Path, serve: Any, sample: Any) -> None:
    from groupwise.types import StepRecord

    log = sample.run(tmp_path / "dead", num_steps=1)
    for step in range(2, 40):
        metrics = {"reward/mean": 0.0, "policy/loss": 0.0, "policy/grad_norm": 0.0, "groups/signal_share": 0.0}
        metrics |= {"groups/count": 4.0, "groups/dead_all_wrong": 4.0, "groups/dead_all_correct": 0.0}
        log.write_step(StepRecord(step, "grpo", step, metrics))
    with serve(tmp_path) as client:
        found = client.get(f"/api/runs/{client.run_id('dead')}/findings")
    (dead,) = [finding for finding in found["findings"] if finding["check"] == "dead_groups"]
    assert (dead["severity"], dead["title"]) == ("problem", "Groups without signal")
    assert dead["change"]["advice"] in dead["say_change"]
    assert found["stages"][0]["is_loss_zero"] is True
    assert "No gradient in 38 of 39 steps" in found["stages"][0]["vital_signs"][0]
    assert found["stages"][0]["has_gradient"] is False
    assert found["clean_bill"] == ""


def test_recipes(client: Any, base: str, log: RunLog, sample: Any) -> None:
    alone = client.get(f"{base}/recipe")
    assert alone["text"] == (log.run_dir / layout.RECIPE).read_text()
    assert (alone["fingerprint"], alone["against"], alone["info"]["verifier"]) == ("f0", None, "v/1")
    sample.run(log.run_dir.parent / "other", num_steps=1, seed=7)
    client.server.library._looked_at = None
    other = client.run_id("other")
    both = client.get(f"{base}/recipe", against=other)
    assert both["difference"] == {"name": ["run", "other"], "seed": [0, 7]}
    assert (both["has_same_fingerprint"], both["against"]["name"]) == (False, "other")
    assert client.get(f"{base}/recipe", against=alone["id"])["difference"] == {}
    missing = client.request(f"{base}/recipe", against="../../etc")
    assert (missing.status, missing.json["parameter"]) == (400, "against")


def test_a_page_of_groups(client: Any, base: str, log: RunLog) -> None:
    page = client.get(f"{base}/groups", limit=5)
    assert (page["total"], page["total_rollouts"], page["offset"], page["is_complete"]) == (12, 48, 0, True)
    assert [(group["step"], group["index"]) for group in page["groups"]] == [(3, 0), (3, 1), (3, 2), (3, 3), (2, 0)]
    assert page["stages"] == ["grpo", "later"]
    rest = client.get(f"{base}/groups", offset=10)
    assert [(group["step"], group["index"]) for group in rest["groups"]] == [(1, 2), (1, 3)]
    scored = Run(log.run_dir).rollouts(3)[1]
    group = page["groups"][1]
    assert group["verdicts"] == [score.verdict.value for score in scored.scores]
    assert group["rewards"] == list(scored.rewards)
    assert group["num_tokens"] == [len(rollout.token_ids) for rollout in scored.group.rollouts]
    assert group["prompt"] == scored.group.prompt.problem.messages[-1].content[:200]
    assert group["match"] is None
    assert client.get("/api/runs")["runs"][0]["index"] == {
        "is_begun": True, "is_complete": True, "share": 1.0, "num_groups": 12, "num_rollouts": 48,
    }  # fmt: skip


def test_groups_are_filtered(client: Any, base: str) -> None:
    def total(**parameters: Any) -> int:
        return int(client.get(f"{base}/groups", **parameters)["total"])

    assert total(problem="p1") == 3
    assert total(stage="later") == total(first_step=3) == 4
    assert total(stage=["grpo", "later"]) == 12
    assert total(signal="yes") + total(signal="no") == 12
    assert total(verdict=[verdict.value for verdict in Verdict]) == 12
    assert total(q="P2 ", last_step=2) == 2
    found = client.get(f"{base}/groups", q="ÉcOLE")
    assert 0 < found["total"] < 12
    assert {group["match"]["text"] for group in found["groups"]} == {"ÉCOLE"}


@pytest.mark.parametrize(
    ("endpoint", "parameter", "value"),
    [
        ("metrics", "cursor", "../x"),
        ("metrics", "curser", "1"),
        ("findings", "q", "1"),
        ("groups", "kind", "test"),
        ("groups", "limit", "-1"),
        ("groups", "limit", "501"),
        ("groups", "limit", "9" * 400),
        ("groups", "offset", "1.5"),
        ("groups", "offset", "٣"),
        ("groups", "sort", "random"),
        ("groups", "verdict", "good"),
        ("groups", "finish", "end"),
        ("groups", "signal", "true"),
        ("groups", "min_reward", "nan"),
        ("groups", "max_reward", "1e999"),
        ("groups", "first_step", "x"),
        ("groups", "q", "x" * 1001),
        ("groups", "q", ["a", "b"]),
        ("group", "step", "../1"),
        ("group", "index", "0x1"),
        ("group", "step", ""),
    ],
)
def test_parameters_are_checked(client: Any, base: str, endpoint: str, parameter: str, value: Any) -> None:
    reply = client.request(
        f"{base}/{endpoint}", **({"step": 1, "index": 0} if endpoint == "group" else {}) | {parameter: value}
    )
    assert reply.status == 400
    assert reply.json["parameter"] == parameter
    assert parameter in reply.json["error"]


def test_a_query_that_is_no_text(client: Any, base: str) -> None:
    assert client.request(f"{base}/groups?q=%ff").status == 400
    assert client.request(f"{base}/groups?" + "&".join("q=1" for _ in range(200))).status == 400
    reply = client.request(f"{base}/groups", first_step=3, last_step=1)
    assert (reply.status, reply.json["parameter"]) == (400, "first_step")


def test_one_group(client: Any, base: str, log: RunLog) -> None:
    for index, scored in enumerate(Run(log.run_dir).rollouts(2)):
        group = client.get(f"{base}/group", kind="train", step=2, index=index)
        problem = scored.group.prompt.problem
        assert group["problem"]["id"] == problem.id
        assert group["problem"]["answer_in_words"] == group["problem"]["answer"] == problem.answer
        assert [message["content"] for message in group["problem"]["messages"]] == [m.content for m in problem.messages]
        assert [rollout["text"] for rollout in group["rollouts"]] == [r.text for r in scored.group.rollouts]
        assert [rollout["reward"] for rollout in group["rollouts"]] == list(scored.rewards)
        for rollout, score in zip(group["rollouts"], scored.scores, strict=True):
            assert rollout["score"]["verdict"] == score.verdict.value
            assert (rollout["score"]["reward"] is None) == (score.verdict is Verdict.ERROR)
            assert rollout["tokens"] is None
        assert (group["has_tokens"], group["warnings"], group["num_prompt_tokens"]) == (False, [], 3)
    assert client.request(f"{base}/group", step=2, index=4).status == 404
    assert client.request(f"{base}/group", step=99, index=0).status == 404
    assert client.request(f"{base}/group", kind="eval", step=2, index=0).status == 404


def test_tokens_are_joined_by_line(client: Any, base: str, log: RunLog) -> None:
    tokens = {"pieces": ["a", "\x1b"], "logprob": [-1.0, None], "ratio": [1.0, 1.1], "kl": None, "entropy": [0.5, 0.1]}
    lines = [
        {"step": 3, "stage": "later", "problem_id": "p0", "rollouts": [tokens, None, tokens, None]},
        {"step": 3, "stage": "later", "problem_id": "another", "rollouts": [tokens] * 4},
        {"step": 3, "stage": "later", "problem_id": "p2", "rollouts": "damaged"},
    ]
    folder = log.run_dir / "tokens"
    folder.mkdir(exist_ok=True)
    (folder / "000003.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second, third, fourth = (client.get(f"{base}/group", step=3, index=index) for index in range(4))
    assert [rollout["tokens"] for rollout in first["rollouts"]] == [tokens, None, tokens, None]
    assert first["has_tokens"] is True
    assert "another problem" in second["warnings"][0]
    assert "damaged" in third["warnings"][0]
    assert [group["has_tokens"] for group in (second, third, fourth)] == [False] * 3
    assert fourth["warnings"] == []
    page = client.get(f"{base}/groups")
    assert page["token_steps"] == [3]
    assert [group["has_tokens"] for group in page["groups"]] == [True] * 4 + [False] * 8


def test_groups_come_and_go_with_the_run(client: Any, base: str, log: RunLog, sample: Any) -> None:
    def total() -> int:
        return int(client.get(f"{base}/groups")["total"])

    assert total() == 12
    log.write_rollouts(4, "later", [sample.group(random.Random(8), "new")])
    assert total() == 13
    log.rewind(2)
    assert total() == 8
    assert client.request(f"{base}/group", step=3, index=0).status == 404
    (log.run_dir / "rollouts/000002.jsonl").write_bytes(b"damage\n")
    assert total() == 4
    assert "group 0 is damaged" in client.get(f"{base}/groups")["warnings"][0]
    assert client.request(f"{base}/group", step=2, index=0).status == 404
