"""Attention within a pack in plain torch, in two passes: for the CPU.

A token sees the prompt it continues and the earlier tokens of its segment. Completions are computed in blocks, in fp32:
scores, softmax, average of values. A block has some prompts and as many completions of each, padded to equal lengths.

    prompt 1 · ·  │ completion 1
                  │ completion 2 ·         keys of a block: the columns of its prompts, then those of its completions
    prompt 2      │ completion 3 · · ·
                  │ · · · ·

The backward pass computes the scores again. Prompts are blocks of the same kind, with nothing before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any

import torch
from torch import Tensor

from groupwise.kernels.plain import Heads, fp32_attention, may_see, plain_attention, unnormalized
from groupwise.kernels.seam import AttentionForm

SCORE_BYTES = 32 << 20
"""Largest size of the scores that are computed at once."""
MAX_PADDED = 1.5
"""Pairs of a query and a key that a block of several prompts may compute for each that counts."""
FEW_PAIRS = 20_000
"""So many are computed faster than a block is started."""
NOWHERE = 1 << 40
"""Position of a key that nothing sees."""

Unit = Sequence[Any]
"""Segments of completions of one prompt, longest first; or one prompt."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Places in the pack of padded rows, and which of them count."""

    index: Tensor
    """[…, columns]. Padding is place 0."""
    is_real: Tensor
    """[…, columns] bool."""
    cells: Tensor
    """[N] index among all cells of those that count."""
    places: Tensor
    """[N] place of each."""

    @property
    def is_full(self) -> bool:
        return len(self.cells) == self.index.numel()


def _rows(starts: Tensor, lengths: Tensor, columns: range) -> _Rows:
    """Return rows of tokens that begin at `starts` […]."""
    column = torch.arange(columns.start, columns.stop)
    is_real = column < lengths[..., None]
    index = torch.where(is_real, starts[..., None] + column, 0)
    cells = torch.nonzero(is_real.flatten())[:, 0]
    return _Rows(index, is_real, cells, index.flatten()[cells])


