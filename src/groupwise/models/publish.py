"""The policy's weights for an engine that keeps a copy of its own: as plain tensors, and whether they changed."""

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
        """Differs from an earlier one if any weight was written in between, by whomever and in whatever way.

        torch counts the writes to each tensor, but neither those of its fused optimizers nor those through `.data`. So
        the bits of what is trained are added up as well, as whole numbers: nothing is rounded away.
        """
        held = itertools.chain(self._model.parameters(), self._model.buffers())
        writes = tuple((tensor.data_ptr(), tensor._version) for tensor in held)
        sums = [_bits(weight).sum(dtype=torch.int64) for weight in self._model.parameters() if weight.requires_grad]
        return writes, tuple(torch.stack(sums).tolist()) if sums else ()

    def tensors(self) -> dict[str, Tensor]:
        """Under the names of a Hugging Face folder, adapters merged in.

        A tied weight is there under each of its names: vLLM may hold a packed copy of it for each.
        """
        named = revert_weight_conversion(self._model, merged_state_dict(self._model))
        return {name: tensor.detach() for name, tensor in named.items()}


def _bits(weight: Tensor) -> Tensor:
    return weight.detach().view(torch.int32 if weight.element_size() == 4 else torch.int16)
