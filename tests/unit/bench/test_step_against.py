"""Steps of groupwise and TRL side by side: what both are asked to do, and what is said about the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from groupwise.bench.side_by_side import OtherFailed
from groupwise.bench.step_against import (
    MadeUpRewards,
    StepComparison,
    check_batch_size,
    check_equal,
    make_work,
    record_of,
    same_work,
    tried_settings,
)
from groupwise.bench.step_speed import StepTiming, summarize
from groupwise.config import ConfigError, Recipe, RlStage, make_recipe
from groupwise.tasks import make_task

STAGE: dict[str, Any] = {
    "algorithm": "dapo",
    "name": "rl",
    "steps": 50,
    "problems_per_step": 6,
    "problems_per_update": 3,
    "rollouts_per_problem": 4,
    "epochs_per_batch": 2,
    "sampling": {"max_new_tokens": 32, "temperature": 0.8, "top_p": 0.9, "stop_strings": ["."]},
    "optimizer": {"learning_rate": 1e-4, "schedule": "cosine", "warmup_steps": 5, "moments": "8bit"},
    "kl": {"coefficient": 0.01},
    "reward": {"overlong_filter": True},
}  # fmt: skip
SFT = {"algorithm": "sft", "steps": 3, "demonstrations_per_step": 4}


def make(*stages: dict[str, Any], **model: Any) -> Recipe:
    table = {"name": "r", "model": {"path": "tiny-qwen3"} | model, "task": {"name": "arithmetic"}, "stages": [*stages]}
    return make_recipe(table)


def stage_of(recipe: Recipe) -> RlStage:
    (stage,) = recipe.stages
    assert isinstance(stage, RlStage)
    return stage


def work_for(table: dict[str, Any], device: str = "cpu", settings: Any = (), **model: Any) -> dict[str, Any]:
    recipe, stage, _ = same_work(make(table, **model), 7)
    chosen = {"dtype": "float32", "per_device_train_batch_size": 8} | dict(settings)
    return make_work(recipe, stage, [[1]], 7, device, chosen)


def test_the_work_is_what_both_can_do() -> None:
    recipe, stage, skipped = same_work(make(SFT, STAGE), 7)
    assert recipe.stages == (stage,)
    assert stage.steps == 50  # with which the learning rate falls
    assert skipped == ("sft",)
    assert stage.updates_per_step == 1
    assert (stage.refill_rounds, stage.max_rollouts_per_problem) == (0, 0)
    assert not stage.reward.overlong_filter  # it would leave out every completion
    assert stage.sampling.stop_strings == ()
    assert (stage.sampling.max_new_tokens, stage.sampling.temperature, stage.sampling.top_p) == (32, 0.8, 0.9)
    assert (stage.optimizer.learning_rate, stage.optimizer.moments) == (1e-4, "fp32")
    assert stage.kl.coefficient == 0.01
    assert recipe.logging.rollouts_every_steps == 1  # the prompts for the other side are read from them


def test_trl_is_asked_for_the_same() -> None:
    work = work_for(STAGE)
    arguments = work["arguments"]
    assert arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"] == 6 * 4
    expected = {
        "max_steps": 7,
        "num_generations": 4,
        "max_completion_length": 32,
        "temperature": 0.8,
        "top_p": 0.9,
        "min_p": None,
        "beta": 0.01,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "weight_decay": 0.0,
        "dtype": "float32",
        "use_cpu": True,
        "bf16": False,
        "shuffle_dataset": False,
    }
    assert {name: arguments[name] for name in expected} == expected
    assert (work["prompts"], work["lora"], work["model"]) == ([[1]], None, "tiny-qwen3")
    assert work["settings"] == {"dtype": "float32", "per_device_train_batch_size": 8}


def test_what_is_given_wins() -> None:
    arguments = work_for(STAGE, "cuda")["arguments"]
    assert (arguments["use_cpu"], arguments["bf16"]) == (False, True)
    assert not work_for(STAGE, "cuda", {"dtype": "bfloat16"})["arguments"]["bf16"]
    work = work_for(STAGE, settings={"beta": 0.5, "bf16": True}, lora={"rank": 3})
    assert (work["arguments"]["beta"], work["arguments"]["bf16"]) == (0.5, True)
    assert (work["lora"]["r"], work["lora"]["target_modules"][0]) == (3, "q_proj")


def test_settings_that_are_tried_divide_the_batch() -> None:
    stage = stage_of(make(STAGE))
    tried = tried_settings(stage)
    assert [tuple(one.values()) for one in tried] == [
        ("float32", 4),
        ("float32", 24),
        ("bfloat16", 4),
        ("bfloat16", 24),
    ]
    many = replace(stage, problems_per_step=20, problems_per_update=0)
    assert {one["per_device_train_batch_size"] for one in tried_settings(many)} == {4, 5 * 4}
    for size in (0, 5, 48, "8"):
        with pytest.raises(ConfigError, match=f"--against-set per_device_train_batch_size={size}: must divide the 24"):
            check_batch_size(stage, {"per_device_train_batch_size": size})


def test_rewards_are_made_up_and_the_problems_are_not() -> None:
    task = make_task("arithmetic", {})
    made_up = MadeUpRewards(task)
    (problem, *_) = made_up.problems("train")
    assert problem == task.problems("train")[0]
    rewards = [made_up.score(problem, text).reward for text in ("", "a", "b", "a")]
    assert len(set(rewards)) == 3
    assert rewards[1] == rewards[3]


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match="r: there is no RL stage to measure"):
        same_work(make(SFT), 3)
    with pytest.raises(ConfigError, match=r"model.quantization = '8bit': .* --set model.quantization=none"):
        same_work(make(STAGE, quantization="8bit", lora={}), 3)


def timing(seconds: float, tokens: float = 768.0) -> StepTiming:
    """Two steps after a warm-up step."""
    stage = stage_of(make(STAGE))
    phases = {"sample": 4 * seconds, "score": 0.0, "logprobs": seconds, "update": 2 * seconds}
    steps = [phases | {"step": 8 * seconds, "tokens": tokens}] * 3
    records = [record_of(number, stage, steps) for number in (1, 2, 3)]
    summary = summarize(records, 1, recipe="r", skipped_stages=(), device="cpu")
    return replace(summary, peak_bytes=seconds * 2**30)


def test_a_step_of_trl_is_summarized_like_one_of_groupwise() -> None:
    one = timing(0.5)
    assert one.phases_s == {"sample": 2.0, "score": 0.0, "logprobs": 0.5, "update": 1.0, "rest": 0.5}
    assert (one.step_s, one.steps, one.rollouts, one.mean_tokens) == (4.0, 2, 24.0, 32.0)
    assert (one.tokens, one.learned_tokens, one.logprob_gap_mean) == (768.0, 768.0, None)


def test_both_sides_are_printed_with_the_ratio_of_each_phase() -> None:
    settings = {"dtype": "bfloat16", "per_device_train_batch_size": 24}
    trials = [(settings | {"dtype": "float32"}, 12.5), (settings, 10.25)]
    comparison = StepComparison("float32", "trl", "1.16.0", settings, timing(0.5), timing(1.25), trials)
    assert comparison.ratios == dict.fromkeys(("step", "sample", "logprobs", "update", "rest", "peak memory"), 2.5)
    lines = str(comparison).splitlines()
    assert max(map(len, lines)) <= 80
    assert "trl 1.16.0, dtype=bfloat16, per_device_train_batch_size=24" in lines
    place = lines.index("             groupwise       trl  trl / groupwise")
    rows = [line.split() for line in lines[place + 1 : place + 8]]
    assert rows[0] == ["step", "4.000", "s", "10.000", "s", "2.50"]
    assert rows[2] == ["score", "0.000", "s", "0.000", "s"]
    assert rows[-1] == ["peak", "memory", "0.50", "GiB", "1.25", "GiB", "2.50"]
    assert lines[-3].split() == ["trl,", "tried", "for", "2", "steps", "step"]
    assert lines[-1].split() == ["dtype=bfloat16,", "per_device_train_batch_size=24", "10.250", "s"]
    table = comparison.to_json()
    assert table["trl"]["trials"][0] == {"settings": trials[0][0], "step_s": 12.5}
    assert list(table) == ["groupwise", "trl", "ratios"]
    assert (table["groupwise"]["step_s"], table["trl"]["step_s"], table["trl"]["settings"]) == (4.0, 10.0, settings)


def test_unequal_work_is_an_error() -> None:
    stage = stage_of(make(STAGE))
    check_equal("trl", timing(0.5), stage)
    with pytest.raises(OtherFailed, match="trl sampled 760 tokens per step instead of 768"):
        check_equal("trl", timing(0.5, tokens=760.0), stage)
    with pytest.raises(OtherFailed, match="groupwise learned from 700 tokens per step instead of 768"):
        check_equal("groupwise", replace(timing(0.5), learned_tokens=700.0), stage)
