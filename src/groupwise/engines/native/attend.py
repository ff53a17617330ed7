"""Attention over the cache in plain torch, for the CPU and as the oracle for the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.kernels.seam import AttentionForm


def gather(cache: tuple[Tensor, Tensor], tables: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the first `length` cached keys and values of each row, [B, K, L, D] each."""
    size = cache[0].shape[1]
    blocks = tables[:, : -(-length // size)].flatten()
    # `index_select` of whole blocks is several times faster on a CPU than indexing with a table.
    found = [part.index_select(0, blocks).view(len(tables), -1, *part.shape[2:]) for part in cache]
    keys, values = (part[:, :length].transpose(1, 2) for part in found)
    return keys, values


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
