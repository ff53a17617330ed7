"""AdamW's two moments and its step: in fp32 by torch, or in 8 bit by our own code.

8 bit: a tensor is split into blocks of 256 values. A block stores its largest magnitude in fp32, and each value as a
code for its share of that. Codes follow a power law, dense near zero where most values are:

    first moment     share = ±(code / 127)²     int8
    second moment    share = (code / 255)⁴      uint8; 0 only for 0: a zero in the denominator would make a huge step

Arithmetic is in fp32: a step decodes, updates as AdamW does, and encodes. Decoded values encode to the same codes, so
checkpoints contain fp32 moments and load with either kind and on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.config import OptimizerConfig
from groupwise.models.memory_limits import MOMENT_BLOCK

BLOCK = MOMENT_BLOCK
MIN_ELEMENTS = 4096
"""Smaller tensors keep fp32 moments: they save little memory and are often sensitive (norms)."""
CHUNK_BLOCKS = 1024
"""Blocks that are decoded at a time on the CPU."""
SMALLEST = 1e-28
"""A block without larger values counts as zeros: its smallest codes would be denormal numbers."""


class Fp32Moments:
    """torch's AdamW. `EightBitMoments` has the same interface."""

    def __init__(self, masters: Mapping[str, Tensor], config: OptimizerConfig) -> None:
        self._masters = dict(masters)
        matrices = [master for master in self._masters.values() if master.dim() >= 2]
        others = [master for master in self._masters.values() if master.dim() < 2]
        # The unfused form on the CPU, because results of recipes are pinned to its rounding.
        self._is_fused = config.offload or any(master.is_cuda for master in self._masters.values())
        self._adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=self._is_fused or None,
        )

    @property
    def missing_bytes(self) -> int:
        """Memory that the first step will allocate."""
        missing = [master for master in self._masters.values() if master not in self._adamw.state]
        return sum(2 * master.numel() * master.element_size() for master in missing)

    def step(self, learning_rate: float) -> Set[str]:
        """Update the masters that have a gradient. Return the names of those that were also written into the model."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        return set()

    def state(self) -> dict[str, Tensor]:
        """Return the moments in fp32, named kind/name."""
        return {
            f"{kind}/{name}": value
            for name, master in self._masters.items()
            for kind, value in self._adamw.state.get(master, {}).items()
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        for name, kinds in by_name(tensors).items():
            master = self._masters[name]
            # The step count is on the CPU, except in the fused form.
            self._adamw.state[master] = {
                kind: (value if kind == "step" and not self._is_fused else value.to(master.device)).clone()
                for kind, value in kinds.items()
            }


def by_name(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Convert {kind/name: tensor} to {name: {kind: tensor}}."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        found.setdefault(name, {})[kind] = value
    return found


@dataclass(slots=True)
class Codes:
    """The moments of one tensor, in blocks; the last block is padded with zeros."""

    first: Tensor
    """[blocks, BLOCK] int8"""
    first_scales: Tensor
    """[blocks]"""
    second: Tensor
    """[blocks, BLOCK] uint8"""
    second_scales: Tensor
    num_steps: int = 0


@dataclass(frozen=True, slots=True)
class StepSizes:
    """The coefficients of one step of AdamW."""

    beta1: float
    beta2: float
    epsilon: float
    shrink: float
    """Factor that weight decay leaves of a weight."""
    size: float
    """Learning rate divided by the first moment's bias correction."""
    root_bias: float
    """Square root of the second moment's bias correction."""


def step_sizes(config: OptimizerConfig, learning_rate: float, num_steps: int, *, decays: bool) -> StepSizes:
    return StepSizes(
        beta1=config.beta1,
        beta2=config.beta2,
        epsilon=config.epsilon,
        shrink=1 - learning_rate * (config.weight_decay if decays else 0.0),
        size=learning_rate / (1 - config.beta1**num_steps),
        root_bias=math.sqrt(1 - config.beta2**num_steps),
    )


