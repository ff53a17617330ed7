"""`groupwise eval` on tiny models: every kind of model, stopped and taken up again, and compared."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise import cli
from groupwise.config import ConfigError, ModelConfig, Recipe
from groupwise.evals.evaluate import Questions, evaluate, make_engine
from groupwise.evals.guards import PASSAGES, perplexity_estimate
from groupwise.evals.subject import Subject, open_subject
from groupwise.models.export import export_run
from groupwise.models.load import load_model
from groupwise.models.policy import Policy
from groupwise.runs.results import COMPLETIONS, Result, read_groups, read_result
from groupwise.training import pipeline
from groupwise.types import Verdict
from tests.factories import GRPO, SFT, TINY_MODEL

TASK = "tests.integration.toy_task:EvenLetters"
QUESTIONS = Questions(task=TASK, options={"num_held_out": 6}, n=3, ks=(1, 2, 3), max_new_tokens=6)


@pytest.fixture(scope="module")
def subject() -> Subject:
    config = ModelConfig(**TINY_MODEL)  # type: ignore[arg-type]
    policy = Policy(load_model(config, 0), ema_decay=0.0)
    return Subject(policy, None, {"path": "tiny", "checkpoint": None, "fingerprint": "tiny"})


def without_clock(result: Result) -> Result:
    return replace(result, cost={})


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert cli.main([*map(str, arguments), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_scores_are_those_of_the_completions_in_the_folder(subject: Subject, tmp_path: Path) -> None:
    folder, result = evaluate(subject, make_engine(subject), QUESTIONS, root=tmp_path)
    assert read_result(folder) == result
    assert result.is_finished
    groups = read_groups(folder)
    assert len(groups) == 6
    assert {len(scored.scores) for scored in groups} == {3}
    shares = [sum(score.verdict is Verdict.CORRECT for score in scored.scores) / 3 for scored in groups]
    assert result.scores["pass@1"].value == pytest.approx(sum(shares) / 6)
    assert result.scores["pass@3"].value == pytest.approx(sum(share > 0 for share in shares) / 6)
    assert result.scores["pass@3"] == result.scores["best_of_3_by_verifier"]
    assert result.scores["truncated_share"].value > 0.5
    assert list(result.by["level"]) == ["0", "1", "2"]
    assert result.sampling["temperature"] == 1.0
    assert result.data["count"] == 6
    assert result.cost["tokens"] == sum(len(r.token_ids) for scored in groups for r in scored.group.rollouts)


def test_a_stopped_evaluation_goes_on_to_the_same_result(subject: Subject, tmp_path: Path) -> None:
    engine = make_engine(subject)
    _, whole = evaluate(subject, engine, QUESTIONS, root=tmp_path / "whole")

    def stop_after_two(done: int, count: int) -> None:
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    folder, stopped = evaluate(subject, engine, QUESTIONS, root=tmp_path, progress=stop_after_two)
    assert not stopped.is_finished
    assert stopped.scores == {}
    assert len(read_groups(folder)) == 2
    # As a kill leaves it.
    (folder / COMPLETIONS).write_bytes((folder / COMPLETIONS).read_bytes()[:-20])
    seen: list[int] = []
    again, resumed = evaluate(subject, engine, QUESTIONS, root=tmp_path, progress=lambda done, count: seen.append(done))
    assert again == folder
    assert seen == [1, 2, 3, 4, 5, 6]
    assert without_clock(resumed) == without_clock(whole)
    assert resumed.cost["tokens"] == whole.cost["tokens"]
    assert resumed.cost["seconds"] > stopped.cost["seconds"]
    assert {g.group.prompt.problem.id: g for g in read_groups(folder)} == {
        g.group.prompt.problem.id: g for g in read_groups(tmp_path / "whole" / folder.name)
    }


def test_a_longer_evaluation_draws_the_same_dice(subject: Subject, tmp_path: Path) -> None:
    """The first problems of a longer one, and the first completions of a wider one, are the same."""
    engine = make_engine(subject)
    groups = {}
    for name, changes in (("base", {"limit": 2}), ("long", {}), ("wide", {"limit": 2, "n": 5})):
        folder, _ = evaluate(subject, engine, replace(QUESTIONS, **changes), root=tmp_path / name)  # type: ignore[arg-type]
        groups[name] = {scored.group.prompt.problem.id: scored.group.rollouts for scored in read_groups(folder)}
    for key, rollouts in groups["base"].items():
        assert groups["long"][key] == rollouts
        assert groups["wide"][key][:3] == rollouts


def test_a_folder_with_another_evaluation_is_refused(subject: Subject, tmp_path: Path) -> None:
    engine = make_engine(subject)
    evaluate(subject, engine, QUESTIONS, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="holds an evaluation with sampling"):
        evaluate(subject, engine, replace(QUESTIONS, seed=1), out=tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(ConfigError, match=r"notes\.txt but no result"):
        evaluate(subject, engine, QUESTIONS, out=tmp_path / "mine")


def test_failures_of_the_verifier_are_no_wrong_answers(subject: Subject, tmp_path: Path) -> None:
    failing = replace(QUESTIONS, options={"num_held_out": 6, "fail": "raise"})
    folder, result = evaluate(subject, make_engine(subject), failing, root=tmp_path)
    judged = [[score for score in scored.scores if not score.is_error] for scored in read_groups(folder)]
    assert result.scores["error_share"].value == pytest.approx(sum(3 - len(scores) for scores in judged) / 18)
    assert result.scores["error_share"].value > 0
    assert result.scores["pass@3"].n == sum(len(scores) == 3 for scores in judged)
    assert result.scores["pass@3"].left_out == 6 - result.scores["pass@3"].n > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0, "ks": ()}, "--n 0"),
        ({"n": 2, "ks": (1, 4)}, "raise --n to 4"),
        ({"temperature": 0.0}, "the same completion 3 times"),
        ({"temperature": -1.0}, "--temperature -1.0"),
        ({"limit": -1}, "must not be negative"),
    ],
)
def test_questions_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(QUESTIONS, **changes)


def test_runs_exports_and_adapters_are_evaluated_alike(
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run with LoRA, its export, and the same adapter in peft's own format draw the same completions."""
    monkeypatch.chdir(tmp_path)
    lora = {"rank": 2, "alpha": 64.0, "target_modules": ["q_proj", "v_proj", "up_proj"]}
    # The base must be a folder, for an adapter to name.
    base = Policy(load_model(ModelConfig(**TINY_MODEL), 0), ema_decay=0.0)  # type: ignore[arg-type]
    base.model.save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    rate = {"optimizer": {"learning_rate": 0.05}}
    recipe = recipe_with(
        model={"path": str(tmp_path / "base"), "device": "cpu", "lora": lora}, stages=[SFT | rate, GRPO | rate]
    )
    assert pipeline.train(recipe, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "exported", checkpoint="last")
    trained = open_subject(str(tmp_path / "run"), "last")
    save_as_peft(trained.policy, tmp_path / "adapter", tmp_path / "base", lora)
    asked = ("--task", TASK, "--n", 2, "--k", "1,2", "--max-new-tokens", 6, "--set", "num_held_out=6")
    texts, found = {}, {}
    for name, more in (("run", ("--checkpoint", "last")), ("exported", ()), ("adapter", ()), ("base", ())):
        (found[name],) = run_cli(capsys, "eval", name, *more, *asked)
        groups = read_groups(Path(found[name]["folder"]))
        texts[name] = {g.group.prompt.problem.id: [r.text for r in g.group.rollouts] for g in groups}
    assert texts["run"] == texts["exported"] == texts["adapter"] != texts["base"]
    assert len({entry["model"]["fingerprint"] for entry in found.values()}) == 4
    assert found["run"]["model"]["checkpoint"].startswith("step-")
    assert found["run"]["recipe"] is not None
    # The run's own training set is known: held-out problems ("even 1003") are not in it.
    assert found["run"]["contamination"]["exact"] == 0
    assert found["base"]["contamination"] is None


