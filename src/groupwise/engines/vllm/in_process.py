"""vLLM inside the trainer's process. Weights are passed in memory."""

from __future__ import annotations

import importlib.util
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from groupwise.config import EngineConfig
from groupwise.engines.vllm.vllm_engine import Draw, Drawn, VllmError
from groupwise.models.export import save_folder
from groupwise.models.policy import Policy

DEFAULT_MEMORY_SHARE = 0.4


class InProcess:
    def __init__(self, config: EngineConfig, policy: Policy, logprobs_mode: str) -> None:
        memory_share = config.memory_share or DEFAULT_MEMORY_SHARE
        self.context_tokens = policy.context_tokens
        self._vllm = _import_vllm()
        self._numbers = itertools.count()
        with tempfile.TemporaryDirectory(prefix="groupwise-vllm-") as folder:
            exported = Path(folder) / "model"
            save_folder(policy, exported)
            try:
                self._llm = self._vllm.LLM(
                    model=str(exported),
                    dtype=str(policy.model.dtype).removeprefix("torch."),
                    max_model_len=policy.context_tokens,
                    max_num_seqs=config.max_batch_rollouts,
                    gpu_memory_utilization=memory_share,
                    # Computes a group's prompt once.
                    enable_prefix_caching=True,
                    logprobs_mode=logprobs_mode,
                    generation_config="vllm",
                    # Compilation for a CPU takes longer than most runs on it.
                    enforce_eager=policy.device.type == "cpu",
                    disable_log_stats=True,
                )
            except (ValueError, RuntimeError, OSError) as error:
                raise VllmError(
                    f"vLLM does not start with this model: {error}\nengine.memory_share = {memory_share} is its "
                    'share of the memory and may be too large or too small; engine.name = "native" needs no vLLM'
                ) from error

    def publish(self, tensors: Mapping[str, Tensor]) -> None:
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(tensors.items())})
        if not self._llm.reset_prefix_cache():
            raise VllmError("vLLM did not reset its prefix cache, which older weights computed")

    def draw(self, draws: Sequence[Draw], settings: Mapping[str, Any]) -> Iterator[tuple[int, Drawn]]:
        engine = self._llm.llm_engine
        running: dict[str, int] = {}
        try:
            for index, draw in enumerate(draws):
                name = str(next(self._numbers))
                running[name] = index
                (prompt,) = engine.renderer.render_cmpl([{"prompt_token_ids": list(draw.prompt_ids)}])
                engine.add_request(name, prompt, self._params(draw, settings))
            while running:
                if not engine.has_unfinished_requests():
                    raise VllmError(f"vLLM lost {len(running)} of {len(draws)} completions; see its log")
                for output in engine.step():
                    if output.finished:
                        yield running.pop(output.request_id), _drawn(output)
        finally:
            if running:
                engine.abort_request(list(running))

    def _params(self, draw: Draw, settings: Mapping[str, Any]) -> Any:
        final_only = self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        return self._vllm.SamplingParams(**settings, seed=draw.seed, output_kind=final_only)

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


def _import_vllm() -> ModuleType:
    if importlib.util.find_spec("vllm") is None:
        raise VllmError(
            'engine.name = "vllm": needs vllm, which is not installed; pip install groupwise[vllm], or set engine.url '
            "to a vLLM server"
        )
    # vLLM in its own process could not receive tensors. It reads these variables when it is imported or started.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
    except ImportError as error:
        raise VllmError(f'engine.name = "vllm": vllm is installed but cannot be imported: {error}') from error
    return vllm


def _drawn(output: Any) -> Drawn:
    (completion,) = output.outputs
    tokens = tuple(completion.token_ids)
    pairs = zip(tokens, completion.logprobs or (), strict=False)
    return Drawn(
        tokens, tuple(float(logprobs[token].logprob) for token, logprobs in pairs), str(completion.finish_reason)
    )
