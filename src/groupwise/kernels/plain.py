"""Attention in plain torch: for the CPU, and as the oracle of the kernels for a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.kernels.seam import AttentionForm


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


def may_see(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    seen = key_positions <= query_positions
    return seen & (key_positions > query_positions - window) if window else seen


class PlainPackedStep:
    """Attention within a pack: a token sees the prompt it continues and the earlier tokens of its segment."""

    def __init__(self, segments: Sequence[Any]) -> None:
        self._segments = segments

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        found = []
        for part in self._segments:
            own = slice(part.start, part.start + part.length)
            prompt = slice(part.prompt_start, part.prompt_start + part.prompt_length)
            keys, values = (torch.cat([one[:, :, prompt], one[:, :, own]], dim=2) for one in (key, value))
            places = torch.arange(part.prompt_length + part.length, device=query.device)
            seen = may_see(places[part.prompt_length :, None], places[None], form.window)
            found.append(plain_attention(query[:, :, own], keys, values, seen[None, None], form))
        return torch.cat(found, dim=2).transpose(1, 2).contiguous()
