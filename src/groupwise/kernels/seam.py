"""The seam to transformers' modules: attention of ours, handed to a model through its attention interface.

A forward pass runs with a *step*, which knows where keys and values are and what each query may see. Without one the
model has the attention that it came with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

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
def attending(model: Any, step: AttentionStep | None = None) -> Iterator[None]:
    """Inside, the model's attention is ours. The step may be set, and changed, by `attend_with`."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    attend_with(step)
    try:
        yield
    finally:
        attend_with(None)
        config._attn_implementation = before


def attend_with(step: AttentionStep | None) -> None:
    """For the forward passes from here on, and for what gradient checkpointing computes again in their backward."""
    global _current
    _current = step


def current_step() -> AttentionStep | None:
    return _current


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None,
    dropout: float = 0.0, sliding_window: int | None = None, softcap: float | None = None, s_aux: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    if _current is None:
        raise RuntimeError("our attention was called without a step")
    if s_aux is not None:
        raise UnsupportedModel('attention sinks are not supported here; set engine.name = "reference"')
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    form = AttentionForm(scale, softcap or 0.0, sliding_window or 0)
    return _current.attend(module.layer_idx, query, key, value, form), None


def _no_mask(*arguments: Any, **named: Any) -> None:
    """The step knows what each query may see."""
    return None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _no_mask)
