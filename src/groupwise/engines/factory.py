"""Make the engine that a recipe names, on a policy's model.

With one rank, the engine samples from the trainer's own modules. With several ranks the weights are sharded, so each
rank samples from a plain replica that is filled before sampling and emptied afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from groupwise.config import ConfigError, EngineConfig
from groupwise.engines.engine import Engine, Request
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.engines.reference import ReferenceEngine
from groupwise.engines.vllm.in_process import InProcess
from groupwise.engines.vllm.vllm_engine import Backend, PublishedWeights, VllmEngine
from groupwise.engines.vllm.vllm_server import Server
from groupwise.models.export import save_folder
from groupwise.models.policy import Policy
from groupwise.models.replica import Replica
from groupwise.types import Group, SamplingParams


def make_engine(config: EngineConfig, policy: Policy) -> Engine:
    if policy.world.is_alone:
        return _make_engine(config, policy, policy.model)
    if config.name == "vllm":
        raise ConfigError('engine.name = "vllm": only works with one rank; use engine.name = "native" under torchrun')
    replica = policy.replica()
    return RefilledEngine(_make_engine(config, policy, replica.model), replica)


def _make_engine(config: EngineConfig, policy: Policy, model: Any) -> Engine:
    if config.name == "vllm":
        weights = PublishedWeights(model)
        return VllmEngine(_make_backend(config, policy), weights, policy.tokenizer, policy.stop_token_ids)
    parts = (model, policy.tokenizer, policy.stop_token_ids, config.max_batch_rollouts)
    if config.name == "native":
        return NativeEngine(*parts, cache_tokens=config.cache_tokens)
    return ReferenceEngine(*parts)


def _make_backend(config: EngineConfig, policy: Policy) -> Backend:
    if config.url:
        return Server(
            config.url,
            weights_folder=config.weights_folder,
            max_batch_rollouts=config.max_batch_rollouts,
            timeout_s=config.timeout_s,
        )
    return InProcess(
        lambda folder: save_folder(policy, folder),
        dtype=str(policy.model.dtype).removeprefix("torch."),
        device=policy.device.type,
        context_tokens=policy.context_tokens,
        max_batch_rollouts=config.max_batch_rollouts,
        memory_share=config.memory_share,
    )


class RefilledEngine:
    """An engine on a replica."""

    def __init__(self, engine: Engine, replica: Replica) -> None:
        self.peak_bytes = 0
        self._engine = engine
        self._replica = replica

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        # Even without requests: other ranks may have some, and all ranks must take part in filling.
        with self._replica.filled():
            yield from self._engine.generate(requests, sampling, policy_version)
        # torch does not count the replica's memory.
        self.peak_bytes = self._engine.peak_bytes + self._replica.num_bytes if self._engine.peak_bytes else 0
