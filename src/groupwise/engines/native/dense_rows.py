"""Attention of decode steps and prefills on a CPU, for layers that run as one operation (models/straight.py).

What a step reads is the keys and values of its rows, as one tensor per layer. Gathering them from the blocks of the
cache would take as long as attention itself, so it is done once, and a step adds the one column that is new. Rollouts
that end leave idle rows behind, until these are too many.

Arithmetic is that of training (`kernels.plain.fp32_attention`), so logprobs are those of the learner bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from groupwise.data.pack import Segment
from groupwise.kernels.plain import Heads, fp32_attention, may_see, with_ones
from groupwise.kernels.plain_packs import PlainPackedStep
from groupwise.kernels.seam import AttentionForm

MIN_SHARE = 0.75
"""Share of the rows that must be in use."""
COLUMNS = 64
"""Rows are made longer by this many tokens at a time."""

Cache = dict[int, tuple[Tensor, Tensor]]


class DenseRows:
    """The cached keys and values of some slots, by layer: [R × K, C, D] and [R × K, C, D + 1] in fp32."""

    def __init__(self, slots: Sequence[int], version: int, columns: int) -> None:
        self._place = {slot: row for row, slot in enumerate(slots)}
        self._slots = torch.tensor(slots)
        self._version = version
        self._columns = columns
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def fits(self, slots: Sequence[int], version: int, length: int) -> bool:
        """Whether these rows serve a step over `slots` that sees `length` tokens."""
        is_current = version == self._version and length <= self._columns
        is_full = len(slots) >= MIN_SHARE * len(self._place)
        return is_current and is_full and all(slot in self._place for slot in slots)

    def places(self, slots: Sequence[int]) -> Tensor | None:
        """Return the row of each slot; None if they are all rows in order."""
        found = [self._place[slot] for slot in slots]
        return None if found == list(range(len(self._place))) else torch.tensor(found)

    def layer(self, number: int, cache: Cache, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, gathered from the blocks at first."""
        if number not in self._layers:
            keys, values = gather(cache[number], tables[self._slots], self._columns)
            wide = keys.float().contiguous(), with_ones(values.float())
            self._layers[number] = wide[0].flatten(0, 1), wide[1].flatten(0, 1)
        return self._layers[number]


