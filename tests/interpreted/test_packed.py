"""Attention within a pack and its gradients against a mask over all pairs of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.interpreted.interpreter import INTERPRETED, runs
from tests.plain_kernels import attend, pack_of, seen_in_pack

pytestmark = INTERPRETED

FORWARD = ("packed._packed_attention", "attention.scores", "attention.absorb", "attention.join_sums")
PACKS: dict[str, list[tuple[int, list[int]]]] = {
    "one token": [(1, [1])],
    "to the end of a tile": [(64, [65])],
    "one past a tile": [(65, [66])],
    "one past a chunk of keys": [(250, [8, 1, 2])],
    "several prompts": [(3, [70, 2]), (1, [64, 65]), (64, [1]), (40, [90])],
}
SHAPES = [(4, 2, 16, 0), (3, 1, 80, 0), (2, 2, 24, 1), (4, 1, 16, 50), (2, 1, 16, 64), (2, 1, 16, 65)]


@runs(*FORWARD, "packed._dot_rows", "packed._query_gradients", "packed._key_gradients")
@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize(("heads", "kv_heads", "size", "window"), SHAPES)
def test_attention_within_a_pack_and_its_gradients(
    name: str, heads: int, kv_heads: int, size: int, window: int, fenced: Callable[[Tensor], Tensor]
) -> None:
    from groupwise.kernels.packed import PackedTiles, packed_attention

    pack = pack_of(*PACKS[name], device="cpu")
    tokens = len(pack.token_ids)
    leaves = [fenced(1.5 * torch.randn(tokens, count, size)).requires_grad_() for count in (heads, kv_heads, kv_heads)]
    grad = fenced(torch.randn(tokens, heads, size))
    tiles = PackedTiles(pack.segments, pack.positions)
    mine = packed_attention(*leaves, tiles, scale=size**-0.5, window=window)
    plain = attend(*leaves, seen_in_pack(pack, window), size**-0.5)
    torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5)
    both = (torch.autograd.grad(each, leaves, grad) for each in (mine, plain))
    torch.testing.assert_close(*both, rtol=1e-4, atol=3e-5)


@runs(*FORWARD)
def test_buffers_with_room_for_other_packs() -> None:
    """Filled for one pack after another; what is left of the first would be tiles of the second."""
    from groupwise.kernels.packed import TileRoom, attend_packed, attend_packed_backward

    room = TileRoom(256, torch.device("cpu"))
    for groups in ([(65, [70, 3]), (1, [65])], [(130, [126])], [(3, [4])]):
        pack = pack_of(*groups, device="cpu")
        tokens = len(pack.token_ids)
        leaves = [torch.randn(256, count, 16).requires_grad_() for count in (4, 2, 2)]
        assert room.fill(pack.segments, torch.cat([pack.positions, torch.zeros(256 - tokens, dtype=torch.int64)]))
        out, lse = attend_packed(*(leaf.detach() for leaf in leaves), room, 0.25, 0)
        plain = attend(*(leaf[:tokens] for leaf in leaves), seen_in_pack(pack), 0.25)
        torch.testing.assert_close(out[:tokens], plain.detach(), rtol=1e-5, atol=1e-5)
        grad = torch.randn(256, 4, 16)
        grads: Any = attend_packed_backward(grad, *(leaf.detach() for leaf in leaves), out, lse, room, 0.25, 0)
        theirs = torch.autograd.grad(plain, leaves, grad[:tokens])
        for one, other in zip(grads, theirs, strict=True):
            torch.testing.assert_close(one[:tokens], other[:tokens], rtol=1e-4, atol=3e-5)
    assert not room.fill(pack_of((1, [2] * 30), device="cpu").segments, torch.zeros(256, dtype=torch.int64))
