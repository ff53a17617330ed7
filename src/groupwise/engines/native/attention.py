"""Attention over the engine's own cache, handed to a model's unchanged modules through transformers' interface.

A forward pass runs inside `attending(step)`: the step knows where the new keys and values go and what each query may
see. Outside of it the model is attached to nothing, and trains with its own attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "groupwise-native"


class AttentionStep(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        """[B, T, H, D] from query [B, H, T, D], key and value [B, K, T, D]; stores key and value on the way."""
        ...


class AttentionForm:
    """What varies between models and layers."""

    __slots__ = ("scale", "softcap", "window")

    def __init__(self, scale: float, softcap: float, window: int) -> None:
        self.scale = scale
        self.softcap = softcap
        """0 is none."""
        self.window = window
        """How many tokens back a query sees, itself included; 0 is all."""


class UnsupportedModel(ValueError):
    """This model computes attention in a way that the native engine does not; the message says which engine does."""


_current: AttentionStep | None = None


@contextmanager
def attending(model: Any, step: AttentionStep) -> Iterator[None]:
    """Inside, the model's attention is ours."""
    global _current
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    _current = step
    try:
        yield
    finally:
        _current = None
        config._attn_implementation = before


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None,
    dropout: float = 0.0, sliding_window: int | None = None, softcap: float | None = None, s_aux: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    if _current is None:
        raise RuntimeError("the native engine's attention was called outside of the engine")
    if s_aux is not None:
        raise UnsupportedModel('attention sinks are not in the native engine; set engine.name = "reference"')
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    form = AttentionForm(scale, softcap or 0.0, sliding_window or 0)
    return _current.attend(module.layer_idx, query, key, value, form), None


def _no_mask(*arguments: Any, **named: Any) -> None:
    """The step knows what each query may see."""
    return None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _no_mask)


# ---- the plain versions: CPU, and the oracle for the kernels ----


def gather(cache: tuple[Tensor, Tensor], tables: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """([B, K, L, D], [B, K, L, D]): the first `length` cached keys and values of each row."""
    size = cache[0].shape[1]
    blocks = tables[:, : -(-length // size)].long()
    found = [part[blocks].flatten(1, 2)[:, :length].transpose(1, 2) for part in cache]
    return found[0], found[1]


def plain_attention(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, form: AttentionForm) -> Tensor:
    """[B, H, T, D]; `seen` [B, 1, T, L] says which keys a query may see."""
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
