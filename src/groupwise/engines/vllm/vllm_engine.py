"""The vLLM engine. vLLM keeps its own copy of the weights, which are published to it when they change.

    weights changed? ──▶ publish ──▶ draw: one vLLM request per rollout ──▶ check, cut at a stop string ──▶ groups

Contract: that of `engines.engine.Engine`. Greedy completions equal those of the reference engine up to rounding; others
are sampled with vLLM's own random numbers, from the rollout's seed. vLLM computes slightly different logprobs than the
trainer, so recipes correct for that by default (`loss.importance`). Resume is not exact bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from groupwise.engines.engine import Assembly, Request
from groupwise.models.lora import merged_state_dict
from groupwise.types import Finish, Group, SamplingParams

TESTED_VERSION = "0.32"
_FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH}
_LOWEST_LOGPROB = -9000.0
"""vLLM's server writes -9999 for a missing logprob."""
_ROUNDING = 1e-3


class VllmError(RuntimeError):
    """vLLM cannot be used or failed. The message says what to change."""


def logprobs_mode(is_truncated: bool) -> str:
    """Return vLLM's mode whose logprobs are of the whole vocabulary at the sampling temperature.

    Raw logprobs are before temperature and truncation, so recipes with truncated sampling are at temperature 1.
    """
    return "raw_logprobs" if is_truncated else "processed_logprobs"


@dataclass(frozen=True, slots=True)
class Draw:
    """One requested completion."""

    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """One completion from vLLM, not yet checked."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    """vLLM's finish reason: stop, length, abort, error, repetition."""


class Backend(Protocol):
    """vLLM, wherever it runs."""

    @property
    def context_tokens(self) -> int:
        """Maximum length of prompt and completion together."""
        ...

    def publish(self, tensors: Mapping[str, Tensor]) -> None:
        """Use these weights from now on, and drop caches that older weights computed."""
        ...

    def draw(self, draws: Sequence[Draw], settings: Mapping[str, Any]) -> Iterator[tuple[int, Drawn]]:
        """Yield (index of the draw, its completion) as they finish. `settings` are vLLM's sampling parameters.

        Closing the iterator early cancels what is still running.
        """
        ...

    def close(self) -> None: ...


class PublishedWeights:
    """The trainer's weights, for vLLM's copy of them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def stamp(self) -> object:
        """Return a value that changes whenever any weight was written, in whatever way.

        torch counts the writes to each tensor, but not those of its fused optimizers or through `.data`. So the bits of
        the trained weights are summed as well, as integers, which loses nothing to rounding.
        """
        held = itertools.chain(self._model.parameters(), self._model.buffers())
        writes = tuple((tensor.data_ptr(), tensor._version) for tensor in held)
        sums = [_bits(weight).sum(dtype=torch.int64) for weight in self._model.parameters() if weight.requires_grad]
        return writes, tuple(torch.stack(sums).tolist()) if sums else ()

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the weights under the names of a Hugging Face folder, with adapters merged. They may share its memory.

        A tied weight appears under each of its names, because vLLM may have a packed copy for each.
        """
        named = revert_weight_conversion(self._model, merged_state_dict(self._model))
        return {name: tensor.detach() for name, tensor in named.items()}


def _bits(weight: Tensor) -> Tensor:
    return weight.detach().view(torch.int32 if weight.element_size() == 4 else torch.int16)


@dataclass(slots=True)
class VllmEngine:
    backend: Backend
    weights: PublishedWeights
    tokenizer: Any
    stop_token_ids: Sequence[int]
    peak_bytes: int = 0
    _published: object = None

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        assembly = Assembly(requests, sampling, self.tokenizer, policy_version)
        yield from assembly.undrawn()
        if not assembly.wanted:
            return
        self._refuse_too_long(requests, sampling.max_new_tokens)
        self._publish_if_changed()
        draws = [
            Draw(requests[index].prompt.token_ids, requests[index].seeds[number]) for index, number in assembly.wanted
        ]
        for place, drawn in self.backend.draw(draws, self._settings(sampling)):
            tokens, logprobs, finish = self._checked(drawn, assembly)
            yield from assembly.add(*assembly.wanted[place], tokens, logprobs, finish)

    def close(self) -> None:
        self.backend.close()

    def _publish_if_changed(self) -> None:
        """Publish the weights if they changed. They are checked before each use, so callers need not report changes."""
        stamp = self.weights.stamp()
        if stamp != self._published:
            self._published = None  # after a failure half way, vLLM's weights are unknown
            self.backend.publish(self.weights.tensors())
            self._published = stamp

    def _settings(self, sampling: SamplingParams) -> dict[str, Any]:
        return {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "stop": list(sampling.stop_strings),
            "stop_token_ids": list(self.stop_token_ids),
            # vLLM's own end-of-text tokens may differ from ours.
            "ignore_eos": True,
            # Only that of the sampled token.
            "logprobs": 0,
            "detokenize": bool(sampling.stop_strings),
        }

    def _checked(self, drawn: Drawn, assembly: Assembly) -> tuple[Sequence[int], Sequence[float], Finish]:
        """Return (tokens, logprobs, finish) of a completion, cut after the first stop string."""
        tokens, logprobs, most = drawn.token_ids, drawn.logprobs, assembly.sampling.max_new_tokens
        if drawn.finish not in _FINISHES:
            raise VllmError(f"vLLM ended a completion with {drawn.finish!r} after {len(tokens)} tokens; see its log")
        finish = _FINISHES[drawn.finish]
        if not tokens or len(tokens) != len(logprobs) or len(tokens) > most:
            raise VllmError(
                f"vLLM gave {len(tokens)} tokens and {len(logprobs)} logprobs instead of 1 to {most} of each"
            )
        if finish is Finish.LENGTH and len(tokens) < most:
            raise VllmError(
                f"vLLM cut a completion at {len(tokens)} tokens, but sampling.max_new_tokens = {most}; "
                "start it with a larger --max-model-len"
            )
        for token, logprob in zip(tokens, logprobs, strict=True):
            if not _LOWEST_LOGPROB < logprob < _ROUNDING:  # also catches NaN
                raise VllmError(f"vLLM gave token {token} the logprob {logprob}, which is not a logprob")
        # vLLM also stops at stop strings, but decodes differently and may notice one a token late.
        cut = assembly.first_stop(tokens)
        if cut is not None:
            tokens, logprobs, finish = tokens[:cut], logprobs[:cut], Finish.STOP
        return tokens, [min(logprob, 0.0) for logprob in logprobs], finish

    def _refuse_too_long(self, requests: Sequence[Request], max_new_tokens: int) -> None:
        longest = max(len(request.prompt.token_ids) for request in requests if request.seeds)
        limit = self.backend.context_tokens
        if longest + max_new_tokens > limit:
            raise VllmError(
                f"a prompt of {longest} tokens and {max_new_tokens} new ones exceed the {limit} that vLLM was "
                "started with; lower sampling.max_new_tokens, or start the server with a larger --max-model-len"
            )
