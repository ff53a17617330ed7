"""Attention in plain torch: for the CPU, and as the oracle of the kernels for a GPU."""

from __future__ import annotations

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
