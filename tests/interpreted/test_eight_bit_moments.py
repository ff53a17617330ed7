"""A step of AdamW on 8-bit moments against its plain form in `models/moments.py`."""

from __future__ import annotations

import pytest
import torch

from tests.eight_bit_steps import check_steps
from tests.interpreted.interpreter import INTERPRETED, runs

pytestmark = INTERPRETED


@runs("eight_bit_moments._step")
@pytest.mark.parametrize("shape", [(1,), (255,), (256,), (1025,), (3, 41, 37), (64, 80)])
@pytest.mark.parametrize("has_weight", [False, True])
def test_the_kernel_makes_the_steps_of_the_plain_form(shape: tuple[int, ...], has_weight: bool) -> None:
    """Of less than a block of 256 values, of one, and of one more than a program's four blocks."""
    check_steps(shape, "cpu", torch.float32 if has_weight else None, steps=5)
