"""Parts of memory against the code that takes them."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from groupwise.algo import logprobs
from groupwise.config import OptimizerConfig
from groupwise.data.pack import _num_tokens, pack_rows
from groupwise.engines.native import native_engine
from groupwise.engines.native.schedule import BLOCK_TOKENS
from groupwise.engines.native.states import find_layout
from groupwise.models import moments, recorded
from groupwise.models.memory_limits import EXCHANGE_BYTES
from groupwise.models.straight import StraightLayer
from groupwise.models.tiny import make_tiny
from groupwise.planner import stage_memory as memory
from groupwise.planner.shapes import shape_of
from groupwise.planner.stage_memory import GIB, plan_memory
from tests.unit.planner.works import H200, H200_WITH_24_GIB, QWEN, SMOLLM, work


def test_what_is_restated_is_what_the_code_says() -> None:
    assert memory.CHUNK_BYTES == logprobs.CHUNK_BYTES


@pytest.mark.parametrize("gib", [0.2, 1, 24, 139.8])
def test_the_largest_pack_that_is_recorded(gib: float) -> None:
    layer = SimpleNamespace(kept_bytes=memory.kept_bytes(work()))
    layers = recorded.RecordedLayers([layer] * QWEN.layers, None, None, int(gib * GIB))  # type: ignore[arg-type, list-item]
    planned = replace(work(), gpu=replace(H200, memory_gib=gib))
    assert memory.recordable_tokens(planned) == layers.most_tokens


def test_packs_are_not_larger_than_recordings() -> None:
    """A pack that is too large for it would be kept beside what recordings hold."""
    planned = work(problems_per_step=32, rollouts_per_problem=8, microbatch_tokens=16384)
    assert memory.usual_pack(planned) <= memory.most_tokens(planned) == memory.recordable_tokens(planned) < 16384
    adapters_in_4_bit = work(model={"lora": {"rank": 8}, "quantization": "4bit"}, microbatch_tokens=16384)
    assert memory.most_tokens(adapters_in_4_bit) == 16384


def test_a_sequence_too_long_for_recordings_lies_beside_them() -> None:
    planned = work(microbatch_tokens=16384, sampling={"max_new_tokens": 16000})
    assert memory.longest_pack(planned) > memory.recordable_tokens(planned)
    update = plan_memory(planned, memory.longest_pack(planned)).phases["update"]
    assert update["recorded passes"] > memory.recordable_tokens(planned) * memory.kept_bytes(planned) * QWEN.layers
    assert update["activations"] > memory.longest_pack(planned) * memory.kept_bytes(planned) * (QWEN.layers - 1)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
@pytest.mark.parametrize(("checkpointing", "keep"), [(False, "all"), ("mlp", "attention"), (True, "input")])
def test_what_a_layer_keeps(name: str, checkpointing: Any, keep: Any) -> None:
    model, _ = make_tiny(name, {"num_kv_heads": 1}, seed=0)
    layer = StraightLayer(model.get_decoder().layers[0], None, keep)  # type: ignore[arg-type]
    planned = work(shape_of(model.config, name), model={"path": name, "gradient_checkpointing": checkpointing})
    assert memory.kept_bytes(planned) == layer.kept_bytes


def test_the_cache_of_a_token() -> None:
    model, _ = make_tiny("tiny-qwen3", {}, seed=0)
    shape = shape_of(model.config, "tiny-qwen3")
    assert shape.cache_bytes(4) * 16 == find_layout(model).block_bytes(model.dtype)


@pytest.mark.parametrize("kind", ["fp32", "8bit"])
def test_moments(kind: Any) -> None:
    weights = {"a": torch.zeros(64, 1024), "b": torch.zeros(512, 512)}
    config = OptimizerConfig(moments=kind)
    made: Any = moments.Fp32Moments(weights, config) if kind == "fp32" else moments.EightBitMoments(weights, {}, config)
    parts = memory.lasting_parts(work(optimizer={"moments": kind}))
    count = sum(weight.numel() for weight in weights.values())
    assert parts["moments"] / QWEN.parameters == made.missing_bytes / count


@pytest.mark.parametrize(("prompt", "new", "group"), [(1, 16, 4), (100, 300, 8), (129, 512, 1), (64, 17, 16)])
def test_the_cache_of_a_group_is_what_the_engine_asks_for(prompt: int, new: int, group: int) -> None:
    planned = work(prompt_tokens=prompt, rollouts_per_problem=max(2, group), sampling={"max_new_tokens": new})
    needed = memory.group_cache(planned) / QWEN.cache_bytes(2) / BLOCK_TOKENS
    tokens = tuple(range(prompt))
    requests = [native_engine.Request(Prompt(tokens), tuple(range(planned.group)))]  # type: ignore[arg-type]
    fake = object.__new__(native_engine.NativeEngine)
    fake._refuse_too_small(requests, round(needed), planned.slots, new)
    with pytest.raises(native_engine.CacheTooSmall):
        fake._refuse_too_small(requests, round(needed) - 1, planned.slots, new)


class Prompt:
    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self.token_ids = token_ids


@pytest.mark.parametrize(
    ("problems", "group", "most", "tolerance"),
    # Of groups that are cut, the rests are put together in packs that may be fuller.
    [(32, 8, 16384, 0.12), (8, 8, 4200, 0.12), (4, 16, 16384, 0.12), (8, 8, 2500, 0.25), (16, 4, 2048, 0.25)],
)
@pytest.mark.parametrize("spread", [0, 60])
def test_the_largest_pack_of_a_step(problems: int, group: int, most: int, tolerance: float, spread: int) -> None:
    planned = replace(
        work(problems_per_step=problems, rollouts_per_problem=group, microbatch_tokens=most),
        mean_tokens=500.0,
        max_tokens=1024,
    )
    dice = random.Random(0)
    pairs = [
        ((problem,) * 100, (1,) * dice.randint(500 - spread, 500 + spread))
        for problem in range(problems)
        for _ in range(group)
    ]
    packs = pack_rows(pairs, memory.most_tokens(planned))
    prompts = [{pairs[row][0] for row in pack} for pack in packs]
    sizes = [
        sum(_num_tokens(pairs, [row for row in pack if pairs[row][0] == prompt]) for prompt in seen)
        for pack, seen in zip(packs, prompts, strict=True)
    ]
    assert memory.usual_pack(planned) == pytest.approx(max(sizes), rel=tolerance)


def test_what_is_not_on_the_gpu_takes_none_of_it() -> None:
    plain = memory.lasting_parts(work(kl={"coefficient": 0.1}))
    assert plain["reference"] == plain["weights"] == 2 * QWEN.parameters
    away = memory.lasting_parts(work(kl={"coefficient": 0.1, "offload_reference": True}, optimizer={"offload": True}))
    assert set(away) == {"weights", "gradient sums"}
    with_adapters = work(kl={"coefficient": 0.1}, model={"lora": {"rank": 16}})
    adapters = memory.lasting_parts(with_adapters)
    assert adapters["reference"] == adapters["masters"] / 2
    # They are few enough to change places all at once.
    assert memory.scoring_parts(with_adapters, 8192)["exchange"] == adapters["reference"] < EXCHANGE_BYTES
    assert sum(adapters.values()) < 1.12 * plain["weights"]


def test_weights_in_four_bit() -> None:
    lora = {"rank": 16}
    dense = memory.weight_bytes(work(model={"lora": lora}))
    packed = memory.weight_bytes(work(model={"lora": lora, "quantization": "4bit"}))
    products = QWEN.layers * QWEN.layer_products
    assert (dense - packed) / products == pytest.approx(2 - 0.516, abs=0.001)


def test_an_fp32_model_is_its_own_master() -> None:
    parts = memory.lasting_parts(work(model={"dtype": "float32"}))
    assert "masters" not in parts
    assert parts["weights"] == 4 * QWEN.parameters


def test_ranks_share_what_lasts_and_hold_what_is_whole_meanwhile() -> None:
    alone, two = (plan_memory(work(ranks=ranks), 4096) for ranks in (1, 2))
    assert two.phases["update"]["masters"] == alone.phases["update"]["masters"] / 2
    assert two.phases["sampling"]["replica"] == alone.phases["sampling"]["weights"]
    assert "gathered" in two.phases["update"]
    assert "gathered" not in alone.phases["update"]


def test_the_cache_takes_what_is_there_and_no_more() -> None:
    many = work(gpu=H200_WITH_24_GIB, engine={"max_batch_rollouts": 4096}, problems_per_step=4096,
                model={"lora": {}}, sampling={"max_new_tokens": 1024})  # fmt: skip
    found = plan_memory(many, 4096)
    assert found.fits
    assert 0 < found.rollouts_at_once < 4096
    assert found.phases["sampling"]["cache"] < 24 * GIB
    few = plan_memory(replace(many, engine=replace(many.engine, max_batch_rollouts=8)), 4096)
    assert few.phases["sampling"]["cache"] == 9 * many.row_tokens * QWEN.cache_bytes(2)


def test_a_group_that_the_cache_cannot_hold_does_not_fit() -> None:
    huge = work(gpu=H200_WITH_24_GIB, engine={"max_batch_rollouts": 2048}, rollouts_per_problem=2048,
                model={"lora": {}}, sampling={"max_new_tokens": 2048})  # fmt: skip
    found = plan_memory(huge, 4096)
    assert found.peak < found.room
    assert not found.fits


def test_small_models_are_recorded_and_large_ones_are_not() -> None:
    assert "recorded passes" in plan_memory(work(SMOLLM), 16384).phases["sampling"]
    # fp32 moments or not, the sums of 1.5 G weights are too large to stay on a GPU of 24 GiB
    big = plan_memory(work(gpu=H200_WITH_24_GIB), 16384)
    # smaller packs than this one are recorded where they are scored alone
    assert 0 < big.phases["sampling"]["recorded passes"] < 0.5 * GIB
    alone = work(gpu=H200_WITH_24_GIB, kl={"coefficient": 0.0})
    assert "recorded passes" not in plan_memory(alone, 16384).phases["sampling"]
    assert big.phases["update"]["activations"] == 16384 * 28 * memory.kept_bytes(work())
    assert work().gpu is H200
