"""`groupwise bench … --against` with the libraries themselves, on tiny models: both sides did the same work."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from groupwise.base.seeds import seed_of
from groupwise.bench import step_against
from groupwise.bench.side_by_side import Other
from groupwise.bench.step_against import compare_steps, export, measure_steps, same_work
from groupwise.bench.step_speed import run_steps
from groupwise.cli import main
from groupwise.config import dump_toml, to_table
from groupwise.data.sampler import ProblemSampler
from groupwise.tasks import make_task
from groupwise.training.setup import RunRequest, set_up
from tests.integration.test_bench_step import GRPO, SFT, make

LONG = GRPO | {"sampling": {"max_new_tokens": 40}, "steps": 2, "kl": {"coefficient": 0.02}}


def test_completions_of_groupwise_end_at_their_longest_alone(tmp_path: Path) -> None:
    recipe, _, _ = same_work(make(LONG), 2)
    device, dtype = export(recipe.model, tmp_path / "model")
    assert (device, dtype) == ("cpu", "float32")
    recipe = replace(recipe, model=replace(recipe.model, path=str(tmp_path / "model"), tiny={}))
    # Without what is tested, some of them end before.
    usual = run_steps(RunRequest(recipe, tmp_path / "usual"), 2, 1, ())
    assert usual.mean_tokens < 40
    timing, prompts = measure_steps(recipe, tmp_path / "endless", 2, 1, ())
    assert (timing.mean_tokens, timing.learned_tokens) == (40.0, 4 * 3 * 40.0)
    assert len(prompts) == 2 * 4
    problems = {problem.id for problem in make_task(recipe.task.name, {}).problems("train")}
    assert len({tuple(prompt) for prompt in prompts}) == 8 <= len(problems)
    assert timing.peak_bytes is not None
    assert timing.peak_bytes > 1 << 26


class StandIn(Other):
    """A library whose steps take a second with float32 and one group at a time, and ten otherwise."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def check(self) -> None:
        """It is there."""

    def measure(self, work: Any) -> dict[str, Any]:
        self.seen.append(dict(work))
        is_fast = work["settings"] == {"dtype": "float32", "per_device_train_batch_size": 3}
        phases = {"sample": 0.5, "score": 0.0, "logprobs": 0.1, "update": 0.2, "tokens": 12 * 40}
        steps = [phases | {"step": 1.0 if is_fast else 10.0}] * work["arguments"]["max_steps"]
        return {"version": "9.9", "steps": steps, "peak_bytes": 1 << 30}


def test_the_other_side_gets_what_groupwise_did_and_the_settings_that_are_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_against, "apart", lambda function, *given: function(*given))
    recipe = make(SFT, LONG)
    said: list[str] = []
    comparison = compare_steps(recipe, StandIn("trl"), steps=3, warmup_steps=1, tell=said.append)
    fastest = {"dtype": "float32", "per_device_train_batch_size": 3}
    assert (comparison.settings, comparison.dtype, comparison.version) == (fastest, "float32", "9.9")
    assert (comparison.theirs.step_s, comparison.theirs.steps, comparison.ours.steps) == (1.0, 2, 2)
    assert comparison.ours.skipped_stages == comparison.theirs.skipped_stages == ("sft",)
    assert comparison.ours.mean_tokens == comparison.theirs.mean_tokens == 40.0
    assert [seconds for _, seconds in comparison.trials] == [1.0, 10.0, 10.0, 10.0]
    *trials, last = StandIn.seen
    assert [trial["arguments"]["max_steps"] for trial in trials] == [2] * 4
    assert (last["settings"], last["arguments"]["max_steps"]) == (fastest, 3)
    # What the first step of the recipe itself asks, of the same model.
    same, stage, _ = same_work(recipe, 3)
    training = set_up(RunRequest(same, tmp_path / "run"), tmp_path / "run")
    sampler = ProblemSampler(training.train_problems, stage.curriculum, seed_of(same.seed, "grpo"))
    wanted = [list(training.prompts[problem].token_ids) for step in range(3) for problem in sampler.draw(4, step)]
    assert last["prompts"] == wanted
    assert said[-1] == "measuring trl with dtype=float32, per_device_train_batch_size=3, 3 steps"


def test_sampling_is_compared_with_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "engine", "--model", "tiny-qwen3", "--sequences", "3,10", "--prompt-tokens", "4"]
    arguments += ["--new-tokens", "6", "--against", "transformers", "--against-set", "dtype=float32", "--json"]
    assert main(arguments) == 0
    told = capsys.readouterr()
    table = json.loads(told.out)
    assert [(one["sequences"], one["mean_tokens"]) for one in table["groupwise"]] == [(3, 6.0), (10, 6.0)]
    (theirs,) = table["transformers"]
    assert theirs["settings"] == {"dtype": "float32"}
    pairs = zip(table["groupwise"], theirs["tokens_per_s"], theirs["ratios"], strict=True)
    assert all(ours["tokens_per_s"] / speed == pytest.approx(ratio) for ours, speed, ratio in pairs)
    assert "measuring transformers with dtype=float32" in told.err


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
def test_steps_are_compared_with_trl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text(dump_toml(to_table(make(LONG))))
    arguments = ["bench", "step", str(path), "--steps", "2", "--warmup", "1", "--against", "trl", "--json"]
    arguments += ["--against-python", sys.executable, "--against-set", "dtype=float32"]
    assert main(arguments) == 0
    table = json.loads(capsys.readouterr().out)
    for side in ("groupwise", "trl"):
        timing = table[side]
        assert (timing["steps"], timing["rollouts"], timing["mean_tokens"]) == (1, 12.0, 40.0)
        assert timing["learned_tokens"] == timing["tokens"] == 12 * 40
        assert all(timing["phases_s"][phase] > 0 for phase in ("sample", "logprobs", "update"))
        assert sum(timing["phases_s"].values()) == pytest.approx(timing["step_s"])
        assert timing["peak_bytes"] > 1 << 26
    assert table["trl"]["settings"]["per_device_train_batch_size"] in (3, 12)
