"""What a model keeps of the tokens it has seen: keys and values per token, and states of fixed size per sequence.

States belong to convolutions, recurrences and linear attention. They are read and written through transformers' own
cache: each forward pass gets an empty one, filled with the states of its rows, and attention goes through our seam
(kernels/seam.py) and leaves no keys in it.

Contract: `find_layout` runs a model of no known family once, over a few tokens, and needs no list of architectures. A
model that keeps something else is refused with `Unusable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from groupwise.engines.native.schedule import BLOCK_TOKENS
from groupwise.kernels.seam import AttentionForm, attending
from groupwise.models.families import UNKNOWN, family_of, head_size, num_kv_heads
from groupwise.models.trial import Unusable, attempt

Shape = tuple[int, ...]
KINDS = ("conv_states", "recurrent_states")
Place = tuple[int, str, int]
"""Layer, one of `KINDS`, and the number of the state in the layer."""


@dataclass(frozen=True, slots=True)
class Layout:
    attention: Mapping[int, tuple[Shape, Shape]]
    """(heads, size) of keys and of values, by number of the layer."""
    states: Mapping[Place, Tensor] = field(default_factory=dict)
    """An example of each state, [1, ...]."""
    cache_name: str = ""
    """Name of the cache among the arguments of the model."""

    def block_bytes(self, dtype: torch.dtype) -> int:
        """Return the size of a block over all layers."""
        values = sum(heads * size for shapes in self.attention.values() for heads, size in shapes)
        return values * BLOCK_TOKENS * dtype.itemsize

    def slot_bytes(self) -> int:
        """Return the size of the states of a rollout."""
        return sum(state.nbytes for state in self.states.values())


def find_layout(model: Any) -> Layout:
    config = model.config.get_text_config()
    if family_of(model) is not UNKNOWN:
        shape = (num_kv_heads(config), head_size(config))
        return Layout(dict.fromkeys(range(config.num_hidden_layers), (shape, shape)))
    step = _Recording()
    ids = torch.arange(1, 5, device=model.device)[None]
    with torch.inference_mode(), attending(model, step):
        output = attempt(model.get_decoder(), input_ids=ids, use_cache=True)
    caches = {name: value for name, value in output.items() if isinstance(value, Cache)}
    states: dict[Place, Tensor] = {}
    for cache in caches.values():
        # Caches of a single model's own kind hold more than keys, values and states.
        if any(type(part).__module__ != Cache.__module__ for part in (cache, *getattr(cache, "layers", ()))):
            raise Unusable("its cache is of its own kind")
        states |= _states_in(cache)
    if not step.shapes and not states:
        raise Unusable("its attention cannot be exchanged, or its cache is of its own kind")
    return Layout(step.shapes, states, next(iter(caches)) if states else "")


class _Recording:
    """An attention step that notes the shapes of keys and values."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[Shape, Shape]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm) -> Tensor:
        self.shapes[layer] = ((key.shape[1], key.shape[3]), (value.shape[1], value.shape[3]))
        batch, heads, tokens, _ = query.shape
        return query.new_zeros(batch, tokens, heads, value.shape[3])


class States:
    """The states of all slots; the last one is idle. Without states in the layout, nothing happens here."""

    def __init__(
        self, model: Any, layout: Layout, num_slots: int, allocate: Callable[[Shape, torch.dtype], Tensor]
    ) -> None:
        self._config = model.config
        self._name = layout.cache_name
        self._slots = {
            place: allocate((num_slots + 1, *example.shape[1:]), example.dtype)
            for place, example in layout.states.items()
        }

    def __bool__(self) -> bool:
        return bool(self._slots)

    @contextmanager
    def going_on(self, slots: Tensor) -> Iterator[dict[str, Any]]:
        """Yield the model's arguments for a pass over the next token of these slots. Their states follow it."""
        if not self:
            yield {"use_cache": False}
            return
        cache = DynamicCache(config=self._config)
        for (layer, kind, number), states in self._slots.items():
            _put(cache.layers[layer], kind, number, states.index_select(0, slots))
        yield {"use_cache": True, self._name: cache}
        for place, state in _states_in(cache).items():
            self._slots[place].index_copy_(0, slots, state)

    @contextmanager
    def beginning(self) -> Iterator[tuple[dict[str, Any], dict[Place, Tensor]]]:
        """Yield the model's arguments for a pass over one prompt, and a table that has its states afterwards."""
        cache = DynamicCache(config=self._config)
        found: dict[Place, Tensor] = {}
        yield {"use_cache": True, self._name: cache}, found
        found |= _states_in(cache)

    def put(self, slot: int, states: Mapping[Place, Tensor] | None) -> None:
        """Copy the states of a prompt to a slot. None stands for an empty prompt."""
        for place, target in self._slots.items():
            if states is None:
                target[slot] = 0
            else:
                target[slot] = states[place][0]


def _states_in(cache: Cache) -> dict[Place, Tensor]:
    return {
        (layer, kind, number): state
        for layer, part in enumerate(getattr(cache, "layers", ()))
        for kind in KINDS
        for number, state in (getattr(part, kind, None) or {}).items()
        if state is not None
    }


def _put(layer: Any, kind: str, number: int, states: Tensor) -> None:
    """Put states into a layer of a new cache, as its own first update would."""
    getattr(layer, kind)[number] = states
    getattr(layer, f"is_{kind}_initialized")[number] = True
    layer.has_previous_state[number] = True
    layer.dtype, layer.device = states.dtype, states.device
    if kind == "conv_states":
        layer.conv_kernel_size[number] = states.shape[-1]
