"""Attention in plain torch: for the CPU, and as the oracle of the kernels for a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from groupwise.kernels.seam import AttentionForm

Heads = tuple[Tensor, Tensor, Tensor]
"""Query [T, H, D], key and value [T, K, D]."""


def plain_attention(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, form: AttentionForm) -> Tensor:
    """Return [B, H, T, D]. `seen` [B, 1, T, L] says which keys a query may see."""
    if not form.softcap:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, scale=form.scale, enable_gqa=True
        )
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = form.softcap * torch.tanh(query.float() @ key.float().transpose(2, 3) * form.scale / form.softcap)
    return scores.masked_fill(~seen, -torch.inf).softmax(-1).to(value.dtype) @ value


MIN_ROWS = 4
"""Smallest number of rows in a product. With fewer, libraries add up in another order."""

MIN_KEYS = 32
"""The same for the keys of attention: torch computes small products otherwise."""


def with_ones(value: Tensor) -> Tensor:
    """Return [..., L, D + 1]: values, and a column of ones that adds up the weights in `fp32_attention`."""
    return torch.nn.functional.pad(value, (0, 1), value=1.0)


def fp32_attention(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, form: AttentionForm) -> Tensor:
    """Return [B × K, R, D] from query [B × K, R, D], key [B × K, L, D] and value [B × K, L, D + 1], all in fp32.

    R = H / K × T rows: queries whose heads share keys. `seen` [B or 1, T, L].

    A row gets the same bits whatever other rows and however many hidden keys are there, as long as products do: the sum
    of the weights is a product as well, and 0 for a hidden key changes nothing. So the engine's logprobs are the
    learner's although they see other shapes.
    """
    rows, missing = query.shape[1], MIN_KEYS - key.shape[1]
    if rows < MIN_ROWS:
        query = torch.nn.functional.pad(query, (0, 0, 0, MIN_ROWS * seen.shape[1] - rows))
    if missing > 0:
        key, value = (torch.nn.functional.pad(part, (0, 0, 0, missing)) for part in (key, value))
        seen = torch.nn.functional.pad(seen, (0, missing))
    found = unnormalized(query, key, seen, form).bmm(value)[:, :rows]
    return found[..., :-1] / found[..., -1:]


def unnormalized(query: Tensor, key: Tensor, seen: Tensor, form: AttentionForm) -> Tensor:
    """Return [B × K, R, L]: weights of the keys, as shares of the largest."""
    weights = (query * form.scale).bmm(key.transpose(1, 2))
    by_token = weights.view(len(seen), -1, seen.shape[1], seen.shape[2])  # all others have the same mask
    by_token.masked_fill_(~seen[:, None], -torch.inf)
    return weights.sub_(weights.amax(-1, keepdim=True)).exp_()


def may_see(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    seen = key_positions <= query_positions
    return seen & (key_positions > query_positions - window) if window else seen


SCORE_BYTES = 32 << 20
"""Largest size of the scores that are computed at once."""


class _Block(NamedTuple):
    """Queries of completions of one prompt, padded to the longest, or of a prompt."""

    rows: Tensor
    """[n, T] place in the pack of each of their tokens, up to the last query. Padding repeats the first."""
    prompt: slice
    """The tokens before all of them."""
    start: int
    """Column of the first query."""
    has_padding: bool
    is_padding: Tensor
    """[n, 1, 1, queries, 1]"""
    places: Tensor
    """[N] place in the pack of each query that is no padding."""
    cells: Tensor
    """[N] its index among the n × queries."""
    key_places: Tensor
    """The same for their own tokens, which are keys."""
    key_cells: Tensor

    @property
    def num_before(self) -> int:
        return int(self.prompt.stop - self.prompt.start)

    def seen(self, window: int) -> Tensor:
        """Return [1, queries, keys]."""
        columns = torch.arange(self.num_before + self.rows.shape[1], device=self.rows.device)
        return may_see(columns[self.num_before + self.start :, None], columns, window)[None]


class PlainPackedStep:
    """Attention within a pack: a token sees the prompt it continues and the earlier tokens of its segment.

    Completions of one prompt are computed together, in fp32: scores, softmax, average of values. The backward pass
    computes the scores again. No pair of tokens that do not see each other costs more than padding does.
    """

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
            queries, keys = _queries(block, query, key.shape[1]), _seen(block, key)
            found = fp32_attention(queries, keys, _seen(block, value, ones=1), block.seen(form.window), form)
            _put_queries(block, out, found)
        return out, query.new_empty(0)

    def backward(self, grad: Tensor, heads: Heads, out: Tensor, _: Tensor, form: AttentionForm) -> Heads:
        """Return the gradients of query, key and value."""
        query, key, value = heads
        kv_heads = key.shape[1]
        dquery = torch.empty_like(query)
        dkey, dvalue = (torch.zeros_like(part, dtype=torch.float32) for part in (key, value))
        shares = (grad.float() * out).sum(-1, keepdim=True)
        for block in self._find_blocks(query.shape[1]):
            queries, keys = _queries(block, query, kv_heads), _seen(block, key)
            weights = unnormalized(queries, keys, block.seen(form.window), form)
            weights.div_(weights.sum(-1, keepdim=True))
            slope = _queries(block, grad, kv_heads, is_gradient=True)
            _add_seen(block, dvalue, weights.transpose(-1, -2) @ slope)
            slope = slope @ _seen(block, value).transpose(-1, -2)
            slope = slope.sub_(_queries(block, shares, kv_heads, is_gradient=True)).mul_(weights).mul_(form.scale)
            _put_queries(block, dquery, slope @ keys)
            _add_seen(block, dkey, slope.transpose(-1, -2) @ queries)
        return dquery, dkey.to(key.dtype), dvalue.to(value.dtype)

    def _find_blocks(self, num_heads: int) -> list[_Block]:
        if self._blocks is None:
            self._blocks = [
                block
                for members in _members(self._segments)
                for block in _blocks_of(members, SCORE_BYTES // (4 * num_heads))
            ]
        return self._blocks


def _members(segments: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield each prompt, and the completions of each in parts of similar lengths."""
    for prompt, run in groupby(segments, key=lambda part: (part.prompt_start, part.prompt_length)):
        parts = sorted(run, key=lambda part: -part.length)
        if prompt[1] == 0:
            yield from ([part] for part in parts)
            continue
        while parts:
            count = sum(2 * part.length >= parts[0].length for part in parts)
            yield parts[:count]
            parts = parts[count:]


