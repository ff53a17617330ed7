"""Runs the model for the engine: prefills prompts into the cache and decodes tokens for the active slots.

    prefill:  packed tokens of several prompts, in chunks ──▶ keys and values in the prompts' blocks
    decode:   tokens of the slots ──model, attention over the cache──▶ logits ──sample──▶ tokens, counts, is_done, out_*
    look:     what the host needs to know about the slots; on a GPU it is copied while the next steps run

This is plain torch, for the CPU and as the oracle. `cuda.py` does the same with kernels and graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from groupwise.engines.native.dense_rows import DenseRows, RowDecode, RowPrefill, gather
from groupwise.engines.native.schedule import BLOCK_TOKENS, Decoding, blocks_for
from groupwise.engines.native.states import Layout, Place, Shape, States
from groupwise.engines.sampling import draw_tokens
from groupwise.kernels.plain import MIN_ROWS, may_see, plain_attention
from groupwise.kernels.seam import AttentionForm, attending
from groupwise.models.head import finish_logits
from groupwise.models.straight import straight_layers
from groupwise.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of a prompt, to be prefilled."""

    token_ids: Sequence[int]
    position: int
    """Position of the first token in the prompt."""
    blocks: Sequence[int]
    """All blocks of the prompt, in order."""


@dataclass(frozen=True, slots=True)
class DecodeProgress:
    """State of every slot at one moment."""

    counts: list[int]
    is_done: list[int]


