"""What kernels compute, in plain torch and with autograd's own gradients; and packs to compute it for.

Shapes: T tokens, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from groupwise.data.pack import Pack, make_pack


def pack_of(*groups: tuple[int, list[int]], device: str) -> Pack:
    """Make a pack of random tokens: for each (length of a prompt, lengths of its completions)."""
    dice = random.Random(0)
    pairs = []
    for prompt_length, lengths in groups:
        prompt = tuple(dice.randrange(99) for _ in range(prompt_length))
        pairs += [(prompt, tuple(dice.randrange(99) for _ in range(length))) for length in lengths]
    return make_pack(pairs, torch.device(device))


def columns(rows: Sequence[tuple[int, ...]], device: str) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(rows, device=device, dtype=torch.int32).t().contiguous().unbind())


def seen_in_pack(pack: Pack, window: int = 0) -> Tensor:
    """Return [T, T]: whether a token (row) sees another."""
    tokens = len(pack.token_ids)
    seen = torch.zeros(tokens, tokens, dtype=torch.bool, device=pack.positions.device)
    for part in pack.segments:
        rows = slice(part.start, part.start + part.length)
        seen[rows, part.prompt_start : part.prompt_start + part.prompt_length] = True
        seen[rows, rows] = torch.ones_like(seen[rows, rows]).tril()
    return seen & (pack.positions[:, None] - pack.positions[None, :] < window) if window else seen


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, softcap: float = 0.0) -> Tensor:
    """Return [T, H, D] from a mask over all pairs of tokens, in the precision of its inputs."""
    groups = q.shape[1] // k.shape[1]
    x = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(groups, 1)) * scale
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    weights = x.masked_fill(~seen, -float("inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(groups, 1))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [T, H, D] by cos and sin [T, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


class PlainOps:
    """The functions of `kernels/layer_training.py`."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return x + y, self.norm(x + y, weight, eps)

    def norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, eps: float, around: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
            out = self.norm(leaves[0], leaves[1], eps)
        dx, dweight = torch.autograd.grad(out, leaves, grad)
        return dx if around is None else dx + around, out.detach(), dweight

    def angles(self, embeddings: Any) -> Any:
        return tuple(part[0] for part in embeddings)

    def turn_heads(self, heads: Any, rotary: Any, out: Any, sign: float) -> None:
        cos, sin = rotary
        for source, target in zip(heads[:2], out[:2], strict=True):
            target.copy_(rotate(source, cos, sin * sign))
        out[2].copy_(heads[2])

    def gate(self, joined: Tensor) -> Tensor:
        gate, up = joined.chunk(2, dim=-1)
        return F.silu(gate) * up

    def gate_backward(self, grad: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = joined.detach().requires_grad_()
            out = self.gate(leaf)
        return torch.autograd.grad(out, leaf, grad)[0], out.detach()

    def project(self, x: Tensor, joined: Any) -> Tensor:
        out = F.linear(x, joined.weight, joined.bias)
        if joined.adapter is not None:
            low = (x @ joined.adapter.down.t()).split(joined.adapter.up.shape[1], dim=1)
            ups = joined.adapter.up.split(joined.sizes)
            out = out + torch.cat([a @ b.t() for a, b in zip(low, ups, strict=True)], dim=1) * joined.adapter.scaling
        return out

    def add_product(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        total.addmm_(left.t(), right)

    def split_sums(self) -> Any:
        return nullcontext()
