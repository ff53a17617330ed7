"""AdamW over fp32 weights, whatever dtype the model computes in, and the sums of its gradients.

For a model in bf16, each trained weight has an fp32 master here: bf16 has 8 bits of mantissa, so an update of 1e-6
times the weight would round to nothing. Gradients of microbatches are summed in fp32 as well. The weights of a model in
fp32 are their own masters.

    begin_gradients ──▶ backward, collect_gradients (per microbatch) ──▶ step: norm, clip, AdamW, publish

On a GPU a sum in fp32 is offered for each bf16 weight during an update (GradientSums). A backward pass of our own may
add to it directly and give autograd nothing. What autograd still delivers is added at once, so bf16 gradients of the
whole model never exist together. Weights that are adjacent in memory have adjacent sums. The sums of a small model keep
their addresses from update to update, for recorded passes.

With `offload`, masters and moments are in host memory, where the step is computed. For a sharded model, everything here
is this rank's slices as plain tensors; only the norm and the check of the weights are over all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from groupwise.config import OptimizerConfig
from groupwise.distributed.shards import local
from groupwise.distributed.world import World
from groupwise.models.memory_limits import KEPT_SUMS_SHARE
from groupwise.models.moments import EightBitMoments, Fp32Moments
from groupwise.models.placement import device_bytes, laid_out_alike, to_host

MAX_WEIGHT = 2.0**16
"""Larger weights are refused. No usable model has them: fp16, in which many are published, ends there."""


class UnusableWeights(RuntimeError):
    """A trained weight is not a finite number, or beyond `MAX_WEIGHT`. The message names it."""

    def __init__(self, name: str, largest: float) -> None:
        what = f"a magnitude of {largest:.3g}" if math.isfinite(largest) else "a value that is NaN or infinite"
        super().__init__(f"the weight {name} has {what}")


class GradientSums:
    """Sums of gradients in fp32 that a backward pass of our own adds to directly, instead of handing autograd one.

    The optimizer offers a sum for each weight at the start of an update and withdraws them all at its end. The policy
    makes one `GradientSums` and passes it to the optimizer, the output head and the layers.
    """

    def __init__(self) -> None:
        self._sums: dict[Tensor, Tensor] = {}
        self._stay = False

    def offer(self, weights: Sequence[Tensor], sums: Sequence[Tensor], *, stay: bool) -> None:
        """Offer a sum for each weight. `stay`: they keep their addresses from update to update."""
        self._sums = dict(zip(weights, sums, strict=True))
        self._stay = stay

    def withdraw(self) -> None:
        self._sums = {}

    def of(self, weight: Tensor) -> Tensor | None:
        return self._sums.get(weight)

    def stays(self, weight: Tensor) -> bool:
        """Whether the weight's sum may be recorded in a CUDA graph, which holds addresses."""
        return self._stay and weight in self._sums


