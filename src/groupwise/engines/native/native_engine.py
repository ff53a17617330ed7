"""The native engine: continuous batching with the trainer's own modules.

    requests ──▶ wait ──▶ enter: prefill the prompt once per group, copy its partial block ──▶ decode a few steps ──┐
                   ▲                                                                                              │
                   └──────── slots and blocks are free again ◀── leave: complete groups are yielded ◀──────────────┘

On a GPU the host reads the result of a block of steps while the next block runs, so neither waits for the other.

Contract: that of `engines.engine.Engine`, and the same tokens as the reference engine where arithmetic is exact enough
(fp32). A model of no known family is tried once, on a few short rollouts, and refused if their logprobs are not those
of a whole forward pass. Not implemented: speculative decoding, several GPUs for one model, preemption of rollouts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from groupwise.algo.logprobs import token_logprobs
from groupwise.config import ConfigError
from groupwise.engines.engine import Assembly, Request
from groupwise.engines.native.decode import DecodeProgress, Look, Piece, Runner
from groupwise.engines.native.schedule import (
    BLOCK_TOKENS,
    CACHE_SHARE,
    PREFILL_TOKENS,
    BlockPool,
    Decoding,
    Prefix,
    Schedule,
    Scheduled,
    blocks_for,
)
from groupwise.engines.native.states import Layout, find_layout
from groupwise.models.agreement import gap_between, rounding_gap
from groupwise.models.families import UNKNOWN, family_of, not_sampled
from groupwise.models.trial import Unusable, attempt
from groupwise.types import Finish, Group, Problem, Prompt, SamplingParams

TRIAL_PROMPTS = (19, 5, 1)
"""Tokens of the prompts in a trial of a model: more than a block, less, and nothing to prefill."""
TRIAL_TOKENS, TRIAL_SLOTS = 14, 4


class CacheTooSmall(ValueError):
    """The cache cannot hold one group. The message has the numbers."""


class NativeEngine:
    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        stop_token_ids: Sequence[int],
        max_batch_rollouts: int,
        *,
        cache_tokens: int = 0,
        prefill_tokens: int = PREFILL_TOKENS,
    ) -> None:
        self.peak_bytes = 0
        self._layout: Layout | None = None
        self._model = model
        self._tokenizer = tokenizer
        self._stops = torch.tensor(sorted(stop_token_ids), device=model.device, dtype=torch.int64)
        self._max_rollouts = max_batch_rollouts
        self._cache_tokens = cache_tokens
        self._prefill_tokens = prefill_tokens
        self._runner: Runner | None = None
        self._is_cuda = model.device.type == "cuda"

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        assembly = Assembly(requests, sampling, self._tokenizer, policy_version)
        yield from assembly.undrawn()
        if not assembly.wanted:
            return
        yield from self._sample(assembly, self.find_layout())

    def find_layout(self) -> Layout:
        """Return the model's layout, found once. Refuse a model that the engine cannot sample from."""
        if self._layout is not None:
            return self._layout
        try:
            reason = not_sampled(self._model.config.get_text_config())
            if reason:
                raise Unusable(reason)
            layout = find_layout(self._model)
            if family_of(self._model) is UNKNOWN:
                attempt(self._try, layout)
        except Unusable as error:
            raise ConfigError(
                f"model.path = {self._tokenizer.name_or_path!r}: the native engine cannot sample from "
                f'{type(self._model).__name__}: {error}; set engine.name = "reference"'
            ) from error
        self._layout = layout
        return layout

    @torch.inference_mode()
    def _try(self, layout: Layout) -> None:
        """Sample a few short rollouts. Raise if their logprobs are not those of a pass over each sequence alone."""
        model = self._model
        trial = NativeEngine(model, self._tokenizer, self._stops.tolist(), TRIAL_SLOTS)
        num_ids = model.get_input_embeddings().weight.shape[0]
        requests = []
        for length in TRIAL_PROMPTS:
            ids = torch.randint(num_ids, (length,), generator=torch.Generator().manual_seed(length)).tolist()
            requests.append(
                Request(Prompt(Problem(f"trial-{length}", (), ""), tuple(ids)), (2 * length, 2 * length + 1))
            )
        ours, theirs = [], []
        assembly = Assembly(requests, SamplingParams(max_new_tokens=TRIAL_TOKENS), self._tokenizer, 0)
        for _, group in trial._sample(assembly, layout):
            for rollout in group.rollouts:
                count = len(rollout.token_ids)
                whole = torch.tensor([[*group.prompt.token_ids, *rollout.token_ids]], device=model.device)
                logits = model(input_ids=whole, use_cache=False).logits[0, -count - 1 : -1]
                ours.append(torch.tensor(rollout.rollout_logprobs))
                theirs.append(token_logprobs(logits, whole[0, -count:], 1.0).cpu())
        gap, bound = gap_between(torch.cat(ours), torch.cat(theirs)), rounding_gap(model.dtype, model.device)
        if not gap.is_within(bound):
            raise Unusable(f"its logprobs would differ from a whole forward pass by {gap}")

    def _sample(self, assembly: Assembly, layout: Layout) -> Iterator[tuple[int, Group]]:
        runner = self._runner_for(
            layout, [request for request in assembly.requests if request.seeds], assembly.sampling
        )
        try:
            yield from self._run(runner, assembly)
        finally:
            # The cache is allocated during sampling only, not while the policy trains.
            self.peak_bytes = runner.peak_bytes()
            runner.sleep()

    def _run(self, runner: Runner, assembly: Assembly) -> Iterator[tuple[int, Group]]:
        sampling = assembly.sampling
        schedule = Schedule(
            assembly.requests,
            pool=BlockPool(runner.num_blocks),
            num_slots=runner.slots.num_slots,
            max_new_tokens=sampling.max_new_tokens,
        )
        looks: deque[tuple[Look, dict[int, Decoding]]] = deque()
        while not schedule.is_finished:
            if schedule.has_room(runner.entry_share):
                self._let_in(runner, schedule.enter(), sampling)
            going = schedule.going()
            if going:
                left = sampling.max_new_tokens - min(rollout.num_steps for rollout in going)
                num_steps = min(runner.steps_per_look, left)
                runner.decode([rollout.slot for rollout in going], num_steps, sampling, self._stops)
                for rollout in going:
                    rollout.num_steps += num_steps
                # With the current slots: when the look is read, other rollouts may have entered.
                looks.append((runner.look(), dict(schedule.active)))
            if going and len(looks) <= runner.looks_ahead:
                continue
            look, seen = looks.popleft()
            present = {slot: rollout for slot, rollout in seen.items() if schedule.active.get(slot) is rollout}
            finished = self._find_finished(look.read(), present, runner, assembly)
            tokens, logprobs = runner.drawn(list(finished)) if finished else ([], [])
            for place, (slot, (count, finish)) in enumerate(finished.items()):
                schedule.leave(slot)
                drawn, rollout = (tokens[place][:count], logprobs[place][:count]), present[slot]
                yield from assembly.add(rollout.request, rollout.number, *drawn, finish)

    def _let_in(self, runner: Runner, entry: Scheduled, sampling: SamplingParams) -> None:
        if not entry.rollouts:
            return
        if runner.states:
            for prefix in entry.prefixes:
                prefix.states = runner.prefill_states(Piece(prefix.token_ids, 0, prefix.blocks))
        else:
            self._prefill(runner, entry.prefixes)
        runner.copy_blocks(entry.copies)
        for rollout, prefix in zip(entry.rollouts, entry.continued, strict=True):
            runner.states.put(rollout.slot, prefix.states)
        for prefix in entry.continued:
            prefix.states = prefix.states if prefix.num_waiting else None
        runner.slots.put(entry.rollouts, sampling.max_new_tokens)

    def _prefill(self, runner: Runner, prefixes: Sequence[Prefix]) -> None:
        pieces: list[Piece] = []
        room = runner.prefill_tokens
        for prefix in prefixes:
            position = 0
            while position < len(prefix.token_ids):
                count = min(room, len(prefix.token_ids) - position)
                pieces.append(Piece(prefix.token_ids[position : position + count], position, prefix.blocks))
                position, room = position + count, room - count
                if room == 0:
                    runner.prefill(pieces)
                    pieces, room = [], runner.prefill_tokens
        if pieces:
            runner.prefill(pieces)

    def _find_finished(
        self, progress: DecodeProgress, present: Mapping[int, Decoding], runner: Runner, assembly: Assembly
    ) -> dict[int, tuple[int, Finish]]:
        """Return (number of tokens, finish) by slot of the finished rollouts among those in `present`."""
        finished = {
            slot: (progress.counts[slot], Finish.STOP if progress.is_done[slot] == 1 else Finish.LENGTH)
            for slot in present
            if progress.is_done[slot]
        }
        if assembly.sampling.stop_strings:
            tokens, _ = runner.drawn(list(present))
            for (slot, rollout), row in zip(present.items(), tokens, strict=True):
                drawn = row[: progress.counts[slot]]
                cut = assembly.first_stop(drawn, rollout.num_checked)
                rollout.num_checked = len(drawn)
                if cut is not None:
                    finished[slot] = cut, Finish.STOP
        return finished

    def _runner_for(self, layout: Layout, requests: Sequence[Request], sampling: SamplingParams) -> Runner:
        """Return the existing runner if it is large enough and its memory is available, else a new one."""
        new_tokens = sampling.max_new_tokens
        row_tokens = max(len(request.prompt.token_ids) for request in requests) - 1 + new_tokens
        num_slots = min(self._max_rollouts, sum(len(request.seeds) for request in requests))
        runner = self._runner
        if runner is not None and runner.fits(num_slots, row_tokens, new_tokens) and runner.wake():
            self._refuse_too_small(requests, runner.num_blocks, num_slots, new_tokens)
            return runner
        self._runner = runner = None
        row_tokens = -(-row_tokens // 64) * 64
        # One extra row: a prompt whose rollouts enter one after the other keeps its own blocks.
        wanted = self._cache_tokens or (num_slots + 1) * row_tokens
        num_blocks = max(1, min(blocks_for(wanted), self._affordable_blocks(layout, num_slots)))
        self._refuse_too_small(requests, num_blocks, num_slots, new_tokens)
        self._runner = self._make_runner(
            layout,
            num_blocks=num_blocks,
            num_slots=num_slots,
            row_tokens=row_tokens,
            max_new_tokens=new_tokens,
            prefill_tokens=self._prefill_tokens,
        )
        return self._runner

    def _make_runner(self, layout: Layout, **sizes: int) -> Runner:
        if not self._is_cuda:
            return Runner(self._model, layout, **sizes)
        from groupwise.engines.native.cuda import CudaRunner

        return CudaRunner(self._model, layout, **sizes)

    def _affordable_blocks(self, layout: Layout, num_slots: int) -> int:
        block_bytes = layout.block_bytes(self._model.dtype)
        if not self._is_cuda or not block_bytes:
            return 2**31
        torch.cuda.empty_cache()
        device = self._model.device
        free, total = torch.cuda.mem_get_info(device)
        # A process may be limited to a share of the GPU (`train --memory-gib`), which includes what torch has reserved.
        allowed = total * torch.cuda.get_per_process_memory_fraction(device) - torch.cuda.memory_reserved(device)
        states = (num_slots + 1) * layout.slot_bytes()
        return max(0, int(min(free, allowed) * CACHE_SHARE) - states) // block_bytes

    def _refuse_too_small(self, requests: Sequence[Request], num_blocks: int, num_slots: int, new_tokens: int) -> None:
        for request in requests:
            prefix, size = len(request.prompt.token_ids) - 1, min(len(request.seeds), num_slots)
            own = blocks_for(prefix + new_tokens) - prefix // BLOCK_TOKENS
            needed = blocks_for(prefix) + size * own
            if needed > num_blocks:
                raise CacheTooSmall(
                    f"the cache of {num_blocks} blocks × {BLOCK_TOKENS} tokens cannot hold one group: a prompt of "
                    f"{prefix + 1} tokens and {size} rollouts of up to {new_tokens} need {needed} blocks; lower "
                    "sampling.max_new_tokens or rollouts_per_problem, or raise engine.cache_tokens"
                )
