"""Make the engine that a recipe names, on a policy's model.

With one rank, the engine samples from the trainer's own modules. With several ranks the weights are sharded, so each
rank samples from a plain replica that is filled before sampling and emptied afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.config import ConfigError, EngineConfig
from groupwise.engines.engine import Engine, Request
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.engines.reference import ReferenceEngine
from groupwise.engines.vllm.in_process import InProcess
from groupwise.engines.vllm.vllm_engine import PublishedWeights, VllmEngine, logprobs_mode
from groupwise.engines.vllm.vllm_server import Server
from groupwise.models.policy import Policy
from groupwise.models.replica import Replica
from groupwise.types import Group, SamplingParams

EngineMaker = Callable[..., Engine]
"""A function with the parameters of `make_engine`."""


def make_engine(config: EngineConfig, policy: Policy, *, is_truncated: bool = False) -> Engine:
    """Make the engine. With `is_truncated` it may be asked for top-k, top-p and min-p, which vLLM must know."""
    if policy.world.is_alone:
        return _make_engine(config, policy, policy.model, is_truncated)
    if config.name == "vllm":
        raise ConfigError('engine.name = "vllm": only works with one rank; use engine.name = "native" under torchrun')
    replica = policy.replica()
    return RefilledEngine(_make_engine(config, policy, replica.model, is_truncated), replica)


def _make_engine(config: EngineConfig, policy: Policy, model: Any, is_truncated: bool) -> Engine:
    if config.name == "vllm":
        mode = logprobs_mode(is_truncated)
        backend = Server(config, mode) if config.url else InProcess(config, policy, mode)
        return VllmEngine(backend, PublishedWeights(model), policy.tokenizer, policy.stop_token_ids)
    parts = (model, policy.tokenizer, policy.stop_token_ids, config.max_batch_rollouts)
    if config.name == "native":
        engine = NativeEngine(*parts, cache_tokens=config.cache_tokens)
        if model is policy.model:  # A replica has no weights yet, so it is tried later.
            engine.find_layout()
        return engine
    return ReferenceEngine(*parts)


@dataclass(slots=True)
class RefilledEngine:
    """An engine on a replica."""

    engine: Engine
    replica: Replica
    peak_bytes: int = 0

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        # Even without requests: other ranks may have some, and all ranks must take part in filling.
        with self.replica.filled():
            yield from self.engine.generate(requests, sampling, policy_version)
        # torch does not count the replica's memory.
        self.peak_bytes = self.engine.peak_bytes + self.replica.num_bytes if self.engine.peak_bytes else 0
