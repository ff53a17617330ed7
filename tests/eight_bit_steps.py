"""Steps of AdamW on 8-bit moments, by the kernel and in plain torch: shared by `tests/gpu` and `tests/interpreted`."""

from __future__ import annotations

import torch

from groupwise.config import OptimizerConfig
from groupwise.models.moments import no_moments, step_codes, step_sizes


def check_steps(shape: tuple[int, ...], device: str, weight_dtype: torch.dtype | None, steps: int) -> None:
    """Compare the two after each step. The kernel writes the model's weight too, unless that is the master itself."""
    from groupwise.kernels.eight_bit_moments import step_codes_cuda

    torch.manual_seed(0)
    config = OptimizerConfig(weight_decay=0.1)
    slow = torch.randn(shape)
    fast = slow.to(device, copy=True)
    weight = None if weight_dtype is None else torch.empty_like(fast, dtype=weight_dtype)
    slow_codes, fast_codes = no_moments(slow), no_moments(fast)
    for step in range(1, steps + 1):
        gradient = torch.randn(shape) * torch.rand(shape) ** 4
        sizes = step_sizes(config, 1e-2, step, decays=True)
        step_codes(slow, gradient, slow_codes, sizes)
        step_codes_cuda(fast, gradient.to(device), weight, fast_codes, sizes)
        torch.testing.assert_close(fast.cpu(), slow, rtol=1e-5, atol=1e-6)
        for name in ("first_scales", "second_scales"):
            torch.testing.assert_close(getattr(fast_codes, name).cpu(), getattr(slow_codes, name), rtol=1e-5, atol=0)
        for name in ("first", "second"):
            # The last bit of a root decides between two codes, now and then.
            apart = getattr(fast_codes, name).cpu().int() - getattr(slow_codes, name).int()
            assert apart.abs().max() <= 1
            assert (apart != 0).float().mean() < 1e-3
        # Both go on from the same place: what fell the other way would grow, and hide what is wrong.
        slow.copy_(fast)
        for name in ("first", "first_scales", "second", "second_scales"):
            getattr(slow_codes, name).copy_(getattr(fast_codes, name))
    if weight is not None:
        assert torch.equal(weight, fast.to(weight.dtype))
