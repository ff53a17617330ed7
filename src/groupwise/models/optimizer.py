"""AdamW over fp32 weights, whatever the model computes in.

A model in bf16 keeps an fp32 master of each trained weight here: bf16 has 8 bits of mantissa, so an update of 1e-6
times the weight would round to nothing. Gradients of the microbatches add up in fp32 as well. A model in fp32 is its
own master and pays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from groupwise.config import OptimizerConfig


class MasterAdamW:
    def __init__(self, parameters: Mapping[str, Parameter], config: OptimizerConfig) -> None:
        self._parameters = dict(parameters)
        self._masters = {
            name: parameter if parameter.dtype == torch.float32 else parameter.detach().float().clone()
            for name, parameter in self._parameters.items()
        }
        self._max_grad_norm = config.max_grad_norm
        matrices = [master for master in self._masters.values() if master.dim() >= 2]
        others = [master for master in self._masters.values() if master.dim() < 2]
        self._adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
        )

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trained weights in fp32, by name."""
        return {name: master.detach() for name, master in self._masters.items()}

    @property
    def missing_bytes(self) -> int:
        """What the first step will take for its moments."""
        missing = [master for master in self._masters.values() if master not in self._adamw.state]
        return sum(2 * master.numel() * master.element_size() for master in missing)

    def clear_gradients(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self._masters[name].grad = None

    def collect_gradients(self) -> None:
        """After each microbatch: move low-precision gradients into their masters' fp32 sums."""
        for name, parameter in self._parameters.items():
            master = self._masters[name]
            if master is not parameter and parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """Of all weights, in one order on all ranks; zeros where this rank had nothing to learn from."""
        for master in self._masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return [master.grad for master in self._masters.values() if master.grad is not None]

    def step(self, learning_rate: float) -> tuple[float, bool]:
        """(norm of the gradient before clipping, whether it was finite). Not finite: the weights stay as they are."""
        with_gradient = [master for master in self._masters.values() if master.grad is not None]
        norm = torch.nn.utils.get_total_norm([master.grad for master in with_gradient if master.grad is not None])
        if not torch.isfinite(norm):
            self.clear_gradients()
            return float(norm), False
        torch.nn.utils.clip_grads_with_norm_(with_gradient, self._max_grad_norm, norm)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self.clear_gradients()
        self.publish()
        return float(norm), True

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters into the model."""
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, master in self._masters.items():
            master.copy_(weights[name])
        self.publish()

    def state(self) -> dict[str, Tensor]:
        """AdamW's moments and step counts as named tensors."""
        tensors = {}
        for name, master in self._masters.items():
            for key, value in self._adamw.state.get(master, {}).items():
                tensors[f"{key}/{name}"] = value
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        by_name: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            by_name.setdefault(name, {})[kind] = value
        for name, entries in by_name.items():
            master = self._masters[name]
            # AdamW keeps its step count on the CPU and its moments beside the weight.
            self._adamw.state[master] = {
                kind: value.clone() if kind == "step" else value.to(master.device).clone()
                for kind, value in entries.items()
            }