class RowDecode:
    """A step over one token of each of the first rows."""

    def __init__(self, runner: Any, slots: Sequence[int]) -> None:
        state = runner.slots
        order = state.order[: len(slots)]
        self._cache, self._tables = runner.cache, state.tables
        self._is_idle = state.is_done[order] != 0
        positions = state.positions[order].masked_fill(self._is_idle, 0)  # it may point past its last block
        length = int(positions.max()) + 1
        if runner.rows is None or not runner.rows.fits(slots, state.version, length):
            room = min(-(-length // COLUMNS) * COLUMNS, state.tables.shape[1] * block_size(runner.cache))
            runner.rows = DenseRows(slots, state.version, room)
        self._rows = runner.rows
        self._where = self._rows.places(slots)
        self._length = length
        size = block_size(runner.cache)
        blocks = state.tables[order].gather(1, (positions // size)[:, None])[:, 0]
        going = ~self._is_idle
        self._going = None if bool(going.all()) else torch.nonzero(going)[:, 0]
        self._positions = positions
        self._places = self._pick(blocks.long() * size + positions % size)
        self._masks: dict[int, Tensor] = {}

    def _pick(self, part: Tensor) -> Tensor:
        return part if self._going is None else part[self._going]

    def forward(self, layer: int, heads: Heads, form: AttentionForm) -> tuple[Tensor, Tensor]:
        """Return (attention's output [R, H, D], nothing)."""
        query, key, value = heads
        keys, values = self._rows.layer(layer, self._cache, self._tables)
        for stored, part in zip(self._cache[layer], (key, value), strict=True):
            stored.flatten(0, 1).index_copy_(0, self._places, self._pick(part))
        rows = torch.arange(len(query)) if self._where is None else self._where
        here = self._pick(rows), self._pick(self._positions)
        by_row = (part.unflatten(0, (-1, key.shape[1])) for part in (keys, values))
        for target, part in zip(by_row, (key, value), strict=True):
            target[here[0], :, here[1], : part.shape[2]] = self._pick(part).float()
        grouped = query.float().unflatten(1, (key.shape[1], -1))
        if self._where is not None:
            grouped = grouped.new_zeros(len(keys) // key.shape[1], *grouped.shape[1:]).index_copy_(0, rows, grouped)
        seen = self._seen(form.window, len(grouped), rows)
        grouped = grouped.flatten(0, 1)
        found = fp32_attention(grouped, keys[:, : self._length], values[:, : self._length], seen, form)
        found = found.unflatten(0, (-1, key.shape[1]))
        if self._where is not None:
            found = found.index_select(0, rows)
        return found.flatten(1, 2).to(query.dtype), query.new_empty(0)

    def _seen(self, window: int, num_rows: int, rows: Tensor) -> Tensor:
        """Return [R, 1, L]. A row without a rollout sees one token."""
        if window not in self._masks:
            positions = torch.zeros(num_rows, dtype=torch.int64).index_copy_(0, rows, self._positions)
            self._masks[window] = may_see(positions[:, None, None], torch.arange(self._length), window)
        return self._masks[window]


class RowPrefill:
    """A pass over pieces of prompts."""

    def __init__(self, runner: Any, pieces: Sequence[Any]) -> None:
        self._cache = runner.cache
        self._pieces = pieces
        self._places = torch.tensor(runner.places(pieces))
        self._whole: PlainPackedStep | None = None
        """Attention over pieces that all begin their prompts: a pack of prompts."""
        if not any(piece.position for piece in pieces):
            ends = list(accumulate(len(piece.token_ids) for piece in pieces))
            parts = zip([0, *ends], ends, strict=False)
            self._whole = PlainPackedStep([Segment(start, end - start, 0, 0, end) for start, end in parts])

    def forward(self, layer: int, heads: Heads, form: AttentionForm) -> tuple[Tensor, Tensor]:
        """Return (attention's output [T, H, D], nothing)."""
        query, key, value = heads
        for stored, part in zip(self._cache[layer], (key, value), strict=True):
            stored.flatten(0, 1).index_copy_(0, self._places, part)
        if self._whole is not None:
            return self._whole.forward(layer, heads, form)
        found = []
        for piece, part in zip(self._pieces, query.split([len(each.token_ids) for each in self._pieces]), strict=True):
            end = piece.position + len(piece.token_ids)
            keys, values = gather(self._cache[layer], torch.tensor([piece.blocks]), end)
            queries = part.float().unflatten(1, (key.shape[1], -1)).permute(1, 2, 0, 3).flatten(1, 2)
            seen = may_see(torch.arange(piece.position, end)[:, None], torch.arange(end), form.window)[None]
            out = fp32_attention(queries, keys[0].float(), with_ones(values[0].float()), seen, form)
            out = out.unflatten(1, (-1, len(part))).permute(2, 0, 1, 3).flatten(1, 2)
            found.append(out.to(query.dtype))
        return torch.cat(found), query.new_empty(0)


def block_size(cache: Cache) -> int:
    return int(next(iter(cache.values()))[0].shape[1])


def gather(cache: tuple[Tensor, Tensor], tables: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the first `length` cached keys and values of each row, [B, K, L, D] each."""
    size = cache[0].shape[1]
    blocks = tables[:, : -(-length // size)].flatten()
    # `index_select` of whole blocks is several times faster on a CPU than indexing with a table.
    found = [part.index_select(0, blocks).view(len(tables), -1, *part.shape[2:]) for part in cache]
    keys, values = (part[:, :length].transpose(1, 2) for part in found)
    return keys, values