class _Block:
    """G prompts with n completions each: T queries of each, which see up to P tokens of a prompt and L of their own."""

    def __init__(self, units: Sequence[Unit], columns: range) -> None:
        def table(name: str) -> Tensor:
            most = max(map(len, units))
            return torch.tensor([[getattr(part, name) for part in unit] + [0] * (most - len(unit)) for unit in units])

        starts, lengths = table("start"), table("length")
        prompts = torch.tensor([(unit[0].prompt_start, unit[0].prompt_length) for unit in units])
        self.prompts = _rows(prompts[:, 0], prompts[:, 1], range(int(prompts[:, 1].max())))
        """[G, P]"""
        self.own = _rows(starts, lengths, range(columns.stop))
        """[G, n, L]"""
        self.queries = _rows(starts, lengths, columns)
        """[G, n, T]"""
        before = prompts[:, 1:]
        keys = torch.where(self.prompts.is_real, torch.arange(self.prompts.index.shape[1]), NOWHERE)
        self._key_positions = torch.cat([keys, before + torch.arange(columns.stop)], dim=1)
        self._query_positions = before + torch.arange(columns.start, columns.stop)

    def seen(self, window: int) -> Tensor:
        """Return [G, T, P + L]."""
        return may_see(self._query_positions[..., None], self._key_positions[:, None], window)

    def take_queries(self, part: Tensor, kv_heads: int, *, is_gradient: bool = False) -> Tensor:
        """Return [G × n × K, H / K × T, D] in fp32 of [tokens, H, D]: queries whose heads share keys are one matrix.

        Gradients of padding are 0.
        """
        index = self.queries.index
        taken = part.index_select(0, index.flatten()).view(
            -1, index.shape[-1], kv_heads, part.shape[1] // kv_heads, part.shape[2]
        )
        taken = taken.permute(0, 2, 3, 1, 4)
        found = torch.empty(taken.shape).copy_(taken)
        if is_gradient and not self.queries.is_full:
            found.masked_fill_(~self.queries.is_real.flatten(0, -2)[:, None, None, :, None], 0)
        return found.flatten(2, 3).flatten(0, 1)

    def put_queries(self, target: Tensor, found: Tensor) -> None:
        """Write [G × n × K, H / K × T, D] to [tokens, H, D], where `take_queries` takes them from."""
        *counts, columns = self.queries.index.shape
        number = torch.Size(counts).numel()
        parts = found.view(number, len(found) // number, -1, columns, found.shape[2]).permute(0, 3, 1, 2, 4)
        rows = torch.empty(parts.shape, dtype=target.dtype).copy_(parts).view(-1, *target.shape[1:])
        target.index_copy_(0, self.queries.places, rows if self.queries.is_full else rows[self.queries.cells])

    def take_seen(self, part: Tensor, ones: int = 0) -> Tensor:
        """Return [G × n × K, P + L, D + ones] in fp32 of [tokens, K, D]: what the queries may see."""
        (groups, before), (_, members, length) = self.prompts.index.shape, self.own.index.shape
        _, heads, size = part.shape
        found = torch.empty(groups, members, heads, before + length, size + ones)
        prompts = part.index_select(0, self.prompts.index.flatten()).view(groups, 1, before, heads, size)
        own = part.index_select(0, self.own.index.flatten()).view(groups, members, length, heads, size)
        found[..., :before, :size] = prompts.transpose(2, 3)
        found[..., before:, :size] = own.transpose(2, 3)
        found[..., size:] = 1
        return found.flatten(0, 2)

    def add_seen(self, total: Tensor, found: Tensor) -> None:
        """Add [G × n × K, P + L, D] to [tokens, K, D], where `take_seen` takes them from."""
        (groups, before), (_, members, _) = self.prompts.index.shape, self.own.index.shape
        found = found.view(groups, members, -1, *found.shape[1:])
        _add(total, self.prompts, found[..., :before, :].sum(1).transpose(1, 2))
        _add(total, self.own, found[..., before:, :].transpose(2, 3))


def _add(total: Tensor, rows: _Rows, found: Tensor) -> None:
    """Add […, columns, K, D] to [tokens, K, D]. No two rows are the same token."""
    if len(rows.cells):
        flat = found.reshape(-1, *total.shape[1:])
        flat = flat if rows.is_full else flat[rows.cells]
        total.index_copy_(0, rows.places, total.index_select(0, rows.places).add_(flat))


class PlainPackedStep:
    """Attention over one pack."""

    def __init__(self, segments: Sequence[Any]) -> None:
        self._segments = segments
        self._blocks: list[_Block] | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        if form.softcap:
            return self._attend_softly(query, key, value, form)
        q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
        out: Tensor = _PackAttention.apply(q, k, v, self, form)
        return out[None]

    def _attend_softly(self, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        found = []
        for part in self._segments:
            own = slice(part.start, part.start + part.length)
            prompt = slice(part.prompt_start, part.prompt_start + part.prompt_length)
            keys, values = (torch.cat([one[:, :, prompt], one[:, :, own]], dim=2) for one in (key, value))
            places = torch.arange(part.prompt_length + part.length, device=query.device)
            seen = may_see(places[part.prompt_length :, None], places[None], form.window)
            found.append(plain_attention(query[:, :, own], keys, values, seen[None, None], form))
        return torch.cat(found, dim=2).transpose(1, 2).contiguous()

    def forward(self, layer: int, heads: Heads, form: AttentionForm) -> tuple[Tensor, Tensor]:
        """Return (attention's output [T, H, V], nothing: the backward pass does without log-sum-exps)."""
        query, key, value = heads
        out = query.new_empty(*query.shape[:2], value.shape[2])
        for block in self._find_blocks(query.shape[1]):
            queries, keys = block.take_queries(query, key.shape[1]), block.take_seen(key)
            found = fp32_attention(queries, keys, block.take_seen(value, ones=1), block.seen(form.window), form)
            block.put_queries(out, found)
        return out, query.new_empty(0)

    def backward(self, grad: Tensor, heads: Heads, out: Tensor, _: Tensor, form: AttentionForm) -> Heads:
        """Return the gradients of query, key and value."""
        query, key, value = heads
        kv_heads = key.shape[1]
        dquery = torch.empty_like(query)
        dkey, dvalue = (torch.zeros_like(part, dtype=torch.float32) for part in (key, value))
        shares = (grad.float() * out).sum(-1, keepdim=True)
        for block in self._find_blocks(query.shape[1]):
            queries, keys = block.take_queries(query, kv_heads), block.take_seen(key)
            weights = unnormalized(queries, keys, block.seen(form.window), form)
            weights.div_(weights.sum(-1, keepdim=True))
            slope = block.take_queries(grad, kv_heads, is_gradient=True)
            block.add_seen(dvalue, weights.transpose(1, 2).bmm(slope))
            slope = slope.bmm(block.take_seen(value).transpose(1, 2))
            slope = slope.sub_(block.take_queries(shares, kv_heads, is_gradient=True)).mul_(weights).mul_(form.scale)
            block.put_queries(dquery, slope.bmm(keys))
            block.add_seen(dkey, slope.transpose(1, 2).bmm(queries))
        return dquery, dkey.to(key.dtype), dvalue.to(value.dtype)

    def _find_blocks(self, num_heads: int) -> list[_Block]:
        if self._blocks is None:
            self._blocks = list(_blocks(self._segments, SCORE_BYTES // (4 * num_heads)))
        return self._blocks


def _blocks(segments: Sequence[Any], max_pairs: int) -> Iterator[_Block]:
    """Yield blocks of at most `max_pairs` pairs of a query and a key, with at least one query each."""
    # By rank, so that no block has a prompt twice.
    ranked = sorted(_units(segments), key=lambda found: (found[0], -found[1][0].prompt_length, -found[1][0].length))
    for _, some in groupby(ranked, key=lambda found: (found[0], found[1][0].prompt_length == 0)):
        joined: list[Unit] = []
        for _, unit in some:
            counted = sum(_num_pairs([each]) for each in [*joined, unit])
            if joined and _num_pairs([*joined, unit]) > min(max_pairs, max(FEW_PAIRS, MAX_PADDED * counted)):
                yield from _split(joined, max_pairs)
                joined = []
            joined.append(unit)
        yield from _split(joined, max_pairs)


def _units(segments: Sequence[Any]) -> Iterator[tuple[int, Unit]]:
    """Yield each prompt, and the completions of each in parts of similar lengths, with the rank of the part."""
    for prompt, run in groupby(segments, key=lambda part: (part.prompt_start, part.prompt_length)):
        parts = sorted(run, key=lambda part: -part.length)
        if prompt[1] == 0:
            yield from ((0, [part]) for part in parts)
            continue
        for rank in count():
            similar = sum(2 * part.length >= parts[0].length for part in parts)
            yield rank, parts[:similar]
            parts = parts[similar:]
            if not parts:
                break


def _num_pairs(units: Sequence[Unit]) -> int:
    """Return the pairs of a query and a key in a block of these units, padding included."""
    length, before = (max(getattr(unit[0], name) for unit in units) for name in ("length", "prompt_length"))
    return len(units) * max(map(len, units)) * length * (before + length)


def _split(units: Sequence[Unit], max_pairs: int) -> Iterator[_Block]:
    """Yield one block, or several of a single unit that is too large."""
    if len(units) > 1:
        yield _Block(units, range(max(unit[0].length for unit in units)))
        return
    (unit,) = units
    pairs = unit[0].length * (unit[0].prompt_length + unit[0].length)
    at_once = max(1, min(len(unit), max_pairs // pairs))
    for first in range(0, len(unit), at_once):
        some = unit[first : first + at_once]
        length = some[0].length
        queries = max(1, min(length, max_pairs // (at_once * (some[0].prompt_length + length))))
        for start in range(0, length, queries):
            yield _Block([some], range(start, min(start + queries, length)))


class _PackAttention(torch.autograd.Function):
    """`PlainPackedStep` for models that run their own layers."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, step: PlainPackedStep, form: AttentionForm
    ) -> Tensor:
        out, nothing = step.forward(0, (query, key, value), form)
        ctx.save_for_backward(query, key, value, out, nothing)
        ctx.parts = (step, form)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *heads, out, nothing = ctx.saved_tensors
        step, form = ctx.parts
        return *step.backward(grad, heads, out, nothing, form), None, None