class MasterAdamW:
    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        config: OptimizerConfig,
        world: World | None = None,
        weights: Mapping[str, Tensor] | None = None,
        sums: GradientSums | None = None,
    ) -> None:
        """`weights`: masters of a former optimizer of the same parameters."""
        self._world = world or World()
        self._parameters = dict(parameters)
        self._max_grad_norm = config.max_grad_norm
        self._masters: dict[str, Tensor] = {}
        self._published: set[str] = set()
        """Names of the masters that are copied into the model after a step. The others are the model's own weights."""
        for name, parameter in self._parameters.items():
            weight = local(parameter)
            if parameter.dtype == torch.float32 and not (config.offload and weight.is_cuda):
                self._masters[name] = weight
                continue
            given = weight.detach() if weights is None else weights[name]
            self._masters[name] = to_host(given.float()) if config.offload else given.to(weight.device).float()
            if self._masters[name].data_ptr() == weight.data_ptr():
                self._masters[name] = self._masters[name].clone()
            self._published.add(name)
        self._gathered: dict[str, Tensor] = {}
        """Sums of the gradients that autograd delivered, by name, where no sum was offered."""
        self.sums = sums or GradientSums()
        self._offered: list[Tensor] = []
        self._hooks: list[Any] = []
        self._moments: Fp32Moments | EightBitMoments
        if config.moments == "fp32":
            self._moments = Fp32Moments(self._masters, config)
        else:
            targets = {name: local(self._parameters[name].detach()) for name in self._published}
            self._moments = EightBitMoments(self._masters, targets, config)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trained weights in fp32, by name."""
        return {name: master.detach() for name, master in self._masters.items()}

    @property
    def missing_bytes(self) -> int:
        """Memory that the first step will allocate for moments on the model's device."""
        masters = self._masters.items()
        is_offloaded = any(local(self._parameters[name]).device != master.device for name, master in masters)
        return 0 if is_offloaded else self._moments.missing_bytes

    # ---- gradients ----

    def begin_gradients(self) -> None:
        """Start an update: offer the sums."""
        self.clear_gradients()
        offering: list[Any] = [parameter for parameter in self._parameters.values() if offers_sum(parameter)]
        if self._offered:
            torch._foreach_zero_(self._offered)
        else:
            self._offered = laid_out_alike(offering, _zeros)
        self.sums.offer(offering, self._offered, stay=sums_stay(offering))
        for parameter in offering:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._add_to_sum))

    def _add_to_sum(self, parameter: Any) -> None:
        total = self.sums.of(parameter)
        # Also called after a backward pass that added to the sum itself and left no gradient.
        if parameter.grad is not None and total is not None:
            total.add_(parameter.grad)
            parameter.grad = None

    def collect_gradients(self) -> None:
        """Add what autograd has delivered to fp32 sums, after each microbatch."""
        for name, parameter in self._parameters.items():
            # An fp32 parameter's own gradient is the sum. Where a sum is offered, the gradient was added to it.
            is_sum = parameter.dtype == torch.float32 and local(parameter) is parameter
            if parameter.grad is None or is_sum:
                continue
            gradient = local(parameter.grad).float()
            self._gathered[name] = self._gathered[name].add_(gradient) if name in self._gathered else gradient
            parameter.grad = None

    def clear_gradients(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._gathered = {}
        self.sums.withdraw()
        if not sums_stay(self._parameters.values()):
            self._offered = []
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self._masters[name].grad = None

    def gradients(self) -> dict[str, Tensor]:
        """Return the sums on the model's device, without weights that have no gradient."""
        totals = {}
        for name, parameter in self._parameters.items():
            offered = self.sums.of(parameter)
            totals[name] = self._gathered.get(name, parameter.grad) if offered is None else offered
        return {name: total for name, total in totals.items() if total is not None}

    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        norm = torch.nn.utils.get_total_norm(gradients)
        if self._world.is_alone:
            return norm
        squared = norm.double().square()
        self._world.add(squared)
        return squared.sqrt().float()

    # ---- step ----

    def step(self, learning_rate: float) -> tuple[float, bool]:
        """Return (norm of the gradient before clipping, whether it was finite). If not, the weights are unchanged."""
        gradients = self.gradients()
        norm = self._norm(list(gradients.values()))
        if not torch.isfinite(norm):
            self.clear_gradients()
            return float(norm), False
        clip = torch.clamp(self._max_grad_norm / (norm + 1e-6), max=1.0)
        if gradients:
            torch._foreach_mul_(list(gradients.values()), clip)
        for name, gradient in gradients.items():
            master = self._masters[name]
            master.grad = gradient if gradient.device == master.device else gradient.to(master.device)
        written = self._moments.step(learning_rate)
        self.clear_gradients()
        self.publish(written)
        return self.check_weights(norm), True

    @torch.no_grad()
    def check_weights(self, norm: Tensor) -> float:
        """Raise `UnusableWeights` on all ranks if any has one, and return the norm, which is read at the same time."""
        largest = _largest(self._masters.values()).to(norm.device)
        value, size = torch.stack([norm, largest]).tolist()
        if all(each <= MAX_WEIGHT for each in self._world.gather(size)):  # False for NaN
            return float(value)
        sizes = {name: float(_largest([master])) for name, master in self._masters.items()}
        found = [(name, size) for name, size in sizes.items() if not size <= MAX_WEIGHT]
        raise UnusableWeights(*next(first for part in self._world.gather(found) for first in part))

    @torch.no_grad()
    def publish(self, written: Set[str] = frozenset()) -> None:
        """Copy masters into the model, except those that were already `written` there."""
        names = self._published - written
        targets = [local(self._parameters[name].detach()) for name in names]
        masters = [self._masters[name] for name in names]
        if all(target.is_cuda and master.is_cuda for target, master in zip(targets, masters, strict=True)):
            if targets:
                torch._foreach_copy_(targets, masters)
            return
        for target, master in zip(targets, masters, strict=True):
            target.copy_(master.to(target.dtype))  # rounded first, which halves the transfer

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, master in self._masters.items():
            master.copy_(weights[name])
        self.publish()

    def state(self) -> dict[str, Tensor]:
        """Return AdamW's moments and step counts as named tensors."""
        return self._moments.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._moments.load_state(tensors)


def offers_sum(parameter: Tensor) -> bool:
    """Whether a sum is offered: for whole weights, except those in fp32 on a GPU. A slice gets its gradient later."""
    is_wanted = parameter.device.type == "cpu" or parameter.dtype != torch.float32
    return is_wanted and local(parameter) is parameter


def sums_stay(parameters: Iterable[Tensor]) -> bool:
    """Whether the sums of these weights are kept from update to update, as those of a small model are."""
    offering = [parameter for parameter in parameters if offers_sum(parameter)]
    num_bytes = sum(4 * parameter.numel() for parameter in offering)
    if not offering or not offering[0].is_cuda:
        return bool(offering)
    return num_bytes <= KEPT_SUMS_SHARE * device_bytes(offering[0].device)


def _largest(tensors: Iterable[Tensor]) -> Tensor:
    """The largest magnitude in all tensors, without waiting for it; NaN if there is one."""
    filled = [tensor for tensor in tensors if tensor.numel()]  # a rank's slice of a small tensor may be empty
    return torch.nn.utils.get_total_norm(filled, math.inf)


def _zeros(count: int, tensor: Tensor) -> Tensor:
    return torch.zeros(count, device=tensor.device)
