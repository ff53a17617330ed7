"""The reference engine: batched sampling with the model's own forward and cache. Slow and simple: the oracle.

    prompts, left-padded ──prefill once per prompt──▶ cache ──copy per rollout──▶ decode a token per row, drop rows
                                                                                  that stopped, until no row is left

Contract: a rollout depends on its prompt, its seed and the weights, not on its neighbours (except for rounding in
matrix products of different sizes). Not implemented: continuous batching, paged cache, graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groupwise.engines.engine import Assembly, Request
from groupwise.engines.sampling import draw_tokens
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

    @torch.inference_mode()
    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        assembly = Assembly(requests, sampling, self.tokenizer, policy_version)
        yield from assembly.undrawn()
        rows = [_Row(index, number, requests[index].seeds[number]) for index, number in assembly.wanted]
        for start in range(0, len(rows), self.max_batch_rollouts):
            batch = rows[start : start + self.max_batch_rollouts]
            self._decode(assembly, batch)
            for row in batch:
                yield from assembly.add(row.request, row.number, row.token_ids, row.logprobs, row.finish)

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
            state.advance(self.model, tokens)

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
        ids, mask = ids.to(device), mask.to(device)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        output = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        state = _DecodeState(output.past_key_values, mask, positions[:, -1:], output.logits[:, -1])
        state.keep(torch.tensor([wanted.index(row.request) for row in rows], device=device))
        return state


@dataclass(slots=True)
class _DecodeState:
    cache: Any
    mask: Tensor
    """[B, length so far]"""
    positions: Tensor
    """[B, 1] position of the last input token."""
    logits: Tensor
    """[B, V] for the next token."""

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask, self.positions, self.logits = self.mask[rows], self.positions[rows], self.logits[rows]

    def advance(self, model: Any, tokens: Tensor) -> None:
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], dim=1)
        self.positions = self.positions + 1
        output = model(
            input_ids=tokens[:, None],
            attention_mask=self.mask,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = output.logits[:, -1]
