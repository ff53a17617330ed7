"""Sampling of groupwise and another library side by side: what both are asked to do, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from groupwise.bench import engine_against
from groupwise.bench.engine_against import EngineComparison, compare_engines, make_sampling_work
from groupwise.bench.engine_speed import make_requests, model_at
from groupwise.bench.side_by_side import Other, OtherFailed
from groupwise.models.load import load_model

LENGTHS = {"prompt_tokens": 5, "new_tokens": 3}


def test_the_other_side_gets_the_weights_and_prompts_of_groupwise(tmp_path: Path) -> None:
    work, dtype = make_sampling_work("tiny-qwen3", tmp_path / "model", [19, 4], LENGTHS, is_vllm=True)
    theirs = AutoModelForCausalLM.from_pretrained(work["model"])
    ours = load_model(model_at("tiny-qwen3"), seed=0).model
    assert all(torch.equal(weight, ours.state_dict()[name]) for name, weight in theirs.state_dict().items())
    assert (work["device"], dtype, work["new_tokens"]) == ("cpu", "float32", 3)
    config = ours.config
    requests = make_requests(19, 8, 5, config.vocab_size)
    assert [prompt["token_ids"] for prompt in work["batches"][0]] == [list(one.prompt.token_ids) for one in requests]
    assert [[prompt["count"] for prompt in batch] for batch in work["batches"]] == [[8, 8, 3], [4]]
    cache_bytes = 4 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 19 * (5 + 3)
    assert work["arguments"]["kv_cache_memory_bytes"] > cache_bytes
    other, _ = make_sampling_work("tiny-qwen3", tmp_path / "other", [4], LENGTHS, is_vllm=False)
    assert other["arguments"] == {}


class StandIn(Other):
    """A library that takes a second per token with float32, half of it with bfloat16."""

    tokens_missing = 0

    def check(self) -> None:
        """It is there."""

    def measure(self, work: Any) -> dict[str, Any]:
        speed = {"float32": 1.0, "bfloat16": 2.0}[work["settings"]["dtype"]]
        counts = [sum(prompt["count"] for prompt in batch) * work["new_tokens"] for batch in work["batches"]]
        timings = [
            {"first_s": 99.0, "seconds": count / speed, "tokens": count - self.tokens_missing} for count in counts
        ]
        return {"version": "9.9", "timings": timings}


def compare(other: Other) -> EngineComparison:
    return compare_engines("tiny-qwen3", "native", [9, 2], other, LENGTHS, lambda text: None)


def test_all_settings_are_printed_with_their_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_against, "apart", lambda function, *given, **named: function(*given, **named))
    comparison = compare(StandIn("vllm"))
    assert [timing.sequences for timing in comparison.ours] == [9, 2]
    assert comparison.theirs == [({"dtype": "float32"}, [1.0, 1.0]), ({"dtype": "bfloat16"}, [2.0, 2.0])]
    speeds = [timing.tokens_per_s for timing in comparison.ours]
    table = comparison.to_json()
    assert [one["ratios"] for one in table["vllm"]] == [speeds, [speed / 2 for speed in speeds]]
    lines = str(comparison).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith("vllm 9.9: tiny-qwen3")
    rows = [line.split() for line in lines[-6:]]
    assert [row[:2] for row in rows] == [
        [name, count] for count in ("9", "2") for name in ("native", "dtype=float32", "dtype=bfloat16")
    ]
    assert rows[2][2:] == ["2", f"{speeds[0] / 2:.2f}"]
    monkeypatch.setattr(StandIn, "tokens_missing", 1)
    with pytest.raises(OtherFailed, match="vllm sampled 26 tokens instead of 9 × 3 with dtype=float32"):
        compare(StandIn("vllm"))
