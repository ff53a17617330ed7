"""Attention over a cache of blocks against a mask over all pairs of tokens, whose keys are where the tables say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from groupwise.engines.native.decode import Piece, Slots
from groupwise.engines.native.schedule import Decoding
from tests.interpreted.interpreter import INTERPRETED, runs
from tests.plain_kernels import attend, columns, rotate

pytestmark = INTERPRETED

BLOCK = 16
ATTENTION = ("attention.scores", "attention.absorb", "attention.join_sums")
NAN = float("nan")


@dataclass
class Form:
    """Heads and settings of attention."""

    heads: int
    kv_heads: int
    size: int
    window: int = 0
    softcap: float = 0.0

    @property
    def settings(self) -> dict[str, float]:
        return {"scale": self.size**-0.5, "softcap": self.softcap, "window": self.window}

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention of the last len(q) tokens."""
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        if self.window:
            seen &= ~seen.tril(len(k) - len(q) - self.window)
        return attend(q, k, v, seen, self.size**-0.5, self.softcap)


FORMS = [
    Form(4, 2, 16),
    Form(3, 1, 80),
    Form(2, 2, 24, softcap=2.0),
    *(Form(2, 1, 16, window) for window in (1, 64, 257)),
    Form(2, 1, 16, window=70, softcap=0.5),
]


