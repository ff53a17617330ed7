"""Recomputing activations on a GPU, with the forms of models/fused.py in place: less memory, the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from groupwise.bench import update_speed as bench
from groupwise.bench.update_speed import UpdateWork, bench_update
from groupwise.types import UpdateStats

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("lora", [None, 8])
def test_the_feed_forward_part_alone_is_between_nothing_and_all(
    lora: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = bench.update_policy
    seen: list[UpdateStats] = []

    def watched(*arguments: Any, **named: Any) -> UpdateStats:
        seen.append(original(*arguments, **named))
        return seen[-1]

    monkeypatch.setattr(bench, "update_policy", watched)
    choices: tuple[Any, ...] = (False, "mlp", True)
    peaks = []
    for which in choices:
        work = UpdateWork("smollm2-135m", sequences=16, updates=2, lora=lora, checkpointing=which)
        timing = bench_update(work)
        assert timing.peak_bytes is not None
        assert timing.before_bytes is not None
        peaks.append(timing.peak_bytes - timing.before_bytes)
    nothing, feed_forward, layers = peaks
    assert layers < feed_forward < 0.8 * nothing
    first = [seen[2 * index].grad_norm for index in range(3)]
    # The kernels that add up weights' gradients may do so in any order.
    assert first[1] == pytest.approx(first[0], rel=1e-3)
    assert first[2] == pytest.approx(first[0], rel=1e-3)