class EightBitMoments:
    def __init__(self, masters: Mapping[str, Tensor], weights: Mapping[str, Tensor], config: OptimizerConfig) -> None:
        """`weights`: the model's own weights, where they are not the masters."""
        small = {name: master for name, master in masters.items() if master.numel() < MIN_ELEMENTS}
        self._small = Fp32Moments(small, config)
        self._masters = {name: master for name, master in masters.items() if name not in small}
        self._weights = dict(weights)
        self._config = config
        self._codes: dict[str, Codes] = {}

    @property
    def missing_bytes(self) -> int:
        missing = [num_blocks(master) for name, master in self._masters.items() if name not in self._codes]
        return sum(2 * blocks * (BLOCK + 4) for blocks in missing) + self._small.missing_bytes

    @torch.no_grad()
    def step(self, learning_rate: float) -> Set[str]:
        self._small.step(learning_rate)
        written = set()
        for name, master in self._masters.items():
            if master.grad is None:
                continue
            if name not in self._codes:
                self._codes[name] = no_moments(master)
            codes = self._codes[name]
            codes.num_steps += 1
            sizes = step_sizes(self._config, learning_rate, codes.num_steps, decays=master.dim() >= 2)
            if master.is_cuda:
                from groupwise.kernels.eight_bit_moments import step_codes_cuda

                weight = self._weights.get(name)
                step_codes_cuda(master, master.grad, weight, codes, sizes)
                written.add(name)
            else:
                step_codes(master, master.grad, codes, sizes)
        return written

    def state(self) -> dict[str, Tensor]:
        tensors = self._small.state()
        for name, codes in self._codes.items():
            shape, count = self._masters[name].shape, self._masters[name].numel()
            tensors[f"step/{name}"] = torch.tensor(float(codes.num_steps))
            # Moved to the host one by one: decoded, they are four times as large.
            for kind, decoded in (
                ("exp_avg", decode_first(codes.first, codes.first_scales)),
                ("exp_avg_sq", decode_second(codes.second, codes.second_scales)),
            ):
                tensors[f"{kind}/{name}"] = decoded.cpu().view(-1)[:count].view(shape)
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        small = {key: value for key, value in tensors.items() if key.partition("/")[2] not in self._masters}
        self._small.load_state(small)
        for name, kinds in by_name({key: value for key, value in tensors.items() if key not in small}).items():
            device = self._masters[name].device
            first, first_scales = encode_first(_in_blocks(kinds["exp_avg"]).to(device))
            second, second_scales = encode_second(_in_blocks(kinds["exp_avg_sq"]).to(device))
            self._codes[name] = Codes(first, first_scales, second, second_scales, int(kinds["step"]))


def num_blocks(tensor: Tensor) -> int:
    return -(-tensor.numel() // BLOCK)


def no_moments(master: Tensor) -> Codes:
    blocks, device = num_blocks(master), master.device
    return Codes(
        torch.zeros(blocks, BLOCK, dtype=torch.int8, device=device),
        torch.zeros(blocks, device=device),
        torch.zeros(blocks, BLOCK, dtype=torch.uint8, device=device),
        torch.zeros(blocks, device=device),
    )


def decode_first(codes: Tensor, scales: Tensor) -> Tensor:
    """[blocks, BLOCK] fp32."""
    root = codes.float() / 127
    return root * root.abs() * scales[:, None]


def encode_first(values: Tensor) -> tuple[Tensor, Tensor]:
    scales, shares = _shares(values.abs())
    codes = (127 * shares.sqrt() + 0.5).floor()
    return (codes * values.sign()).to(torch.int8), scales


def decode_second(codes: Tensor, scales: Tensor) -> Tensor:
    return (codes.float() / 255).square().square() * scales[:, None]


def encode_second(values: Tensor) -> tuple[Tensor, Tensor]:
    scales, shares = _shares(values)
    codes = (255 * shares.sqrt().sqrt() + 0.5).floor()
    return torch.where(shares > 0, codes.clamp_min(1), 0.0).to(torch.uint8), scales


def _shares(magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Return (the largest value of each block, each value's share of it)."""
    scales = magnitudes.amax(dim=1)
    scales = torch.where(scales < SMALLEST, 0.0, scales)
    return scales, torch.where(scales[:, None] > 0, magnitudes / scales[:, None], 0.0)


def step_codes(master: Tensor, gradient: Tensor, codes: Codes, sizes: StepSizes) -> None:
    """Do one step of AdamW on one tensor, in chunks, so the whole tensor is never decoded at once."""
    weights, gradients = master.view(-1), gradient.reshape(-1)
    for start in range(0, len(codes.first), CHUNK_BLOCKS):
        blocks = slice(start, start + CHUNK_BLOCKS)
        elements = slice(start * BLOCK, (start + CHUNK_BLOCKS) * BLOCK)
        weight, grad = weights[elements], _in_blocks(gradients[elements])
        first = decode_first(codes.first[blocks], codes.first_scales[blocks]).lerp_(grad, 1 - sizes.beta1)
        second = decode_second(codes.second[blocks], codes.second_scales[blocks])
        second.mul_(sizes.beta2).addcmul_(grad, grad, value=1 - sizes.beta2)
        codes.first[blocks], codes.first_scales[blocks] = encode_first(first)
        codes.second[blocks], codes.second_scales[blocks] = encode_second(second)
        change = first.div_(second.sqrt_().div_(sizes.root_bias).add_(sizes.epsilon)).view(-1)[: len(weight)]
        weight.mul_(sizes.shrink).sub_(change, alpha=sizes.size)


def _in_blocks(values: Tensor) -> Tensor:
    flat = values.reshape(-1)
    return torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
