"""The comparison of engine and trainer before a stage's first update, with an engine whose logprobs are off."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

from groupwise.config import ConfigError, EngineConfig
from groupwise.engines.engine import Engine, Request
from groupwise.engines.reference import ReferenceEngine
from groupwise.models.agreement import Gap, rounding_gap
from groupwise.models.policy import Policy
from groupwise.models.tiny import make_tokenizer
from groupwise.runs.reader import Run
from groupwise.training import pipeline
from groupwise.training.gate import EngineDisagrees
from groupwise.training.setup import RunRequest
from groupwise.types import Group, SamplingParams
from tests.factories import GRPO, TINY_MODEL, tiny_recipe


@dataclass
class LyingEngine:
    engine: Engine
    lie: float
    first_version: int
    """Policy version from which it lies."""
    peak_bytes: int = 0

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        lie = self.lie if policy_version >= self.first_version else 0.0
        for index, group in self.engine.generate(requests, sampling, policy_version):
            rollouts = tuple(
                replace(rollout, rollout_logprobs=tuple(value - lie for value in rollout.rollout_logprobs))
                for rollout in group.rollouts
            )
            yield index, replace(group, rollouts=rollouts)


def train(
    folder: Path,
    lie: float,
    *,
    first_version: int = 0,
    engine: str = "native",
    dtype: str = "float32",
    sampling: dict[str, Any] | None = None,
) -> Run:
    def make_engine(config: EngineConfig, policy: Policy, *, is_truncated: bool) -> Engine:
        honest = ReferenceEngine(policy.model, policy.tokenizer, policy.stop_token_ids, 64)
        return LyingEngine(honest, lie, first_version)

    stage = GRPO | {"sampling": {"max_new_tokens": 6} | (sampling or {})}
    recipe = tiny_recipe(model=TINY_MODEL | {"dtype": dtype}, engine={"name": engine}, stages=[stage])
    pipeline.carry_out(RunRequest(recipe, folder, make_engine=make_engine))
    return Run(folder)


@pytest.mark.parametrize(("dtype", "lie"), [("float32", 1e-4), ("bfloat16", 0.15), ("float32", float("nan"))])
def test_a_run_whose_engine_disagrees_is_refused_before_the_first_update(
    dtype: str, lie: float, tmp_path: Path
) -> None:
    with pytest.raises(EngineDisagrees) as refused:
        train(tmp_path / "run", lie, dtype=dtype)
    text = str(refused.value)
    assert f"{lie:.2g} nats per token" in text
    assert "Qwen3ForCausalLM" in text
    assert 'engine.name = "reference"' in text
    assert ("model.dtype" in text) == (dtype == "bfloat16")
    run = Run(tmp_path / "run")
    assert not list(run.steps())
    assert run.events()[-1]["kind"] == "failed"


@pytest.mark.parametrize(("dtype", "lie", "engine"), [("float32", 1e-5, "native"), ("bfloat16", 0.05, "reference")])
def test_a_gap_of_rounding_is_accepted(dtype: str, lie: float, engine: str, tmp_path: Path) -> None:
    assert len(list(train(tmp_path / "run", lie, dtype=dtype, engine=engine).steps())) == 3


def test_in_bf16_the_native_engine_rounds_like_the_trainer(tmp_path: Path) -> None:
    recipe = tiny_recipe(model=TINY_MODEL | {"dtype": "bfloat16"}, stages=[GRPO])
    pipeline.carry_out(RunRequest(recipe, tmp_path / "run"))
    assert len(list(Run(tmp_path / "run").steps())) == 3
    with pytest.raises(EngineDisagrees):
        train(tmp_path / "lying", 0.05, dtype="bfloat16")


def test_rounding_grows_as_the_temperature_falls(tmp_path: Path) -> None:
    assert list(train(tmp_path / "run", 1e-4, sampling={"temperature": 0.1}).steps())


def test_truncated_sampling_is_compared_as_well(tmp_path: Path) -> None:
    sampling = {"top_p": 0.8, "top_k": 20}
    assert list(train(tmp_path / "honest", 0.0, sampling=sampling).steps())
    with pytest.raises(EngineDisagrees):
        train(tmp_path / "lying", 1e-4, sampling=sampling)


def test_only_the_first_step_of_a_stage_is_compared(tmp_path: Path) -> None:
    assert list(train(tmp_path / "run", 1.0, first_version=1).steps())


def test_one_token_that_is_far_off_is_enough() -> None:
    assert not Gap(1e-6, 1e-3).is_within(rounding_gap(torch.float32, torch.device("cpu")))
    assert Gap(1e-6, 1e-5).is_within(rounding_gap(torch.float32, torch.device("cpu")))


@pytest.mark.parametrize(("lie", "is_warned"), [(0.1, True), (1e-6, False)])
def test_vllm_is_only_warned_about(
    lie: float, is_warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="groupwise.training.gate"):
        assert list(train(tmp_path / "run", lie, engine="vllm").steps())
    assert ("the vllm engine differ from the trainer's by 0.1 nats" in caplog.text) == is_warned
    assert ("the importance weights correct" in caplog.text) == is_warned


def test_a_model_that_the_native_engine_cannot_sample_from_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    folder, tokenizer = tmp_path / "model", make_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 2}
    GptOssForCausalLM(GptOssConfig(vocab_size=len(tokenizer), **sizes, **heads)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = tiny_recipe(model={"path": str(folder), "device": "cpu"}, engine={"name": "native"}, stages=[GRPO])
    with pytest.raises(ConfigError, match=r'GptOssForCausalLM: it has attention sinks; set engine.name = "reference"'):
        pipeline.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_a_model_with_linear_attention_trains_on_rollouts_of_the_native_engine(tmp_path: Path) -> None:
    folder, tokenizer = tmp_path / "model", make_tokenizer()
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1}
    heads = {"linear_num_key_heads": 1, "linear_num_value_heads": 2, "head_dim": 8, "num_experts": 2}
    config = Qwen3NextConfig(
        vocab_size=len(tokenizer), moe_intermediate_size=8, num_experts_per_tok=1, **sizes, **heads
    )
    Qwen3NextForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    recipe = tiny_recipe(model={"path": str(folder), "device": "cpu"}, engine={"name": "native"}, stages=[GRPO])
    assert pipeline.train(recipe, tmp_path / "run")
    gaps = [step.metrics.get("engine/logprob_gap_max", 0.0) for step in Run(tmp_path / "run").steps()]
    assert 0 < max(gaps) < 1e-5