def _blocks_of(members: Sequence[Any], max_cells: int) -> Iterator[_Block]:
    """Yield blocks of at most `max_cells` pairs of a query and a key, with at least one query each."""
    longest, before = members[0].length, members[0].prompt_length
    prompt = slice(members[0].prompt_start, members[0].prompt_start + before)
    keys = before + longest
    at_once = max(1, min(len(members), max_cells // (keys * longest)))
    queries = max(1, min(longest, max_cells // (keys * at_once)))
    for first in range(0, len(members), at_once):
        some = members[first : first + at_once]
        starts = torch.tensor([part.start for part in some])[:, None]
        lengths = torch.tensor([part.length for part in some])[:, None]
        columns = torch.arange(some[0].length)
        rows = starts + torch.where(columns < lengths, columns, 0)
        for start in range(0, some[0].length, queries):
            end = min(start + queries, some[0].length)
            is_real = (columns < lengths)[:, :end]
            cells, key_cells = (torch.nonzero(part.flatten())[:, 0] for part in (is_real[:, start:], is_real))
            yield _Block(
                rows[:, :end],
                prompt,
                start,
                has_padding=not bool(is_real.all()),
                is_padding=~is_real[:, None, None, start:, None],
                places=rows[:, start:end].flatten()[cells],
                cells=cells,
                key_places=rows[:, :end].flatten()[key_cells],
                key_cells=key_cells,
            )


def _queries(block: _Block, part: Tensor, kv_heads: int, *, is_gradient: bool = False) -> Tensor:
    """Return [n × K, H / K × queries, D] in fp32 of [T, H, D]: queries whose heads share keys are rows of one matrix.

    Gradients of padding are 0.
    """
    rows = block.rows[:, block.start :]
    own = part.index_select(0, rows.flatten()).view(*rows.shape, kv_heads, -1, part.shape[2]).permute(0, 2, 3, 1, 4)
    found = torch.empty(own.shape, device=part.device).copy_(own)
    if is_gradient and block.has_padding:
        found.masked_fill_(block.is_padding, 0)
    return found.flatten(2, 3).flatten(0, 1)


def _put_queries(block: _Block, target: Tensor, found: Tensor) -> None:
    """Write [n × K, H / K × queries, D] to [T, H, D], where `_queries` takes them from."""
    count, length = block.rows.shape
    parts = found.view(count, len(found) // count, -1, length - block.start, found.shape[2]).permute(0, 3, 1, 2, 4)
    rows = torch.empty(parts.shape, dtype=target.dtype, device=target.device).copy_(parts).view(-1, *target.shape[1:])
    target.index_copy_(0, block.places, rows.index_select(0, block.cells) if block.has_padding else rows)


def _seen(block: _Block, part: Tensor, ones: int = 0) -> Tensor:
    """Return [n × K, keys, D + ones] in fp32 of [T, K, D]: the prompt and the block's own tokens."""
    (count, length), before, size = block.rows.shape, block.num_before, part.shape[2]
    found = torch.empty(count, part.shape[1], before + length, size + ones, device=part.device)
    found[:, :, :before, :size] = part[block.prompt].transpose(0, 1)
    own = part.index_select(0, block.rows.flatten())
    found[:, :, before:, :size] = own.view(count, length, *part.shape[1:]).transpose(1, 2)
    found[..., size:] = 1
    return found.flatten(0, 1)


def _add_seen(block: _Block, total: Tensor, found: Tensor) -> None:
    """Add [n × K, keys, D] to [T, K, D], where `_seen` takes them from."""
    before, found = block.num_before, found.unflatten(0, (len(block.rows), -1))
    total[block.prompt] += found[:, :, :before].sum(0).transpose(0, 1)
    own = found[:, :, before:].transpose(1, 2).reshape(-1, *total.shape[1:])
    own = own.index_select(0, block.key_cells) if block.has_padding else own
    # No two rows are the same token.
    total.index_copy_(0, block.key_places, total.index_select(0, block.key_places).add_(own))


class _PackAttention(torch.autograd.Function):
    """`PlainPackedStep` for models that run their own layers."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, step: PlainPackedStep, form: AttentionForm
    ) -> Tensor:
        out, lse = step.forward(0, (query, key, value), form)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.parts = (step, form)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *heads, out, lse = ctx.saved_tensors
        step, form = ctx.parts
        return *step.backward(grad, heads, out, lse, form), None, None
