"""`groupwise bench update` on tiny models: real updates, and numbers that can be counted by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import LlamaConfig

from groupwise.bench import update_speed as bench
from groupwise.bench.engine_speed import SHAPES, make_shape
from groupwise.bench.update_speed import (
    UpdateTiming,
    UpdateWork,
    bench_update,
    make_examples,
    make_policy,
    num_multiplied,
)
from groupwise.cli import main
from groupwise.config import ConfigError
from groupwise.models.load import Recomputed
from groupwise.types import UpdateStats

SMALL = {"model": "tiny-qwen3", "sequences": 5, "longest": 30, "prompt_tokens": 8, "microbatch_tokens": 70}
OPTIONS = [text for key, value in SMALL.items() for text in (f"--{key.replace('_', '-')}", str(value))]


@pytest.fixture
def shape(monkeypatch: pytest.MonkeyPatch) -> str:
    """Two layers and an untied head, so that every parameter can be counted."""
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=300,
        tie_word_embeddings=False,
        max_position_embeddings=64,
    )
    monkeypatch.setitem(SHAPES, "tiny-shape", config)
    return "tiny-shape"


def test_sequences_have_all_lengths_and_are_the_same_again() -> None:
    work = UpdateWork(sequences=400, longest=12, prompt_tokens=7)
    examples = make_examples(work, 50)
    lengths = [len(example.prompt_ids) + len(example.completion_ids) for example in examples]
    assert set(lengths) == {8, 9, 10, 11, 12}
    assert {len(example.prompt_ids) for example in examples} == {7}
    assert all(0 <= token < 50 for example in examples for token in example.prompt_ids + example.completion_ids)
    for example in examples:
        assert example.advantages is not None
        assert example.rollout_logprobs is not None
        assert len(example.advantages) == len(example.rollout_logprobs) == len(example.completion_ids)
        assert example.old_logprobs is None
    again = make_examples(work, 50)
    assert [example.completion_ids for example in again] == [example.completion_ids for example in examples]


def test_numbers_follow_from_each_other() -> None:
    work = UpdateWork(**SMALL, updates=4, peak_tflops=2.0)
    timing = bench_update(work)
    policy = make_policy(work)
    examples = make_examples(work, policy.model.config.vocab_size)
    assert timing.tokens == sum(len(example.prompt_ids) + len(example.completion_ids) for example in examples)
    assert 5 * 9 <= timing.tokens <= 5 * 30
    assert timing.tokens_per_s == pytest.approx(timing.tokens / timing.update_s)
    # Tied: the embedding is the head, and multiplies.
    assert timing.num_parameters == sum(parameter.numel() for parameter in policy.model.parameters())
    assert timing.computed_tokens <= timing.tokens  # a completion's last token is not computed
    computed_per_s = timing.computed_tokens / timing.update_s
    assert timing.mfu == pytest.approx(6 * timing.num_parameters * computed_per_s / 2e12)
    assert timing.first_s > 0
    assert timing.peak_bytes is None
    assert timing.before_bytes is None
    assert timing.note == ""


def test_each_update_is_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, UpdateStats]] = []
    original = bench.update_policy

    def watched(policy: Any, *arguments: Any, **named: Any) -> UpdateStats:
        stats = original(policy, *arguments, **named)
        seen.append((policy.version, stats))
        return stats

    monkeypatch.setattr(bench, "update_policy", watched)
    timing = bench_update(UpdateWork(**SMALL, updates=3))
    assert [version for version, _ in seen] == [1, 2, 3]
    for _, stats in seen:
        assert stats.num_tokens == timing.tokens - 5 * 8
        assert stats.grad_norm > 0
        assert stats.means["policy/ratio_mean"] == 1.0


def test_a_shape_is_trained_too_and_its_parameters_are_counted(shape: str) -> None:
    timing = bench_update(UpdateWork(**SMALL | {"model": shape}))
    attention = 16 * 16 + 8 * 16 + 8 * 16 + 16 * 16
    layer = attention + 3 * 16 * 24 + 2 * 16
    assert timing.num_parameters == 2 * layer + 16 + 300 * 16
    model = make_shape(shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == timing.num_parameters + 300 * 16
    assert timing.mfu is None
    assert "MFU" not in str(timing)


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-shape"])
def test_adapters_and_checkpointing(model: str, shape: str) -> None:
    work = UpdateWork(**SMALL | {"model": model}, checkpointing=True, lora=2, peak_tflops=1.0)
    policy = make_policy(work)
    assert all("lora_" in name for name in policy.weights)
    assert all(isinstance(layer, Recomputed) for layer in policy.model.model.layers)
    timing = bench_update(work)
    assert timing.num_parameters == num_multiplied(policy.model) > num_multiplied(make_policy(UpdateWork(model)).model)
    assert "about 6 N in total, so the two cancel" in str(timing)


@pytest.mark.parametrize(
    ("lora", "checkpointing", "note"),
    [
        (None, False, ""),
        (8, False, "frozen weights need no gradient, about 4 N in total, so MFU is too high"),
        (None, True, "activations are recomputed, about 8 N in total, so MFU is too low"),
    ],
)
def test_notes_say_what_the_formula_hides(lora: int | None, checkpointing: bool, note: str) -> None:
    work = UpdateWork(lora=lora, checkpointing=checkpointing)
    timing = UpdateTiming(work, "H200", 100, 90, 10, 2.0, 1.0, 100.0, 790.0, 0.5, 4 << 30, 1 << 30)
    assert timing.note.endswith(note)
    assert bool(timing.note) == bool(note)
    shown = str(timing)
    assert "50.0 %  of 790 TFLOP/s" in shown
    assert "4.00 GiB  before the update 1.00 GiB" in shown


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "update", *OPTIONS, "--updates", "2", "--peak-tflops", "0.5", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert {key: table[key] for key in SMALL} == SMALL
    assert (table["updates"], table["peak_tflops"], table["lora"], table["checkpointing"]) == (2, 0.5, None, False)
    assert table["mfu"] > 0
    assert main(["bench", "update", *OPTIONS, "--updates", "2"]) == 0
    shown = capsys.readouterr().out
    assert f"5 sequences of 9 to 30 tokens, {table['tokens']} in total" in shown
    assert "MFU" not in shown
    assert "peak memory" not in shown


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "qwen9"], "expected one of qwen2.5-1.5b, smollm2-135m"),
        (["--sequences", "0"], "--sequences = 0: must be from 1"),
        (["--updates", "1"], "--updates = 1: must be from 2"),
        (["--prompt-tokens", "0"], "--prompt-tokens = 0: must be from 1"),
        (["--microbatch-tokens", "0"], "--microbatch-tokens = 0: must be from 1"),
        (["--longest", "8"], "--longest 8: includes the prompt; must be above --prompt-tokens 8"),
        (["--longest", "513"], "--longest 513: tiny-qwen3 has only 512 positions"),
        (["--lora", "0"], "--lora = 0: must be from 1"),
        (["--peak-tflops", "0"], "--peak-tflops = 0.0: must be above 0"),
    ],
)
def test_bad_input_is_refused(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "update", *OPTIONS, *more]) == 2
    assert message in capsys.readouterr().err


def test_an_update_that_was_skipped_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def skipped(*arguments: Any, **named: Any) -> UpdateStats:
        return UpdateStats(float("nan"), float("nan"), False, 1e-6, 3)

    monkeypatch.setattr(bench, "update_policy", skipped)
    assert main(["bench", "update", *OPTIONS]) == 1
    assert "the update was skipped: loss nan" in capsys.readouterr().err


def test_work_is_checked_where_it_is_made() -> None:
    with pytest.raises(ConfigError, match="--longest 128"):
        UpdateWork(longest=128)
