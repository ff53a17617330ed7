"""The seam to transformers: our attention, which a model calls through transformers' `AttentionInterface`.

A forward pass runs with a *step*, which knows where keys and values are and what each query may see. Outside of
`attending` the model has its own attention.

The current step is a global of this module, for two reasons. transformers finds an attention function by name and
passes it only its own arguments, so an extra argument would have to survive the forward of every architecture. And
gradient checkpointing calls attention again during the backward pass, on a GPU in autograd's own thread, where a
context variable of the caller is not visible. So one model attends at a time per process, and the step must stay set
until the backward pass is done.
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
        """Return [B, T, H, D] from query [B, H, T, D], key and value [B, K, T, D]. Store key and value."""
        ...


class AttentionForm:
    """Settings of attention that differ between models and layers."""

    __slots__ = ("scale", "softcap", "window")

    def __init__(self, scale: float, softcap: float, window: int) -> None:
        self.scale = scale
        self.softcap = softcap
        """0: none."""
        self.window = window
        """How many tokens back a query sees, itself included; 0: all."""


class UnsupportedModel(ValueError):
    """This model's attention is none that our kernels compute."""


Step = Any
"""An `AttentionStep`, or a step that only layers which run as one operation call (models/straight.py)."""

_current: Step = None


@contextmanager
def attending(model: Any, step: Step = None) -> Iterator[None]:
    """Inside, the model uses our attention. `attend_with` sets and changes the step."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    attend_with(step)
    try:
        yield
    finally:
        attend_with(None)
        config._attn_implementation = before


def attend_with(step: Step) -> None:
    """Set the step for the next forward passes and for what gradient checkpointing recomputes in their backward."""
    global _current
    _current = step


def current_step() -> Step:
    return _current


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, scaling: float | None = None,
    dropout: float = 0.0, sliding_window: int | None = None, softcap: float | None = None, s_aux: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    if _current is None:
        raise RuntimeError("attention was called without a step")
    if s_aux is not None:
        raise UnsupportedModel("it has attention sinks")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    form = AttentionForm(scale, softcap or 0.0, sliding_window or 0)
    return _current.attend(module.layer_idx, query, key, value, form), None


def _no_mask(*arguments: Any, **named: Any) -> None:
    """Build no mask: the step knows what each query may see."""
    return None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _no_mask)
