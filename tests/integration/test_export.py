"""What leaves a run: a plain folder that transformers loads and that computes what the policy computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise.cli import main
from groupwise.config import Recipe
from groupwise.evals.subject import open_subject
from groupwise.models.checkpoint_store import CheckpointStore
from groupwise.models.policy import load_policy
from groupwise.training import pipeline
from groupwise.training.training import Training
from tests.factories import GRPO, TINY_MODEL

PROMPT = torch.tensor([[5, 9, 77, 3]])


def final_logits(recipe: Recipe, run_dir: Path) -> torch.Tensor:
    """Logprobs of the policy at the end of the run, from its newest checkpoint."""
    policy = load_policy(recipe)
    store = CheckpointStore(run_dir / "checkpoints", keep_last=2)
    newest = store.newest_valid()
    assert newest is not None
    policy.load_weights(store.load(newest)[0]["weights"])
    with torch.no_grad():
        return policy.model(input_ids=PROMPT).logits


@pytest.mark.parametrize("lora", [False, True])
def test_an_exported_run_loads_in_transformers_and_computes_the_same(
    lora: bool, recipe_with: Callable[..., Recipe], tmp_path: Path
) -> None:
    model = TINY_MODEL | ({"lora": {"rank": 4}} if lora else {})
    fast = GRPO | {"optimizer": {"learning_rate": 1e-2}}
    recipe = recipe_with(model=model, stages=[fast])
    pipeline.train(recipe, tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--checkpoint", "last"]) == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        logits = exported(input_ids=PROMPT).logits
    expected = final_logits(recipe, tmp_path / "run")
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    initial = load_policy(recipe).model
    with torch.no_grad():
        assert (initial(input_ids=PROMPT).logits - expected).abs().max() > 1e-3, "the run moved nothing"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer.encode("<answer>7</answer>")) == "<answer>7</answer>"


def test_an_exported_model_is_asked_as_it_was_trained(
    recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # No run, for all its name.
    folder = tmp_path / "checkpoints" / "base"
    base = open_subject("tiny-qwen3").policy
    template = base.tokenizer.chat_template + "{% if enable_thinking is not defined or enable_thinking %}aaa{% endif %}"
    base.tokenizer.chat_template = template
    base.model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    model = {"path": str(folder), "device": "cpu", "chat_template_options": {"enable_thinking": False}}
    pipeline.train(recipe_with(model=model, stages=[GRPO]), tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    asked = [{"role": "user", "content": "?"}]
    texts = {
        path.name: AutoTokenizer.from_pretrained(path).apply_chat_template(asked, tokenize=False)
        for path in (folder, tmp_path / "out")
    }
    assert texts["base"] == texts["out"] + "aaa"
    # What was not trained is asked alike on demand, and its results are told from those of the other question.
    capsys.readouterr()
    marks = []
    for more in ([], ["--chat-template-option", "enable_thinking=false"]):
        task = ["--task", "tests.integration.toy_task:EvenLetters", "--limit", "2", "--max-new-tokens", "2"]
        assert main(["eval", str(folder), *task, *more, "--out", str(tmp_path / f"{len(more)}"), "--json"]) == 0
        marks.append(json.loads(capsys.readouterr().out)["model"]["fingerprint"])
    assert marks[1] == marks[0] + '+{"enable_thinking": false}'
    for given in (["enable_thinking"], ["enable_thinking=false"]):
        assert main(["eval", str(tmp_path / "run"), "--chat-template-option", *given]) == 2
    told = capsys.readouterr().err
    assert "write name=value" in told
    assert "is a run, which is evaluated as it was trained" in told


def test_an_exported_run_is_a_model_to_start_from(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    pipeline.train(recipe_with(), tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    recipe = recipe_with(model={"path": str(tmp_path / "out")}, stages=[GRPO])
    assert pipeline.train(recipe, tmp_path / "second")


def test_merging_two_exports_averages_their_weights(recipe_with: Callable[..., Recipe], tmp_path: Path) -> None:
    fast = GRPO | {"optimizer": {"learning_rate": 1e-2}}
    for name, steps in (("a", 1), ("b", 3)):
        pipeline.train(recipe_with(stages=[fast | {"steps": steps}]), tmp_path / name)
        main(["export", str(tmp_path / name), str(tmp_path / f"{name}-out"), "--checkpoint", "last"])
    folders = [str(tmp_path / "a-out"), str(tmp_path / "b-out")]
    assert main(["merge", *folders, "--weights", "0.7", "0.3", "--out", str(tmp_path / "m")]) == 0
    a, b, merged = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("a-out", "b-out", "m"))
    for (name, first), second, third in zip(a.named_parameters(), b.parameters(), merged.parameters(), strict=True):
        torch.testing.assert_close(third, 0.7 * first + 0.3 * second, msg=name)


def test_the_moving_average_is_kept_and_exported(
    recipe_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the average worked out from the weights after each update."""
    seen: list[dict[str, torch.Tensor]] = []
    original = Training.after_update

    def watching(self: Training, stats: object) -> None:
        seen.append({name: weight.clone() for name, weight in self.policy.weights.items()})
        original(self, stats)  # type: ignore[arg-type]

    monkeypatch.setattr(Training, "after_update", watching)
    recipe = recipe_with(model=TINY_MODEL | {"ema_decay": 0.8}, stages=[GRPO | {"steps": 2}])
    average = {name: weight.clone() for name, weight in load_policy(recipe).weights.items()}
    pipeline.train(recipe, tmp_path / "run")
    for weights in seen:
        average = {name: 0.8 * average[name] + 0.2 * weight for name, weight in weights.items()}
    main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--checkpoint", "last", "--ema"])
    exported = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "out").named_parameters())
    for name, weight in average.items():
        torch.testing.assert_close(exported[name].data, weight, rtol=1e-5, atol=1e-6, msg=name)


def test_export_refuses_what_is_not_there(
    recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.train(recipe_with(), tmp_path / "run")
    for arguments, message in (
        (["--checkpoint", "step-9"], "no checkpoint 'step-9'"),
        (["--ema"], "has no moving average"),
    ):
        assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 2
    assert "no such folder" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "full")]) == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_a_model_is_exported_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "tiny-qwen3", str(tmp_path / "out")]) == 0
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        logits = exported(input_ids=PROMPT).logits
        expected = open_subject("tiny-qwen3").policy.model(input_ids=PROMPT).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert main(["export", "tiny-qwen3", str(tmp_path / "other"), "--checkpoint", "last"]) == 2
    assert "for a run directory" in capsys.readouterr().err