class Cached:
    """A cache with sequences in it: blocks in any order, unwritten places NaN."""

    def __init__(self, form: Form, lengths: Sequence[int], starts: Sequence[int], num_shared: int) -> None:
        """Sequences whose new tokens start beyond `num_shared` blocks have these in common: a prompt of a group."""
        counts = [-(-length // BLOCK) for length in lengths]
        order = torch.randperm(num_shared + sum(counts) + 3)
        self.arrays = torch.full((2, len(order), BLOCK, form.kv_heads, form.size), NAN)
        self.tables: list[list[int]] = []
        self.keys_values: list[Tensor] = []
        shared, own = order[:num_shared].tolist(), iter(order[num_shared:].tolist())
        prompt = 2 * torch.randn(2, num_shared * BLOCK, form.kv_heads, form.size)
        for length, start, count in zip(lengths, starts, counts, strict=True):
            begin = num_shared if start >= num_shared * BLOCK else 0
            self.tables.append([*shared[:begin], *(next(own) for _ in range(count - begin))])
            tail = 2 * torch.randn(2, length - begin * BLOCK, form.kv_heads, form.size)
            self.keys_values.append(torch.cat([prompt[:, : begin * BLOCK], tail], dim=1))

    def places(self, row: int, first: int, end: int) -> Tensor:
        index = torch.arange(first, end)
        return torch.tensor(self.tables[row])[index // BLOCK] * BLOCK + index % BLOCK

    def store(self, row: int, end: int) -> None:
        """Store the first `end` keys and values of a sequence."""
        self.arrays.flatten(1, 2)[:, self.places(row, 0, end)] = self.keys_values[row][:, :end]

    @property
    def cache(self) -> tuple[Tensor, Tensor]:
        return self.arrays[0], self.arrays[1]


# One past, at and before the end of a block, a tile of keys and a chunk; the last of two chunks and of three.
LENGTHS = [1, 16, 17, 64, 65, 255, 256, 257, 300, 513]


@runs(*ATTENTION, "attention._decode_attention", "attention._join_chunks")
@pytest.mark.parametrize("form", [*FORMS, Form(17, 1, 16)], ids=str)
@pytest.mark.parametrize("has_rotary", [False, True])
def test_decoding(form: Form, has_rotary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is the newest token of its sequence. One is done: it computes zeros and stores nothing."""
    from groupwise.kernels import attention

    done = LENGTHS.index(65)
    cached = Cached(form, LENGTHS, [length - 1 for length in LENGTHS], num_shared=2)
    slots = Slots(len(LENGTHS), 40, 1, torch.device("cpu"))
    slots.put([Decoding(0, 0, 0, 0, n - 1, cached.tables[i], i) for i, n in enumerate(LENGTHS)], 1)
    order = torch.randperm(len(LENGTHS)).tolist()
    slots.arrange(order)
    slots.is_done[done] = 1
    for row, length in enumerate(LENGTHS):
        cached.store(row, length - 1)
    positions = torch.tensor(LENGTHS) - 1
    # Of a projection's outputs side by side.
    joined = 2 * torch.randn(len(LENGTHS), form.heads + 2 * form.kv_heads, form.size)
    query, key, value = joined.split([form.heads, form.kv_heads, form.kv_heads], dim=1)
    cos, sin = torch.randn(2, 600, form.size)
    turned_query, turned_key = query, key
    if has_rotary:
        turned_query, turned_key = (rotate(x, cos[positions], sin[positions]) for x in (query, key))
    before = cached.arrays.clone()
    outs, arrays = [], []
    for limit in (attention.SPLIT_BELOW, 0):
        monkeypatch.setattr(attention, "SPLIT_BELOW", limit)
        cached.arrays.copy_(before)
        # Rows are passed in the slots' order.
        rotary = (cos, sin) if has_rotary else None
        inputs = (query[order], key[order], value[order], cached.cache, slots)
        outs.append(attention.decode_attention(*inputs, rotary=rotary, **form.settings))
        arrays.append(cached.arrays.clone())
    split, whole = outs
    assert torch.equal(split, whole)
    for row, slot in enumerate(order):
        if slot == done:
            assert not whole[row].any()
            continue
        place = cached.places(slot, LENGTHS[slot] - 1, LENGTHS[slot])
        new = torch.stack([turned_key[slot], value[slot]])
        before.flatten(1, 2)[:, place] = new[:, None]
        keys, values = torch.cat([cached.keys_values[slot][:, :-1], new[:, None]], dim=1)
        expected = form.attend(turned_query[slot][None], keys, values)[0]
        torch.testing.assert_close(whole[row], expected, rtol=1e-4, atol=3e-5)
    for each in arrays:
        torch.testing.assert_close(each, before, rtol=0, atol=1e-6, equal_nan=True)


@runs("attention._decode_attention")
def test_no_row_decodes() -> None:
    from groupwise.kernels.attention import decode_attention

    form = Form(2, 1, 16)
    slots = Slots(1, 1, 1, torch.device("cpu"))
    query, key = torch.randn(1, 2, 16), torch.randn(1, 1, 16)
    cache = torch.full((2, 1, BLOCK, 1, 16), NAN)
    assert not decode_attention(query, key, key, (cache[0], cache[1]), slots, **form.settings).any()
    assert cache.isnan().all()


# For each piece of a prompt: its position in the prompt, and its number of tokens.
PIECES = {
    "one token": [(0, 1)],
    "whole prompts": [(0, 64), (0, 65), (0, 17)],
    "later pieces": [(16, 48), (63, 66), (300, 5), (0, 3)],
    "over two chunks": [(250, 10), (255, 2)],
}


@runs(*ATTENTION, "attention._prefill_attention", "attention._rotate_and_store", "attention._rotated")
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", PIECES)
def test_prefill(name: str, form: Form) -> None:
    """What came before a piece is in the cache. Beyond the tiles with tokens is one without, and its query is NaN."""
    from groupwise.engines.native.cuda import query_tiles
    from groupwise.kernels.attention import prefill_attention, rotate_and_store

    pieces = PIECES[name]
    cached = Cached(
        form, [position + count for position, count in pieces], [start for start, _ in pieces], num_shared=1
    )
    positions = torch.cat([torch.arange(position, position + count) for position, count in pieces])
    places = torch.cat([cached.places(row, first, first + count) for row, (first, count) in enumerate(pieces)])
    joined = 2 * torch.randn(len(positions), form.heads + 2 * form.kv_heads, form.size)
    query, key, value = joined.split([form.heads, form.kv_heads, form.kv_heads], dim=1)
    cos, sin = torch.randn(2, 400, form.size)
    for row, (position, _) in enumerate(pieces):
        cached.store(row, position)
    before = cached.arrays.clone()
    turned = torch.full((len(positions) + 1, form.heads, form.size), NAN)
    rotate_and_store(query, key, value, cached.cache, positions, places, (cos, sin), turned)
    turned_key = rotate(key, cos[positions], sin[positions])
    torch.testing.assert_close(turned[:-1], rotate(query, cos[positions], sin[positions]))
    before.flatten(1, 2)[:, places] = torch.stack([turned_key, value])
    torch.testing.assert_close(cached.arrays, before, equal_nan=True)

    tables = [Piece([0] * count, position, cached.tables[row]) for row, (position, count) in enumerate(pieces)]
    width = max(map(len, cached.tables))
    padded = torch.tensor([[*table, *[0] * (width - len(table))] for table in cached.tables], dtype=torch.int32)
    tiles = columns([*query_tiles(tables), (0, 0, 0, 0)], "cpu")
    out = prefill_attention(turned, cached.cache, padded, tiles, out=torch.full_like(turned, NAN), **form.settings)
    assert out[-1].isnan().all()
    start = 0
    for row, (position, count) in enumerate(pieces):
        new = slice(start, start + count)
        keys = torch.cat([cached.keys_values[row][0, :position], turned_key[new]])
        values = torch.cat([cached.keys_values[row][1, :position], value[new]])
        torch.testing.assert_close(out[new], form.attend(turned[new], keys, values), rtol=1e-4, atol=3e-5)
        start += count
