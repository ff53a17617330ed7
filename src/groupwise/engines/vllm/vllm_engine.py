"""The vLLM engine. vLLM keeps its own copy of the weights, which are published to it when they change.

    weights changed? ──▶ publish ──▶ draw: one vLLM request per rollout ──▶ check, cut at a stop string ──▶ groups

Contract: that of `engines.engine.Engine`. Greedy completions equal those of the reference engine up to rounding; others
are sampled with vLLM's own random numbers, from the rollout's seed. vLLM computes slightly different logprobs than the
trainer, so recipes correct for that by default (`loss.importance`). Resume is not exact bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from groupwise.engines.completions import Assembly, completion_text, first_stop, undrawn_groups
from groupwise.engines.engine import Request
from groupwise.engines.vllm.backend import Backend, Draw, Drawn, VllmError, Weights
from groupwise.types import Finish, Group, Rollout, SamplingParams

_FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH}
_LOWEST_LOGPROB = -9000.0
"""vLLM's server writes -9999 for a missing logprob."""
_ROUNDING = 1e-3


class VllmEngine:
    def __init__(self, backend: Backend, weights: Weights, tokenizer: Any, stop_token_ids: Sequence[int]) -> None:
        self.peak_bytes = 0
        self._backend = backend
        self._weights = weights
        self._tokenizer = tokenizer
        self._stop_token_ids = tuple(stop_token_ids)
        self._published: object = None

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        yield from undrawn_groups(requests, sampling, policy_version)
        if sampling.max_new_tokens == 0:
            return
        places = [(index, number) for index, request in enumerate(requests) for number in range(len(request.seeds))]
        if not places:
            return
        self._refuse_too_long(requests, sampling.max_new_tokens)
        self._publish_if_changed()
        draws = [Draw(requests[index].prompt.token_ids, requests[index].seeds[number]) for index, number in places]
        assembly = Assembly(requests)
        for place, drawn in self._backend.draw(draws, self._settings(sampling)):
            yield from assembly.add(*places[place], self._rollout(drawn, sampling, policy_version))

    def close(self) -> None:
        self._backend.close()

    def _publish_if_changed(self) -> None:
        """Publish the weights if they changed.

        The weights are checked before each use, so callers need not report changes.
        """
        stamp = self._weights.stamp()
        if stamp != self._published:
            self._published = None  # after a failure half way, vLLM's weights are unknown
            self._backend.publish(self._weights.tensors())
            self._published = stamp

    def _settings(self, sampling: SamplingParams) -> dict[str, Any]:
        return {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "stop": list(sampling.stop_strings),
            "stop_token_ids": list(self._stop_token_ids),
            # vLLM's own end-of-text tokens may differ from ours.
            "ignore_eos": True,
            # Only that of the sampled token.
            "logprobs": 0,
            "detokenize": bool(sampling.stop_strings),
        }

    def _rollout(self, drawn: Drawn, sampling: SamplingParams, policy_version: int) -> Rollout:
        tokens, logprobs = drawn.token_ids, drawn.logprobs
        if drawn.finish not in _FINISHES:
            raise VllmError(f"vLLM ended a completion with {drawn.finish!r} after {len(tokens)} tokens; see its log")
        finish = _FINISHES[drawn.finish]
        if not tokens or len(tokens) != len(logprobs) or len(tokens) > sampling.max_new_tokens:
            raise VllmError(
                f"vLLM gave {len(tokens)} tokens and {len(logprobs)} logprobs instead of 1 to "
                f"{sampling.max_new_tokens} of each"
            )
        if finish is Finish.LENGTH and len(tokens) < sampling.max_new_tokens:
            raise VllmError(
                f"vLLM cut a completion at {len(tokens)} tokens, but sampling.max_new_tokens = "
                f"{sampling.max_new_tokens}; start it with a larger --max-model-len"
            )
        for token, logprob in zip(tokens, logprobs, strict=True):
            if not _LOWEST_LOGPROB < logprob < _ROUNDING:  # also catches NaN
                raise VllmError(f"vLLM gave token {token} the logprob {logprob}, which is not a logprob")
        # vLLM also stops at stop strings, but decodes differently and may notice one a token late.
        cut = first_stop(self._tokenizer, tokens, sampling.stop_strings)
        if cut is not None:
            tokens, logprobs, finish = tokens[:cut], logprobs[:cut], Finish.STOP
        text = completion_text(self._tokenizer, tokens)
        return Rollout(tokens, tuple(min(logprob, 0.0) for logprob in logprobs), text, finish, policy_version)

    def _refuse_too_long(self, requests: Sequence[Request], max_new_tokens: int) -> None:
        longest = max(len(request.prompt.token_ids) for request in requests if request.seeds)
        limit = self._backend.context_tokens
        if longest + max_new_tokens > limit:
            raise VllmError(
                f"a prompt of {longest} tokens and {max_new_tokens} new ones exceed the {limit} that vLLM was "
                "started with; lower sampling.max_new_tokens, or start the server with a larger --max-model-len"
            )
