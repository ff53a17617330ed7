"""The routers of a mixture of experts: their logits in a pass, and how unevenly they load the experts.

The logits are those that transformers records for its own loss. It has one for some families only; others are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from groupwise.algo.completions import Completions
from groupwise.algo.losses import router_imbalance
from groupwise.config.build import ConfigError
from groupwise.data.batch import Microbatch
from groupwise.models.head import predicting
from groupwise.models.trial import Unusable, attempt


class Routers:
    def __init__(self, model: Any) -> None:
        self._model = model
        self.num_chosen = getattr(model.config.get_text_config(), "num_experts_per_tok", 0)
        """Experts that each token goes to."""

    @contextmanager
    def noting(self) -> Iterator[list[Tensor]]:
        """Yield a list that gets the logits of the block's pass, [B × T, E] for each layer that has a router."""
        noted: list[Tensor] = []

        def keep(decoder: Any, arguments: Any, output: Any) -> None:
            noted.extend(getattr(output, "router_logits", None) or ())

        decoder = self._model.get_decoder()
        hooks = [decoder.register_forward_pre_hook(_ask, with_kwargs=True), decoder.register_forward_hook(keep)]
        try:
            yield noted
        finally:
            for hook in hooks:
                hook.remove()

    def imbalance(self, noted: list[Tensor], microbatch: Microbatch) -> Tensor:
        """Return the mean over layers of `router_imbalance` [N]."""
        inputs = microbatch.inputs
        completions = Completions(microbatch.sequence, microbatch.lengths)
        layers = (predicting(inputs, logits.view(*inputs.shape, -1)) for logits in noted)
        return torch.stack([router_imbalance(logits, self.num_chosen, completions) for logits in layers]).mean(dim=0)


@torch.no_grad()
def check_routers(model: Any, key: str) -> None:
    """Refuse a model whose routers transformers does not balance. It runs the model on a few tokens."""
    routers, noted = Routers(model), list[Tensor]()
    if hasattr(model.config.get_text_config(), "router_aux_loss_coef"):
        ids = torch.arange(1, 5, device=model.device)[None]
        with suppress(Unusable), routers.noting() as noted:
            attempt(model, input_ids=ids, use_cache=False)
    if not noted or not routers.num_chosen:
        raise ConfigError(
            f"{key}: transformers has no loss that balances the routers of {type(model).__name__}; remove the key"
        )


def _ask(decoder: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return arguments, {**named, "output_router_logits": True}
