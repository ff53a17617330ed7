"""The reference engine: batched sampling with the model's own forward and cache. Slow and simple: the oracle.

    prompts ──prefill once per prompt──▶ cache ──copy per rollout──▶ decode a token per row, drop rows that stopped,
                                                                     until no row is left

Prompts of different lengths are padded on the left in the architectures of `FAMILIES`. In any other, where padding may
leak into recurrent states or shift positions, only prompts of equal length share a batch. Such a model is tried once:
where its cache does not give what a pass over the whole sequence gives, each token is sampled from such a pass.

Contract: a rollout depends on its prompt, its seed and the weights, not on its neighbours (except for rounding in
matrix products of different sizes). Not implemented: continuous batching, paged cache, graphs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from groupwise.engines.engine import Assembly, Request
from groupwise.engines.sampling import draw_tokens
from groupwise.models.families import UNKNOWN, family_of
from groupwise.models.trial import Unusable, attempt, check_causal, largest_rounding, logit_gap, not_a_decoder
from groupwise.types import Finish, Group, SamplingParams


@dataclass(slots=True)
class _Row:
    """A rollout that is being sampled."""

    request: int
    number: int
    seed: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish = Finish.LENGTH


@dataclass(slots=True)
class ReferenceEngine:
    model: Any
    tokenizer: Any
    stop_token_ids: Sequence[int]
    max_batch_rollouts: int
    peak_bytes: int = 0
    _is_cache_right: bool | None = field(default=None, init=False)  # None: it is not tried

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        assembly = Assembly(requests, sampling, self.tokenizer, policy_version)
        yield from assembly.undrawn()
        rows = [_Row(index, number, requests[index].seeds[number]) for index, number in assembly.wanted]
        for part in self._alike(requests, rows):
            for start in range(0, len(part), self.max_batch_rollouts):
                batch = part[start : start + self.max_batch_rollouts]
                self._decode(assembly, batch)
                for row in batch:
                    yield from assembly.add(row.request, row.number, row.token_ids, row.logprobs, row.finish)

    def _alike(self, requests: Sequence[Request], rows: list[_Row]) -> list[list[_Row]]:
        """Return the rows that may share a batch."""
        if family_of(self.model) is not UNKNOWN:
            return [rows]
        if self._is_cache_right is None:
            self._is_cache_right = _has_right_cache(self.model)
        by_length: dict[int, list[_Row]] = {}
        for row in rows:
            by_length.setdefault(len(requests[row.request].prompt.token_ids), []).append(row)
        return list(by_length.values())

    def _decode(self, assembly: Assembly, rows: list[_Row]) -> None:
        state = self._prefill(assembly.requests, rows)
        active = list(rows)
        for position in range(assembly.sampling.max_new_tokens):
            seeds = torch.tensor([row.seed for row in active], device=self.model.device)
            tokens, logprobs = draw_tokens(state.logits, assembly.sampling, seeds, torch.full_like(seeds, position))
            still_active = []
            for index, (row, token, logprob) in enumerate(zip(active, tokens.tolist(), logprobs.tolist(), strict=True)):
                row.token_ids.append(token)
                row.logprobs.append(logprob)
                if token in self.stop_token_ids or assembly.has_stop(row.token_ids):
                    row.finish = Finish.STOP
                else:
                    still_active.append(index)
            if not still_active or position + 1 == assembly.sampling.max_new_tokens:
                return
            if len(still_active) < len(active):
                active = [active[index] for index in still_active]
                kept = torch.tensor(still_active, device=self.model.device)
                state.keep(kept)
                tokens = tokens[kept]
            state.advance(tokens)

    def _prefill(self, requests: Sequence[Request], rows: list[_Row]) -> _DecodeState:
        """Run each prompt through the model once and copy its cache for each of its rollouts."""
        device = self.model.device
        wanted = sorted({row.request for row in rows})
        prompts = [requests[index].prompt.token_ids for index in wanted]
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for index, prompt in enumerate(prompts):
            ids[index, width - len(prompt) :] = torch.tensor(prompt)
            mask[index, width - len(prompt) :] = 1
        padding = mask.to(device) if self._is_cache_right is None else None
        state = _DecodeState(self.model, ids.to(device), padding, self._is_cache_right is not False)
        state.run(state.ids)
        state.keep(torch.tensor([wanted.index(row.request) for row in rows], device=device))
        return state


@dataclass(slots=True)
class _DecodeState:
    model: Any
    ids: Tensor
    mask: Tensor | None
    """[B, length so far] like the ids. None: there is no padding, and the model finds the positions by itself."""
    is_cached: bool
    """False: each token is sampled from a forward pass over the whole sequence."""
    cache: dict[str, Any] = field(default_factory=dict)
    """The model's cache under the name that its forward gives it: `past_key_values` or `cache_params`."""
    logits: Tensor = field(default_factory=lambda: torch.zeros(0))
    """[B, V] for the next token."""

    def keep(self, rows: Tensor) -> None:
        for cache in self.cache.values():
            cache.reorder_cache(rows)  # unlike `batch_select_indices`, every kind of layer has it
        self.ids, self.logits = self.ids[rows], self.logits[rows]
        self.mask = None if self.mask is None else self.mask[rows]

    def advance(self, tokens: Tensor) -> None:
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        if self.mask is not None:
            self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], dim=1)
        self.run(tokens[:, None] if self.is_cached else self.ids)

    def run(self, ids: Tensor) -> None:
        """Run the model over what its cache does not contain yet."""
        inputs: dict[str, Any] = {"input_ids": ids, "use_cache": self.is_cached, **self.cache}
        if self.mask is not None:
            positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
            inputs |= {"attention_mask": self.mask, "position_ids": positions[:, -ids.shape[1] :]}
        if self.mask is not None or "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            inputs["logits_to_keep"] = 1
        output = self.model(**inputs)
        if self.is_cached:
            self.cache = {name: value for name, value in output.items() if isinstance(value, Cache)}
        self.logits = output.logits[:, -1]


def _has_right_cache(model: Any) -> bool:
    """Try whether rows of a model's cache can be moved and decoded with. Refuse a model that cannot be sampled from."""
    ids = torch.arange(1, 17, device=model.device).view(2, 8)
    check_causal(model, ids)
    try:
        return attempt(_follows_cache, model, ids)
    except Unusable as error:
        raise not_a_decoder(model, error) from error


def _follows_cache(model: Any, ids: Tensor) -> bool:
    whole = model(input_ids=ids, use_cache=False).logits
    state = _DecodeState(model, ids[:, :4], None, is_cached=True)
    state.run(state.ids)
    # Caches of a single model's own kind hold more than `reorder_cache` moves (MiniMax, DeepSeek-V4).
    parts = [part for cache in state.cache.values() for part in (cache, *getattr(cache, "layers", ()))]
    if not parts or any(type(part).__module__ != Cache.__module__ for part in parts):
        return False
    gaps = [logit_gap(state.logits, whole[:, 3])]
    swapped = torch.tensor([1, 0], device=model.device)
    state.keep(swapped)
    for column in range(4, 8):
        state.advance(ids[swapped, column])
        gaps.append(logit_gap(state.logits, whole[swapped, column]))
    return max(gaps) <= largest_rounding(model)
