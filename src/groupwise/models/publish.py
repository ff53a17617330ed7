"""The policy's weights for an engine that keeps its own copy: as plain tensors, and whether they changed."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

from groupwise.models.lora import merged_state_dict


class PublishedWeights:
    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def stamp(self) -> object:
        """Return a value that changes whenever any weight was written, in whatever way.

        torch counts the writes to each tensor, but not those of its fused optimizers or through `.data`. So the bits of
        the trained weights are summed as well, as integers, which loses nothing to rounding.
        """
        held = itertools.chain(self._model.parameters(), self._model.buffers())
        writes = tuple((tensor.data_ptr(), tensor._version) for tensor in held)
        sums = [_bits(weight).sum(dtype=torch.int64) for weight in self._model.parameters() if weight.requires_grad]
        return writes, tuple(torch.stack(sums).tolist()) if sums else ()

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights under the names of a Hugging Face folder, with adapters merged.

        A tied weight appears under each of its names, because vLLM may have a packed copy for each.
        """
        named = revert_weight_conversion(self._model, merged_state_dict(self._model))
        return {name: tensor.detach() for name, tensor in named.items()}


def _bits(weight: Tensor) -> Tensor:
    return weight.detach().view(torch.int32 if weight.element_size() == 4 else torch.int16)
