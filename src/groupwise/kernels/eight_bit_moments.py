"""One step of AdamW on 8-bit moments: decode, update, encode, and write the model's weight, in one pass over memory.

The same as `models/moments.py` on the CPU, and tested against it. A program processes some blocks of 256 values.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256
BLOCKS_PER_PROGRAM = 4
SMALLEST = 1e-28


def step_codes_cuda(master: Tensor, gradient: Tensor, weight: Tensor | None, codes: Any, sizes: Any) -> None:
    """Do one step. `weight` receives the rounded new weights; None if the model computes with the master itself."""
    for tensor in (master, gradient, master if weight is None else weight):
        assert tensor.is_contiguous()
    blocks = len(codes.first)
    with torch.cuda.device(master.device):
        _step[(triton.cdiv(blocks, BLOCKS_PER_PROGRAM),)](
            master, gradient, master if weight is None else weight,
            codes.first, codes.first_scales, codes.second, codes.second_scales,
            master.numel(), blocks,
            # 1 - beta is computed here in double precision: in float32, 1 - 0.999 has a relative error of 1e-5.
            1 - sizes.beta1, sizes.beta2, 1 - sizes.beta2, sizes.epsilon, sizes.shrink, sizes.size, sizes.root_bias,
            HAS_WEIGHT=weight is not None, R=BLOCKS_PER_PROGRAM, B=BLOCK, SMALLEST=SMALLEST,
        )  # fmt: skip


@triton.jit
def _step(
    master_ptr, gradient_ptr, weight_ptr, first_ptr, first_scale_ptr, second_ptr, second_scale_ptr,
    num_elements, num_blocks, new_first, beta2, new_second, epsilon, shrink, size, root_bias,
    HAS_WEIGHT: tl.constexpr, R: tl.constexpr, B: tl.constexpr, SMALLEST: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    is_block = rows < num_blocks
    places = rows[:, None] * B + tl.arange(0, B)[None, :]
    is_code = is_block[:, None] & (places >= 0)
    is_value = places < num_elements

    first_scale = tl.load(first_scale_ptr + rows, mask=is_block, other=0.0)
    root = tl.load(first_ptr + places, mask=is_code, other=0).to(tl.float32) / 127.0
    first = root * tl.abs(root) * first_scale[:, None]
    second_scale = tl.load(second_scale_ptr + rows, mask=is_block, other=0.0)
    root = tl.load(second_ptr + places, mask=is_code, other=0).to(tl.float32) / 255.0
    root = root * root
    second = root * root * second_scale[:, None]

    gradient = tl.load(gradient_ptr + places, mask=is_value, other=0.0)
    first = first + (gradient - first) * new_first
    second = second * beta2 + gradient * gradient * new_second

    change = first / (tl.sqrt(second) / root_bias + epsilon)
    master = tl.load(master_ptr + places, mask=is_value, other=0.0) * shrink - change * size
    tl.store(master_ptr + places, master, mask=is_value)
    if HAS_WEIGHT:
        tl.store(weight_ptr + places, master.to(weight_ptr.dtype.element_ty), mask=is_value)

    scale = tl.max(tl.abs(first), axis=1)
    scale = tl.where(scale < SMALLEST, 0.0, scale)
    share = tl.where(scale[:, None] > 0, tl.abs(first) / tl.where(scale > 0, scale, 1.0)[:, None], 0.0)
    code = tl.floor(127.0 * tl.sqrt(share) + 0.5)
    tl.store(first_ptr + places, tl.where(first < 0, -code, code).to(tl.int8), mask=is_code)
    tl.store(first_scale_ptr + rows, scale, mask=is_block)

    scale = tl.max(second, axis=1)
    scale = tl.where(scale < SMALLEST, 0.0, scale)
    share = tl.where(scale[:, None] > 0, second / tl.where(scale > 0, scale, 1.0)[:, None], 0.0)
    code = tl.floor(255.0 * tl.sqrt(tl.sqrt(share)) + 0.5)
    code = tl.where(share > 0, tl.maximum(code, 1.0), 0.0)
    tl.store(second_ptr + places, code.to(tl.uint8), mask=is_code)
    tl.store(second_scale_ptr + rows, scale, mask=is_block)