class Slots:
    """The state of the decoding rollouts, as tensors that a captured graph reads and writes in place.

    A rollout occupies a *slot* from when it enters until it leaves. A step runs over *rows*: `order` says which slot
    each row works on, so only `order` changes when rollouts leave or enter. One extra slot is always idle, for the
    unused rows of a graph of fixed size.
    """

    def __init__(self, num_slots: int, max_blocks: int, max_new_tokens: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self.version = 0
        """How many times rollouts were put into slots."""
        self._state = torch.zeros(6, num_slots + 1, dtype=torch.int64, device=device)
        self.tokens = self._state[0]
        """[S] newest token, whose key and value are not in the cache yet."""
        self.positions = self._state[1]
        """[S] position of that token in the sequence."""
        self.limits = self._state[2]
        """[S] maximum number of sampled tokens."""
        self.seeds = self._state[3]
        self.progress = self._state[4:]
        """[2, S] counts and is_done, which the host reads."""
        self.counts = self._state[4]
        """[S] tokens sampled so far."""
        self.is_done = self._state[5]
        """[S] 0 while decoding, 1 after a stop token, 2 at the limit."""
        self.is_done.fill_(1)
        self.tables = torch.zeros(num_slots + 1, max_blocks, dtype=torch.int32, device=device)
        """[S, blocks] cache blocks of the slot, in order."""
        self.out_tokens = torch.zeros(num_slots + 1, max_new_tokens, dtype=torch.int64, device=device)
        self.out_logprobs = torch.zeros(num_slots + 1, max_new_tokens, dtype=torch.float32, device=device)
        self.order = torch.full((num_slots,), num_slots, dtype=torch.int64, device=device)
        """[R] slot of each row."""

    def put(self, rollouts: Sequence[Decoding], limit: int) -> None:
        """Put new rollouts into their slots."""
        self.version += 1
        where, width = self._send([rollout.slot for rollout in rollouts]), self.tables.shape[1]
        rows = [(new.last_prompt_token, new.position, limit, new.seed, 0, 0) for new in rollouts]
        self._state[:, where] = self._send(list(zip(*rows, strict=True)))
        tables = [[*new.blocks, *[0] * (width - len(new.blocks))] for new in rollouts]
        self.tables[where] = self._send(tables, torch.int32)

    def arrange(self, slots: Sequence[int]) -> None:
        """Assign rows 0 … len-1 to these slots and the other rows to the idle slot."""
        idle = [self.num_slots] * (self.num_slots - len(slots))
        self.order.copy_(self._send([*slots, *idle]), non_blocking=True)

    def _send(self, values: Sequence[object], dtype: torch.dtype = torch.int64) -> Tensor:
        is_cuda = self.order.is_cuda
        # Pinned, so the copy queues behind the steps without blocking the host.
        return torch.tensor(values, dtype=dtype, pin_memory=is_cuda).to(self.order.device, non_blocking=is_cuda)


class Look:
    """The slots' progress at the moment of the request."""

    def __init__(self, progress: Tensor) -> None:
        self._progress = progress

    def read(self) -> DecodeProgress:
        counts, is_done = self._progress.tolist()
        return DecodeProgress(counts, is_done)


class Runner:
    """The cache and the slots: `num_slots` rollouts of up to `row_tokens` tokens, of which `max_new_tokens` are new."""

    looks_ahead = 0
    """Number of blocks of steps that may be in flight before the oldest is read."""
    steps_per_look = 1
    entry_share = 0.0
    """Share of slots that must be free before others enter: a small prefill takes as long as a large one."""

    def __init__(
        self,
        model: Any,
        layout: Layout,
        *,
        num_blocks: int,
        num_slots: int,
        row_tokens: int,
        max_new_tokens: int,
        prefill_tokens: int,
    ) -> None:
        self.model = model
        self.device = model.device
        self.row_tokens = row_tokens
        self.max_new_tokens = max_new_tokens
        self.prefill_tokens = prefill_tokens
        """Maximum number of tokens prefilled at once."""
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        self._takes_positions = takes_positions(self._decoder)
        self.is_straight = self.device.type == "cpu" and bool(straight_layers(model))
        """Whether each layer is one operation over a pack, whose last hidden states the head's matrix multiplies."""
        self.rows: DenseRows | None = None
        self._head_matrix: Tensor | None = None
        """In the type of the last hidden states."""
        self._config = model.config.get_text_config()
        self.num_blocks = num_blocks
        self._stores: list[Tensor] = []
        """[layers, 1 or 2, blocks, tokens of a block, heads, size]: all keys and values of one shape."""
        self.cache = self._make_cache(layout)
        """Keys and values [blocks, tokens of a block, heads, size] by number of the layer."""
        self.states = States(model, layout, num_slots, self._allocate)
        self.slots = Slots(num_slots, blocks_for(row_tokens), max_new_tokens, self.device)

    spare_blocks = 0
    """Blocks of the cache that no rollout has."""

    def _make_cache(self, layout: Layout) -> dict[int, tuple[Tensor, Tensor]]:
        cache: dict[int, tuple[Tensor, Tensor]] = {}
        blocks = (self.num_blocks + self.spare_blocks, BLOCK_TOKENS)
        for shapes in dict.fromkeys(layout.attention.values()):
            layers = [layer for layer, found in layout.attention.items() if found == shapes]
            parts = [(2, shapes[0])] if shapes[0] == shapes[1] else [(1, shape) for shape in shapes]
            stores = [self._allocate((len(layers), count, *blocks, *shape), self.model.dtype) for count, shape in parts]
            self._stores += stores
            cache |= {layer: (stores[0][place, 0], stores[-1][place, -1]) for place, layer in enumerate(layers)}
        return cache

    def _allocate(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=dtype)

    def fits(self, num_slots: int, row_tokens: int, max_new_tokens: int) -> bool:
        has_slots = num_slots <= self.slots.num_slots and row_tokens <= self.row_tokens
        return has_slots and max_new_tokens <= self.max_new_tokens

    def peak_bytes(self) -> int:
        """Return the peak GPU memory since torch's peak was reset, including the runner's own."""
        return 0

    def sleep(self) -> None:
        """Release memory until `wake`, if there is enough to be worth it. No rollout may be in flight."""
        self.rows = None

    def wake(self) -> bool:
        """Restore the memory. Return whether that was possible."""
        self._head_matrix = None  # The weights may have changed.
        return True

    # -- prefill --

    @torch.inference_mode()
    def prefill(self, pieces: Sequence[Piece]) -> None:
        """Write the keys and values of the pieces. The first token is sampled by a decode step."""
        self._prefill(pieces, {"use_cache": False})

    @torch.inference_mode()
    def prefill_states(self, prompt: Piece) -> dict[Place, Tensor]:
        """Write the keys and values of a prompt and return its states. Such a prompt goes alone and whole."""
        with self.states.beginning() as (arguments, found):
            self._prefill([prompt], arguments)
        return found

    def _prefill(self, pieces: Sequence[Piece], arguments: dict[str, Any]) -> None:
        tokens = [token for piece in pieces for token in piece.token_ids]
        positions = [piece.position + offset for piece in pieces for offset in range(len(piece.token_ids))]
        ids, positions_of_ids = torch.tensor([[tokens], [positions]], device=self.device)
        with attending(self.model, self._prefill_step(pieces)):
            self._hidden(ids, positions_of_ids, arguments)

    def _hidden(self, ids: Tensor, positions: Tensor, arguments: dict[str, Any]) -> Tensor:
        where = {"position_ids": positions} if self._takes_positions else {}
        hidden: Tensor = self._decoder(input_ids=ids, **where, **arguments).last_hidden_state
        return hidden

    def _prefill_step(self, pieces: Sequence[Piece]) -> Any:
        return RowPrefill(self, pieces) if self.is_straight else PlainPrefill(self, pieces)

    def places(self, pieces: Sequence[Piece]) -> list[int]:
        """Return the place of each packed token in the flattened blocks."""
        size = BLOCK_TOKENS
        return [
            piece.blocks[position // size] * size + position % size
            for piece in pieces
            for position in range(piece.position, piece.position + len(piece.token_ids))
        ]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks of the cache, each (from, to)."""
        if pairs:
            sources, targets = torch.tensor(pairs, device=self.device).t()
            for store in self._stores:
                store[:, :, targets] = store[:, :, sources]

    # -- decode --

    @torch.inference_mode()
    def decode(self, slots: Sequence[int], num_steps: int, sampling: SamplingParams, stops: Tensor) -> None:
        """Sample `num_steps` tokens for each of these slots, fewer for slots that finish earlier."""
        self.slots.arrange(slots)
        for _ in range(num_steps):
            self._decode_once(len(slots), sampling, stops)

    def _decode_once(self, num_rows: int, sampling: SamplingParams, stops: Tensor) -> None:
        slots, order = self.slots, self.slots.order[:num_rows]
        step = RowDecode(self, order.tolist()) if self.is_straight else PlainDecode(self, num_rows)
        with attending(self.model, step):
            logits = self.logits(num_rows)
        tokens, logprobs = draw_tokens(logits, sampling, slots.seeds[order], slots.counts[order])
        rows = torch.nonzero(slots.is_done[order] == 0)[:, 0]
        going, tokens, logprobs = order[rows], tokens[rows], logprobs[rows]
        counts = slots.counts[going]
        slots.out_tokens[going, counts] = tokens
        slots.out_logprobs[going, counts] = logprobs
        slots.counts[going] += 1
        slots.positions[going] += 1
        slots.tokens[going] = tokens
        is_last = (slots.counts[going] >= slots.limits[going]).long() * 2
        slots.is_done[going] = torch.where(torch.isin(tokens, stops), torch.ones_like(is_last), is_last)

    def logits(self, num_rows: int) -> Tensor:
        """Return [B, V] in fp32 for the next token of each of the first rows."""
        slots, order = self.slots, self.slots.order[:num_rows]
        tokens, positions = slots.tokens[order], slots.positions[order]
        if self.is_straight:  # Such layers take the rows as one pack.
            return self.head(self._hidden(tokens[None], positions[None], {"use_cache": False})[0])
        with self.states.going_on(order) as arguments:
            hidden = self._hidden(tokens[:, None], positions[:, None], arguments)
        return self.head(hidden[:, 0])

    def head(self, hidden: Tensor) -> Tensor:
        if not self.is_straight:
            return finish_logits(self._config, self._head(hidden).float())
        if self._head_matrix is None:
            self._head_matrix = self._head.weight.to(hidden.dtype)
        missing = max(0, MIN_ROWS - len(hidden))
        padded = torch.nn.functional.pad(hidden, (0, 0, 0, missing))
        return torch.nn.functional.linear(padded, self._head_matrix)[: len(hidden)]

    # -- results --

    def look(self) -> Look:
        return Look(self.slots.progress.clone())

    def drawn(self, slots: Sequence[int]) -> tuple[list[list[int]], list[list[float]]]:
        """Return the tokens that each of these slots has sampled so far, and their logprobs."""
        where = torch.tensor(slots, device=self.device, dtype=torch.int64)
        return self.slots.out_tokens[where].tolist(), self.slots.out_logprobs[where].tolist()


def takes_positions(decoder: Any) -> bool:
    """Whether a model is told the positions of its tokens. Recurrences alone have none."""
    parameters = signature(decoder.forward).parameters
    return "position_ids" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


class PlainPrefill:
    def __init__(self, runner: Runner, pieces: Sequence[Piece]) -> None:
        self._runner = runner
        self._pieces = pieces
        self._places = torch.tensor(runner.places(pieces), device=runner.device)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        keys, values = self._runner.cache[layer]
        keys.flatten(0, 1)[self._places] = key[0].transpose(0, 1)
        values.flatten(0, 1)[self._places] = value[0].transpose(0, 1)
        out = []
        parts = query.split([len(piece.token_ids) for piece in self._pieces], dim=2)
        for piece, part in zip(self._pieces, parts, strict=True):
            end = piece.position + len(piece.token_ids)
            table = torch.tensor([piece.blocks], device=query.device)
            seen_keys, seen_values = gather((keys, values), table, end)
            positions = torch.arange(piece.position, end, device=query.device)[:, None]
            seen = may_see(positions, torch.arange(end, device=query.device)[None], form.window)
            out.append(plain_attention(part, seen_keys, seen_values, seen[None, None], form))
        return torch.cat(out, dim=2).transpose(1, 2).contiguous()


class PlainDecode:
    def __init__(self, runner: Runner, num_rows: int) -> None:
        slots = runner.slots
        order = slots.order[:num_rows]
        self._cache = runner.cache
        self._is_going = slots.is_done[order] == 0
        self._positions = slots.positions[order] * self._is_going  # a finished slot may point past its last block
        self._tables = slots.tables[order]
        self._length = int(self._positions.max()) + 1
        size = BLOCK_TOKENS
        blocks = self._tables.gather(1, (self._positions // size)[:, None])[:, 0]
        self._places = (blocks.long() * size + self._positions % size)[self._is_going]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        keys, values = self._cache[layer]
        keys.flatten(0, 1)[self._places] = key[self._is_going, :, 0]
        values.flatten(0, 1)[self._places] = value[self._is_going, :, 0]
        seen_keys, seen_values = gather((keys, values), self._tables, self._length)
        index = torch.arange(self._length, device=query.device)
        seen = may_see(self._positions[:, None], index[None], form.window)
        return plain_attention(query, seen_keys, seen_values, seen[:, None, None], form).transpose(1, 2)
