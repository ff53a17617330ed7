"""The native engine: continuous batching over the trainer's own modules.

    requests ──▶ wait ──▶ enter: prefill the prompt once per group, copy its partial block ──▶ decode a few steps ──┐
                   ▲                                                                                              │
                   └──────── rows and blocks are free again ◀── leave: groups that are complete are handed out ◀──┘

Contract: as of `engines.engine.Engine`; and the same tokens as the reference engine where arithmetic is exact enough
(fp32). What it does not do: speculative decoding, several GPUs for one model, throwing out a rollout for another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from groupwise.engines.engine import Request
from groupwise.engines.native.blocks import BlockPool
from groupwise.engines.native.runner import Piece, Runner
from groupwise.engines.native.schedule import Decoding, Entry, Schedule, blocks_for
from groupwise.types import Finish, Group, Rollout, SamplingParams

BLOCK_TOKENS = 16
PREFILL_TOKENS = 8192
"""Prompt tokens that go through the model at once; a longer prompt goes through in pieces."""
STEPS_PER_LOOK = 8
"""Decode steps between two looks at which rollouts are done."""
MEMORY_SHARE = 0.8
"""Of the free memory, for the cache."""


class CacheTooSmall(ValueError):
    """The cache cannot hold one group; the message has the arithmetic."""


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
        self._model = model
        self._tokenizer = tokenizer
        self._stops = torch.tensor(sorted(stop_token_ids), device=model.device, dtype=torch.int64)
        self._max_rows = max_batch_rollouts
        self._cache_tokens = cache_tokens
        self._prefill_tokens = prefill_tokens
        self._runner: Runner | None = None
        self._is_cuda = model.device.type == "cuda"

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        groups: list[dict[int, Rollout]] = [{} for _ in requests]
        yield from ((i, Group(request.prompt, ())) for i, request in enumerate(requests) if not request.seeds)
        if sampling.max_new_tokens == 0:
            empty = Rollout((), (), "", Finish.LENGTH, policy_version)
            yield from ((i, Group(r.prompt, (empty,) * len(r.seeds))) for i, r in enumerate(requests) if r.seeds)
            return
        asked = [request for request in requests if request.seeds]
        if not asked:
            return
        runner = self._runner_for(asked, sampling)
        schedule = Schedule(
            requests,
            pool=BlockPool(runner.num_blocks),
            block_tokens=BLOCK_TOKENS,
            num_rows=runner.num_rows,
            max_new_tokens=sampling.max_new_tokens,
        )
        while not schedule.is_finished:
            self._let_in(runner, schedule.enter(), len(schedule.active), sampling)
            num_steps = 1 if not self._is_cuda else STEPS_PER_LOOK
            runner.decode(len(schedule.active), num_steps, sampling, self._stops)
            for request, number, rollout in self._take_out(runner, schedule, sampling, policy_version):
                group = groups[request]
                group[number] = rollout
                if len(group) == len(requests[request].seeds):
                    yield request, Group(requests[request].prompt, tuple(group[n] for n in range(len(group))))

    def _let_in(self, runner: Runner, entry: Entry, num_active: int, sampling: SamplingParams) -> None:
        if not entry.rollouts:
            return
        pieces: list[Piece] = []
        room = self._prefill_tokens
        for prefix in entry.prefixes:
            position = 0
            while position < len(prefix.token_ids):
                count = min(room, len(prefix.token_ids) - position)
                pieces.append(Piece(prefix.token_ids[position : position + count], position, prefix.blocks))
                position, room = position + count, room - count
                if room == 0:
                    runner.prefill(pieces)
                    pieces, room = [], self._prefill_tokens
        if pieces:
            runner.prefill(pieces)
        runner.copy_blocks([source for source, _ in entry.copies], [target for _, target in entry.copies])
        rollouts = entry.rollouts
        width = runner.rows.tables.shape[1]
        runner.rows.put(
            num_active - len(rollouts),
            {
                "tokens": torch.tensor([rollout.last_prompt_token for rollout in rollouts]),
                "positions": torch.tensor([rollout.position for rollout in rollouts]),
                "counts": torch.zeros(len(rollouts), dtype=torch.int64),
                "limits": torch.full((len(rollouts),), sampling.max_new_tokens),
                "seeds": torch.tensor([rollout.seed for rollout in rollouts]),
                "is_done": torch.zeros(len(rollouts), dtype=torch.int32),
                "tables": torch.tensor(
                    [rollout.blocks + [0] * (width - len(rollout.blocks)) for rollout in rollouts], dtype=torch.int32
                ),
            },
        )

    def _take_out(
        self, runner: Runner, schedule: Schedule, sampling: SamplingParams, policy_version: int
    ) -> list[tuple[int, int, Rollout]]:
        """The rollouts that are done, as (request, number, rollout). The rows of the others move together."""
        rows, num_active = runner.rows, len(schedule.active)
        is_done = rows.is_done[:num_active].tolist()
        counts = rows.counts[:num_active].tolist()
        finishes = {row: Finish.STOP if done == 1 else Finish.LENGTH for row, done in enumerate(is_done) if done}
        if sampling.stop_strings:
            tokens = rows.out_tokens[:num_active].tolist()
            for row, rollout in enumerate(schedule.active):
                cut = self._first_stop(tokens[row][: counts[row]], rollout, sampling.stop_strings)
                if cut is not None:
                    counts[row], finishes[row] = cut, Finish.STOP
        if not finishes:
            return []
        done = torch.tensor(list(finishes), device=rows.tokens.device)
        tokens, logprobs = rows.out_tokens[done].tolist(), rows.out_logprobs[done].tolist()
        found = []
        for place, (row, finish) in enumerate(finishes.items()):
            rollout, count = schedule.active[row], counts[row]
            drawn = tokens[place][:count]
            text = self._tokenizer.decode(drawn, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            made = Rollout(tuple(drawn), tuple(logprobs[place][:count]), text, finish, policy_version)
            found.append((rollout.request, rollout.number, made))
        stay = schedule.leave(set(finishes))
        rows.keep(torch.tensor(stay, device=rows.tokens.device, dtype=torch.int64))
        rows.is_done[len(stay) : num_active] = 1
        return found

    def _first_stop(self, tokens: list[int], rollout: Decoding, stop_strings: Sequence[str]) -> int | None:
        """How many tokens there are once a stop string is complete; None where there is none."""
        # A token may hold less than a character, so look back a little further than the string is long.
        width = max(map(len, stop_strings)) * 4 + 8
        while rollout.num_checked < len(tokens):
            rollout.num_checked += 1
            end = rollout.num_checked
            text = self._tokenizer.decode(tokens[max(0, end - width) : end], skip_special_tokens=True)
            if any(stop in text for stop in stop_strings):
                return end
        return None

    def _runner_for(self, requests: Sequence[Request], sampling: SamplingParams) -> Runner:
        """The runner that is there, if it is large enough; else a new one."""
        new_tokens = sampling.max_new_tokens
        row_tokens = max(len(request.prompt.token_ids) for request in requests) - 1 + new_tokens
        num_rows = min(self._max_rows, sum(len(request.seeds) for request in requests))
        runner = self._runner
        if runner is not None and runner.fits(num_rows, row_tokens, new_tokens):
            self._refuse_too_small(requests, runner.num_blocks, num_rows, new_tokens)
            return runner
        self._runner = None
        row_tokens = blocks_for(row_tokens, 64) * 64
        # One row more than there are: a prompt whose rollouts enter one after the other has blocks of its own.
        wanted = self._cache_tokens or (num_rows + 1) * row_tokens
        num_blocks = max(1, min(blocks_for(wanted, BLOCK_TOKENS), self._affordable_blocks()))
        self._refuse_too_small(requests, num_blocks, num_rows, new_tokens)
        self._runner = self._make_runner(
            num_blocks=num_blocks,
            block_tokens=BLOCK_TOKENS,
            num_rows=num_rows,
            row_tokens=row_tokens,
            max_new_tokens=new_tokens,
        )
        return self._runner

    def _make_runner(self, **sizes: int) -> Runner:
        if not self._is_cuda:
            return Runner(self._model, **sizes)
        from groupwise.engines.native.cuda import CudaRunner

        return CudaRunner(self._model, **sizes)

    def _affordable_blocks(self) -> int:
        if not self._is_cuda:
            return 2**31
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._model.device)
        return int(free * MEMORY_SHARE) // Runner.block_bytes(self._model, BLOCK_TOKENS)

    def _refuse_too_small(self, requests: Sequence[Request], num_blocks: int, num_rows: int, new_tokens: int) -> None:
        for request in requests:
            prefix, size = len(request.prompt.token_ids) - 1, min(len(request.seeds), num_rows)
            own = blocks_for(prefix + new_tokens, BLOCK_TOKENS) - prefix // BLOCK_TOKENS
            needed = blocks_for(prefix, BLOCK_TOKENS) + size * own
            if needed > num_blocks:
                raise CacheTooSmall(
                    f"the cache of {num_blocks} blocks × {BLOCK_TOKENS} tokens cannot hold one group: a prompt of "
                    f"{prefix + 1} tokens and {size} rollouts of up to {new_tokens} need {needed} blocks; lower "
                    "sampling.max_new_tokens or rollouts_per_problem, or raise engine.cache_tokens"
                )
