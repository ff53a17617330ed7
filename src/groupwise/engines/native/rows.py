"""The state of the rollouts that decode, as tensors that a captured graph reads and writes in place.

Rows 0 … n-1 are in use; when some are done, the others move together (`keep`), so that a batch is always a prefix.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(slots=True)
class Rows:
    tokens: Tensor
    """[S] the newest token, whose key and value are not in the cache yet."""
    positions: Tensor
    """[S] its position in the whole sequence."""
    counts: Tensor
    """[S] tokens drawn so far."""
    limits: Tensor
    """[S] tokens to draw at most."""
    seeds: Tensor
    """[S]"""
    is_done: Tensor
    """[S] 0 while it goes on, 1 after a stop token, 2 at its limit."""
    tables: Tensor
    """[S, blocks] the row's blocks of the cache, in order."""
    out_tokens: Tensor
    """[S, N]"""
    out_logprobs: Tensor
    """[S, N]"""

    @classmethod
    def make(cls, num_rows: int, max_blocks: int, max_new_tokens: int, device: torch.device) -> Rows:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return cls(
            tokens=zeros(num_rows),
            positions=zeros(num_rows),
            counts=zeros(num_rows),
            limits=zeros(num_rows),
            seeds=zeros(num_rows),
            is_done=zeros(num_rows, dtype=torch.int32),
            tables=zeros(num_rows, max_blocks, dtype=torch.int32),
            out_tokens=zeros(num_rows, max_new_tokens),
            out_logprobs=zeros(num_rows, max_new_tokens, dtype=torch.float32),
        )

    def keep(self, rows: Tensor) -> None:
        """Rows `rows` become rows 0 … len-1."""
        for field in fields(self):
            state = getattr(self, field.name)
            state[: len(rows)] = state[rows]

    def put(self, first: int, values: dict[str, Tensor]) -> None:
        """Set rows from `first` on."""
        for name, value in values.items():
            state = getattr(self, name)
            state[first : first + len(value), ...].copy_(value, non_blocking=True)
