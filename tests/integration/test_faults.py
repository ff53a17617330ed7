"""What goes wrong is named, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.algo import losses
from groupwise.cli import main
from groupwise.config import Recipe, dump_toml, to_table
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.models.device_memory import DeviceMemoryError
from groupwise.models.policy import Policy, load_policy
from groupwise.runs.lock import RunLock
from groupwise.runs.reader import Run
from groupwise.training import grpo, pipeline, setup
from groupwise.training.training import TrainingFailed
from groupwise.types import UpdateStats, Verdict
from tests.factories import GRPO

from .conftest import metrics_lines, newest_tensors, state_digest


def write_recipe(recipe: Recipe, path: Path, **changes: Any) -> Path:
    path.write_text(dump_toml(to_table(recipe) | changes))
    return path


@pytest.mark.parametrize(
    ("fail", "detail"),
    [("raise", "KeyError"), ("nan", "nan"), ("hang", "more than 0.1 s of CPU time"), ("kill", "SIGKILL")],
)
def test_a_verifier_that_fails_is_an_error_and_never_a_wrong_answer(
    fail: str, detail: str, recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    task = {"name": "tests.integration.toy_task:EvenLetters", "options": {"fail": fail}}
    recipe = recipe_with(task=task, stages=[GRPO], verifier={"seconds": 0.1})
    assert pipeline.train(recipe, tmp_path / "run")
    run = Run(tmp_path / "run")
    name = "timed_out" if fail == "hang" else "error"
    shares = [record.metrics[f"score/{name}_share"] for record in run.steps()]
    assert 0 < sum(shares) < len(shares)
    for step in run.rollout_steps():
        for scored in run.rollouts(step):
            valid = [r for r, s in zip(scored.rewards, scored.scores, strict=True) if not s.is_error]
            for score, advantage in zip(scored.scores, scored.advantages, strict=True):
                if score.is_error:
                    assert advantage == 0
                    assert (score.verdict is Verdict.TIMED_OUT) == (fail == "hang")
                    assert detail in score.detail
            assert scored.has_signal == (len(set(valid)) > 1)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(
            "CUDA out of placement. Tried to allocate 510.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which "
            "121.94 MiB is free. Process 4670 has 85.80 GiB memory in use. Of the allocated memory 30.93 GiB is "
            "allocated by PyTorch. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF"
        ),
        DeviceMemoryError("cuMemCreate", 2),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_gpu_that_runs_out_of_memory_is_told_and_the_run_goes_on_from_what_was_saved(
    error: Exception,
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = recipe_with(stages=[GRPO | {"microbatch_tokens": 64}], checkpoints={"every_steps": 1})
    original = losses.SURROGATES["clipped"]

    def full(inputs: losses.SurrogateInputs) -> losses.SurrogateOutputs:
        if (tmp_path / "run" / "checkpoints" / "step-000001").exists():
            raise error
        return original(inputs)

    with monkeypatch.context() as patch:
        patch.setitem(losses.SURROGATES, "clipped", full)
        path = write_recipe(recipe, tmp_path / "recipe.toml")
        assert main(["train", str(path), "--run-dir", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert "step 2, stage grpo: GPU memory ran out" in said
    assert "Of the allocated memory" not in said
    assert "--set stages.0.microbatch_tokens=32" in said
    assert f"step-000001 is saved: groupwise train --resume {tmp_path / 'run'}" in said
    assert "Traceback" not in said
    assert "ran out" in Run(tmp_path / "run").events()[-1]["reason"]
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0


def break_losses(monkeypatch: pytest.MonkeyPatch, bad_calls: set[int]) -> None:
    original, count = losses.SURROGATES["clipped"], 0

    def broken(inputs: losses.SurrogateInputs) -> losses.SurrogateOutputs:
        nonlocal count
        count += 1
        outputs = original(inputs)
        if count not in bad_calls:
            return outputs
        return losses.SurrogateOutputs(
            outputs.loss * torch.nan, outputs.ratio, outputs.is_clipped_low, outputs.is_clipped_high
        )

    monkeypatch.setitem(losses.SURROGATES, "clipped", broken)


def test_an_update_that_is_not_finite_is_skipped_and_counted(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_losses(monkeypatch, {2, 3})
    assert pipeline.train(recipe_with(stages=[GRPO]), tmp_path / "run")
    skipped = [line["metrics"]["update/skipped"] for line in metrics_lines(tmp_path / "run")]
    assert skipped == [2, 0, 0]
    events = [event for event in Run(tmp_path / "run").events() if event["kind"] == "update_skipped"]
    assert len(events) == 2


def test_the_weights_are_untouched_and_the_run_stops_after_so_many_in_a_row(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_with(stages=[GRPO | {"steps": 2}], max_nonfinite_updates=3, checkpoints={"every_steps": 1})
    break_losses(monkeypatch, set(range(1, 100)))
    with pytest.raises(TrainingFailed, match="learning_rate"):
        pipeline.train(recipe, tmp_path / "run")
    last = Run(tmp_path / "run").events()[-1]
    assert last["kind"] == "failed"
    assert "TrainingFailed: step 1: loss or gradient was NaN" in last["reason"]
    # Nothing was ever applied: the newest checkpoint still holds the initial weights.
    initial = load_policy(recipe).weights
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2)
    newest = store.newest_valid()
    assert newest is not None
    saved = store.load(newest)[0]["weights"]
    assert all(torch.equal(saved[name], weight) for name, weight in initial.items())


@pytest.mark.parametrize("rate", [1e10, 1e30])
def test_weights_that_a_learning_rate_blew_up_are_not_saved(
    rate: float, recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "scheduled_rate", lambda *arguments: rate)
    # One step with four updates: too few to count as skipped too often.
    recipe = recipe_with(stages=[GRPO | {"steps": 1}], checkpoints={"every_steps": 1, "every_update": True})
    with pytest.raises(TrainingFailed) as raised:
        pipeline.train(recipe, tmp_path / "run")
    said = str(raised.value)
    assert said.startswith("step 1, stage grpo, after 0 updates: the weight model.")
    assert "The likely cause is stages.0.optimizer.learning_rate = 0.001" in said
    assert said.endswith("the newest checkpoint is step-000000")
    initial, saved = load_policy(recipe).weights, newest_tensors(tmp_path / "run")["weights"]
    assert all(torch.equal(saved[name], weight) for name, weight in initial.items())


def test_a_model_with_nan_is_not_sampled_from(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_damaged(*arguments: Any) -> Policy:
        policy = load_policy(*arguments)
        next(iter(policy.model.parameters())).data[0, 0] = torch.nan
        return policy

    monkeypatch.setattr(setup, "load_policy", load_damaged)
    with pytest.raises(TrainingFailed, match=r"model\.path = 'tiny-qwen3': the weight .* NaN .* download"):
        pipeline.train(recipe_with(), tmp_path / "run")
    assert Run(tmp_path / "run").evals() == []


def test_skipped_updates_are_counted_over_stages_and_updates_with_nothing_to_learn(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped, empty = UpdateStats(torch.nan, torch.nan, False, 0.1, 5), UpdateStats(0.0, 0.0, True, 0.1, 0)
    results = iter([skipped, empty, skipped, empty, empty, skipped])
    monkeypatch.setattr(grpo, "update_policy", lambda *arguments, **named: next(results))
    recipe = recipe_with(stages=[GRPO | {"steps": 1}, GRPO | {"name": "again"}], max_nonfinite_updates=3)
    with pytest.raises(TrainingFailed, match=r"step 2: .* in 3 updates in a row"):
        pipeline.train(recipe, tmp_path / "run")


def test_a_second_trainer_on_the_same_run_is_refused(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = recipe_with()
    assert pipeline.train(recipe, tmp_path / "run")
    before = state_digest(tmp_path / "run")
    with RunLock(tmp_path / "run"):
        assert main(["train", "--resume", str(tmp_path / "run")]) == 1
    assert state_digest(tmp_path / "run") == before


def test_resuming_a_finished_run_changes_nothing(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    pipeline.train(recipe_with(), tmp_path / "run")
    before = (metrics_lines(tmp_path / "run"), state_digest(tmp_path / "run"))
    assert pipeline.resume(tmp_path / "run")
    assert (metrics_lines(tmp_path / "run"), state_digest(tmp_path / "run")) == before


def test_a_changed_recipe_or_verifier_is_refused_on_resume(
    recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    pipeline.train(recipe_with(), tmp_path / "run")
    from . import toy_task

    monkeypatch.setattr(toy_task.EvenLetters, "verifier", "even-letters/2")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "verifier even-letters/1" in capsys.readouterr().err
    # Unless told: and then the log tells.
    assert main(["train", "--resume", str(tmp_path / "run"), "--accept-verifier"]) == 0
    changes = [event["change"] for event in Run(tmp_path / "run").events() if event["kind"] == "verifier_changed"]
    assert changes == ["even-letters/1 → even-letters/2"]
    monkeypatch.undo()
    toml = (tmp_path / "run" / "recipe.toml").read_text()
    (tmp_path / "run" / "recipe.toml").write_text(toml.replace("seed = 0", "seed = 1"))
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "fingerprint" in capsys.readouterr().err


def test_a_run_goes_on_with_the_memory_that_it_was_started_with(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(pipeline, "limit_memory", limits.append)
    pipeline.train(recipe_with(), tmp_path / "run")
    resume = ["train", "--resume", str(tmp_path / "run")]
    assert main(resume) == 0  # it had none
    info = tmp_path / "run" / "run.json"
    info.write_text(info.read_text().replace('"memory_limit_gib":null', '"memory_limit_gib":24.0'))
    assert main(resume) == 0
    assert main([*resume, "--memory-gib", "30"]) == 0
    info.unlink()  # as if killed before it was written
    assert main(resume) == 0
    assert limits == [24.0, 30.0]


BAD_INPUT = {
    "unknown key": (["--set", "stages.1.optimizer.learning_rat=1"], "did you mean 'learning_rate'?"),
    "group size 1": (["--set", "stages.1.rollouts_per_problem=1"], "a group of 1 cannot be compared"),
    "impossible batch": (["--set", "stages.1.problems_per_update=3"], "4 / 3 = 1.33333 updates"),
    "too many tokens": (["--set", "stages.1.sampling.max_new_tokens=4096"], "4096"),
    "no such model": (["--set", "model.path=./nowhere", "--set", "model.tiny={}"], "model.path"),
    "no such task": (["--set", "task.name=countdwn"], "did you mean 'countdown'?"),
    "not a device": (["--set", "model.device=cuda:7"], "model.device"),
    "no demonstrations": (
        ["--set", "stages.0.source=file", "--set", "stages.0.file=./none.jsonl"],
        "none.jsonl': no such file",
    ),
    "empty override": (["--set", "seed"], "key=value"),
    "one pass only": (["--set", "stages.1.algorithm=gr_reinforce"], "makes one on-policy update per step"),
}


@pytest.mark.parametrize("case", BAD_INPUT, ids=lambda case: case.replace(" ", "-"))
def test_bad_input_is_named_and_leaves_no_run(
    case: str, recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = BAD_INPUT[case]
    path = write_recipe(recipe_with(), tmp_path / "recipe.toml")
    if case == "one pass only":
        table = to_table(recipe_with())
        table["stages"][1] = GRPO
        path.write_text(dump_toml(table))
    assert main(["train", str(path), "--run-dir", str(tmp_path / "run"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "recipe.toml").exists()


def data_recipe(recipe_with: Callable[..., Recipe], tmp_path: Path, lines: list[str]) -> Path:
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    options = {"train": str(tmp_path / "data.jsonl"), "held_out_share": 0.5}
    return write_recipe(recipe_with(), tmp_path / "recipe.toml", task={"name": "jsonl", "options": options})


GOOD_ROWS = [json.dumps({"prompt": f"Say {n}.", "answer": str(n)}) for n in range(20)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param([], "no rows", id="empty-data"),
        pytest.param([*GOOD_ROWS[:4], '{"prompt": "x", ', *GOOD_ROWS[4:]], "row 5", id="broken-row"),
        pytest.param([*GOOD_ROWS, json.dumps({"prompt": "no answer"})], "row 21", id="row-without-answer"),
    ],
)
def test_bad_data_is_named_by_row(
    lines: list[str],
    message: str,
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = data_recipe(recipe_with, tmp_path, lines)
    assert main(["train", str(path), "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "data.jsonl" in error


def test_missing_files_are_named(
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
    assert main(["train", "demp"]) == 2
    assert "did you mean 'demo'?" in capsys.readouterr().err
    path = data_recipe(recipe_with, tmp_path, GOOD_ROWS)
    (tmp_path / "data.jsonl").unlink()
    assert main(["train", str(path)]) == 2
    assert "data.jsonl" in capsys.readouterr().err
    (tmp_path / "model").mkdir()
    path = write_recipe(recipe_with(), tmp_path / "recipe.toml", model={"path": str(tmp_path / "model")})
    assert main(["train", str(path)]) == 2
    assert "model.path" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "model")]) == 2
    assert "has no run to resume: there is no recipe.toml" in capsys.readouterr().err


def test_a_run_directory_is_never_overwritten(
    recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(recipe_with(), tmp_path / "recipe.toml")
    assert main(["train", str(path), "--run-dir", str(tmp_path / "run")]) == 0
    before = state_digest(tmp_path / "run")
    assert main(["train", str(path), "--run-dir", str(tmp_path / "run")]) == 2
    assert "--resume" in capsys.readouterr().err
    assert state_digest(tmp_path / "run") == before


def test_overlap_of_train_and_held_out_is_refused(
    recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.jsonl").write_text("\n".join(GOOD_ROWS))
    (tmp_path / "other.jsonl").write_text(GOOD_ROWS[3])
    options = {"train": str(tmp_path / "data.jsonl"), "held_out": str(tmp_path / "other.jsonl")}
    path = write_recipe(recipe_with(), tmp_path / "recipe.toml", task={"name": "jsonl", "options": options})
    assert main(["train", str(path), "--run-dir", str(tmp_path / "run")]) == 2
    assert "held" in capsys.readouterr().err