def save_as_peft(policy: Policy, folder: Path, base: Path, lora: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    tensors = {
        f"base_model.model.{name.replace('.default', '')}": weight.detach().clone()
        for name, weight in policy.model.named_parameters()
        if "lora_" in name
    }
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": lora["rank"]}
    settings |= {"lora_alpha": lora["alpha"], "target_modules": lora["target_modules"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def test_a_run_is_evaluated_on_its_own_task_and_compared_with_itself(
    recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    recipe = recipe_with(stages=[GRPO | {"optimizer": {"learning_rate": 0.03}}])
    assert pipeline.train(recipe, run)
    (best,) = run_cli(capsys, "eval", run, "--out", tmp_path / "best")
    assert best["task"]["name"] == TASK
    assert best["sampling"]["max_new_tokens"] == 6
    (last,) = run_cli(capsys, "eval", run, "--checkpoint", "last", "--out", tmp_path / "last")
    assert last["model"]["checkpoint"] == "step-000003"
    (named,) = run_cli(capsys, "eval", run / "checkpoints" / "step-000003", "--out", tmp_path / "named")
    assert named["scores"] == last["scores"]
    (found,) = run_cli(capsys, "compare", tmp_path / "best", tmp_path / "last")
    assert found["num_problems"] == 8
    assert found["test"] == "mcnemar"
    assert found["difference"] == pytest.approx(last["scores"]["pass@1"]["value"] - best["scores"]["pass@1"]["value"])
    # The run's own evaluations, greedy as well, are compared problem by problem too.
    (within,) = run_cli(capsys, "compare", f"{run}@0", run)
    assert within["first"].endswith("@0")
    assert within["second"].endswith("@3")
    assert within["num_problems"] == 6
    (mixed,) = run_cli(capsys, "compare", f"{run}@3", tmp_path / "last")
    assert (mixed["num_problems"], mixed["difference"], mixed["left_out"]) == (6, 0.0, 2)
    assert cli.main(["compare", f"{run}@7", str(run)]) == 2
    assert "evaluated after steps 0, 2, 3" in capsys.readouterr().err


def test_several_tasks_in_one_go_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    several = ["--task", "countdown", "--task", "arithmetic", "--set", "countdown.num_held_out=3", "--limit", "2"]
    arguments = ["eval", "tiny-qwen3", *several, "--max-new-tokens", "4"]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "pass@1" in shown
    assert "95 % interval" in shown
    results = [read_result(path) for path in sorted((tmp_path / "evals").iterdir())]
    assert [result.task["name"] for result in results] == ["arithmetic", "countdown"]
    assert results[1].task["options"] == {"num_held_out": 3}
    assert cli.main(["eval", "tiny-qwen3"]) == 2
    assert "name a task with --task" in capsys.readouterr().err
    assert cli.main(["eval", "tiny-qwen3", "--task", "countdown", "--checkpoint", "last"]) == 2
    assert cli.main(["eval", "tiny-qwen3", "--task", "countdown", "--k", "a"]) == 2


def test_greedy_and_sampled_in_one_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["eval", "tiny-qwen3", "--task", "countdown", "--limit", "2", "--max-new-tokens", "4", "--out", tmp_path]
    greedy, sampled = run_cli(capsys, *asked, "--n", "2", "--greedy")
    assert (greedy["sampling"]["n"], greedy["sampling"]["temperature"]) == (1, 0)
    assert (sampled["sampling"]["n"], sampled["sampling"]["temperature"]) == (2, 1)
    assert "_greedy_" in greedy["folder"]
    assert "_n2_" in sampled["folder"]
    assert len(read_groups(Path(sampled["folder"]))[0].scores) == 2
    assert cli.main([*map(str, asked), "--greedy"]) == 2
    assert "greedy already" in capsys.readouterr().err


def test_general_abilities_are_a_task_and_perplexity_is_the_models_own(subject: Subject, tmp_path: Path) -> None:
    found = perplexity_estimate(subject.policy)
    nats = []
    for passage in PASSAGES:
        ids = torch.tensor([subject.policy.tokenizer.encode(passage, add_special_tokens=False)[:128]])
        with torch.no_grad():
            nats.append(float(subject.policy.model(input_ids=ids, labels=ids).loss))
    assert found.value == pytest.approx(float(torch.tensor(nats).mean().exp()), rel=1e-4)
    assert found.low < found.value < found.high
    general = Questions(task="general", options={}, limit=2, max_new_tokens=4)
    _, result = evaluate(subject, make_engine(subject), general, root=tmp_path)
    assert result.scores["perplexity"] == found
    assert result.verifier == "general-format/1 + general-text/1"
