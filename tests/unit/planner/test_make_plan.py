"""What fits, by bisection against trying all; what to change, against leaving out each change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from groupwise.config import ConfigError, make_recipe
from groupwise.planner.gpus import GPUS, Gpu, find_gpu, gpu_of_device, this_gpu
from groupwise.planner.make_plan import (
    changes_that_fit,
    fits,
    largest,
    largest_group,
    largest_microbatch_tokens,
    make_plan,
    most_pack_tokens,
    possible_changes,
)
from groupwise.planner.show_plan import print_plan
from groupwise.planner.stage_memory import plan_memory, recordable_tokens
from groupwise.planner.timing import Speed
from groupwise.planner.work import work_of
from tests.unit.planner.works import H200, H200_WITH_24_GIB, QWEN, SMOLLM, small_recipe, work


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 100])
def test_bisection_finds_the_largest(limit: int) -> None:
    assert largest(lambda number: number <= limit, 1000) == limit


def test_the_largest_microbatch_fits_and_one_more_sequence_does_not() -> None:
    planned = work(gpu=replace(H200, memory_gib=40.0), sampling={"max_new_tokens": 512})
    length = planned.prompt_tokens + planned.max_tokens
    found = largest_microbatch_tokens(planned)
    tried = [rows for rows in range(1, 200) if fits(planned.changed(microbatch_tokens=rows * length))]
    assert found == length * max(tried)
    assert 1 < max(tried) < 199


def test_where_passes_are_recorded_packs_are_no_larger_than_can_be() -> None:
    planned = work(sampling={"max_new_tokens": 512})
    length = planned.prompt_tokens + planned.max_tokens
    assert largest_microbatch_tokens(planned) == recordable_tokens(planned) // length * length
    assert fits(planned.changed(microbatch_tokens=2**24))
    assert most_pack_tokens(planned) == recordable_tokens(planned)
    # With less memory it is that which limits them.
    assert most_pack_tokens(replace(planned, gpu=replace(H200, memory_gib=40.0))) == 0


def test_the_largest_group_fits_and_one_more_does_not() -> None:
    planned = work(gpu=H200_WITH_24_GIB, model={"lora": {}}, sampling={"max_new_tokens": 2048}, microbatch_tokens=4096)
    found = largest_group(planned)

    def fit(group: int) -> bool:
        return fits(replace(planned, group=group, engine=replace(planned.engine, max_batch_rollouts=group)))

    assert fit(found)
    assert not fit(found + 1)


SMALL = Gpu("small", 16.0, 500, 100)


@pytest.mark.parametrize(
    ("memory_gib", "dearest"),
    [
        (40.0, "microbatch_tokens"),
        (20.0, "optimizer.moments"),
        (10.0, "optimizer.offload"),
        (6.0, "model.lora"),
        (4.2, "model.quantization"),
    ],
)
def test_the_cheapest_changes_come_first_and_none_is_in_vain(memory_gib: float, dearest: str) -> None:
    planned = work(gpu=replace(SMALL, memory_gib=memory_gib), kl={"coefficient": 0.0}, engine={"max_batch_rollouts": 8})
    assert not fits(planned)
    chosen = changes_that_fit(planned)
    names = [name for name, _ in chosen]

    def with_all(changes: Any) -> Any:
        changed = planned
        for _, change in changes:
            changed = change(changed)
        return changed

    assert fits(with_all(chosen))
    for change in chosen:
        assert not fits(with_all([other for other in chosen if other is not change]))
    dearer = [name for name, _ in possible_changes(planned)]
    assert sorted(names, key=dearer.index) == names
    assert names[-1].startswith(dearest), names


def test_nothing_helps_where_a_quantized_model_is_too_large() -> None:
    assert changes_that_fit(work(gpu=replace(SMALL, memory_gib=1.5))) == ()


def test_a_recorded_pass_may_take_more_than_the_longest_one() -> None:
    """It holds its memory while the engine draws."""
    recipe = small_recipe(problems_per_step=7, sampling={"max_new_tokens": 8000})
    (stage,) = make_plan(recipe, QWEN, H200, prompt_tokens=100, mean_tokens=200).stages
    planned = work_of(recipe, recipe.stages[0], QWEN, H200, prompt_tokens=100, mean_tokens=200)
    assert "recorded passes" in stage.usual.phases["sampling"]
    assert stage.most.peak == stage.usual.peak > plan_memory(planned, stage.longest_pack).peak


def test_a_plan_of_stages_is_json_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    stages = [
        {"algorithm": "sft", "steps": 5, "demonstrations_per_step": 16},
        {"algorithm": "dapo", "steps": 10, "problems_per_step": 8, "rollouts_per_problem": 8},
    ]
    table = {"name": "two", "model": {"path": "tiny-qwen3"}, "task": {"name": "countdown"}, "stages": stages}
    plan = make_plan(make_recipe(table), QWEN, GPUS["4090"], prompt_tokens=100)
    twin = json.loads(json.dumps(plan.to_json()))
    assert [stage["fits"] for stage in twin["stages"]] == [False, False]
    assert twin["run_tokens"] == 5 * 16 * 128 + 10 * 64 * 128
    assert twin["run_s"] == pytest.approx(sum(s["steps"] * s["step_s"] for s in twin["stages"]) + twin["evaluation_s"])
    assert set(twin["stages"][0]["phases_s"]) == {"update", "rest"}
    resampled = plan.stages[1].max_draws - 1  # dapo's rounds of refilling
    assert resampled == 4
    longer = 10 * resampled * twin["stages"][1]["phases_s"]["sample"]
    assert twin["longest_run_s"] == pytest.approx(twin["run_s"] + longer)
    print_plan(plan)
    shown = " ".join(capsys.readouterr().out.split())
    assert "sft: does not fit:" in shown
    assert "These changes make it fit: " in shown
    assert "completions of 128, 128 tokens on average (--mean-tokens)" in shown
    assert "If no group ever has signal, the run takes" in shown


def test_a_plan_that_fits_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_plan(small_recipe(), SMOLLM, H200, prompt_tokens=100)
    assert plan.fits
    assert plan.notes == ()
    print_plan(plan)
    shown = capsys.readouterr().out
    assert "grpo: fits: at most" in shown
    assert "resampled" not in shown
    assert "rollouts_per_problem" in shown


def test_groups_that_grow_and_are_refilled_draw_most() -> None:
    def draws(**stage: int) -> int:
        return make_plan(small_recipe(**stage), SMOLLM, H200, prompt_tokens=100).stages[0].max_draws

    assert draws() == 1
    assert draws(refill_rounds=2) == 3
    assert draws(max_rollouts_per_problem=32) == 4  # groups of 8
    assert draws(refill_rounds=2, max_rollouts_per_problem=16) == 6


def test_time_grows_with_what_there_is_to_do() -> None:
    (stage,) = make_plan(small_recipe(), QWEN, H200, prompt_tokens=100).stages
    for name, times in stage.scaling.items():
        assert 1 < times < 2.05, name
    (slow,) = make_plan(small_recipe(), QWEN, H200, prompt_tokens=100, speed=Speed(decode=2.0, update=1.0)).stages
    assert slow.phases_s["sample"] == 2 * stage.phases_s["sample"]
    assert slow.phases_s["update"] == stage.phases_s["update"]


def test_a_faster_gpu_takes_less_time() -> None:
    times = [make_plan(small_recipe(), QWEN, GPUS[name], prompt_tokens=100).run_s for name in ("l4", "a100-80", "h200")]
    assert times == sorted(times, reverse=True)


def test_checkpointing_trades_time_for_memory() -> None:
    kinds: list[Any] = [False, "mlp", True]
    works = [work(gpu=replace(H200, memory_gib=60.0), model={"gradient_checkpointing": kind}) for kind in kinds]
    peaks = [sum(plan_memory(planned, 16384).phases["update"].values()) for planned in works]
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize(("key", "value"), [("prompt_tokens", 0), ("mean_tokens", 0.5), ("ranks", 0)])
def test_what_makes_no_sense_is_refused(key: str, value: float) -> None:
    keys: dict[str, Any] = {"prompt_tokens": 100} | {key: value}
    with pytest.raises(ConfigError, match=f"--{key.replace('_', '-')} {value:g}: must be at least 1"):
        make_plan(small_recipe(), QWEN, H200, **keys)


@pytest.mark.parametrize(
    ("device", "memory_gib", "name"),
    [
        ("NVIDIA H200", None, "h200"),
        ("NVIDIA A100-SXM4-80GB", None, "a100-80"),
        ("NVIDIA A100-PCIE-40GB", None, "a100-40"),
        ("NVIDIA A100", 79.2, "a100-80"),
        ("NVIDIA GeForce RTX 4090", 23.5, "4090"),
        ("NVIDIA H100 80GB HBM3", 79.1, "h100"),
        ("NVIDIA L40S", 44.4, "l40s"),
    ],
)
def test_gpus_by_what_the_driver_calls_them(device: str, memory_gib: float | None, name: str) -> None:
    assert gpu_of_device(device, memory_gib) is GPUS[name]


def test_gpus_that_are_not_known_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'h100'"):
        find_gpu("h10")
    with pytest.raises(ConfigError, match="name a similar one"):
        gpu_of_device("Quadro K600")


def test_what_other_programs_have_of_a_gpu_is_not_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe()
    alone, shared = (
        make_plan(recipe, QWEN, gpu, prompt_tokens=100, mean_tokens=200)
        for gpu in (H200, replace(H200, taken_gib=86.0))
    )
    assert shared.stages[0].most.room == alone.stages[0].most.room - 86 * 2**30
    # What is recorded goes by the GPU, not by what is left of it.
    assert shared.stages[0].most.phases["update"] == alone.stages[0].most.phases["update"]
    assert any("86.0 GiB of this GPU" in note for note in shared.notes)
    assert not any("of this GPU" in note for note in alone.notes)

    properties = type("Properties", (), {"name": "NVIDIA H200", "total_memory": 140 * 2**30})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: properties)
    for free_gib, taken_gib in ((139.5, 0.0), (50.0, 140 - 50 - 0.75)):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda free=free_gib: (int(free * 2**30), 140 * 2**30))
        gpu, _ = this_gpu()
        assert (gpu.memory_gib, gpu.taken_gib) == (140.0, taken_gib)
