"""The optimizer on a GPU: sums that are offered, 8-bit moments in one kernel, masters and moments in host memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from groupwise.config import OptimizerConfig
from groupwise.models.optimizer import MasterAdamW, UnusableWeights
from tests.eight_bit_steps import check_steps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("shape", [(64, 80), (4097,), (3, 41, 37), (1000, 1000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_makes_the_steps_of_the_plain_form(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check_steps(shape, "cuda", None if dtype == torch.float32 else dtype, steps=20)


def weights_of(shapes: list[tuple[int, ...]]) -> dict[str, Parameter]:
    torch.manual_seed(0)
    return {str(index): Parameter(torch.randn(shape).cuda().bfloat16()) for index, shape in enumerate(shapes)}


@pytest.mark.parametrize("moments", ["fp32", "8bit"])
def test_offloaded_steps_are_those_on_the_gpu(moments: Any) -> None:
    shapes = [(128, 96), (5000,), (40,)]
    both = [weights_of(shapes), weights_of(shapes)]
    optimizers = [
        MasterAdamW(weights, OptimizerConfig(moments=moments, offload=offload, weight_decay=0.1))
        for weights, offload in zip(both, (False, True), strict=True)
    ]
    assert {master.device.type for master in optimizers[1].weights.values()} == {"cpu"}
    assert all(master.is_pinned() for master in optimizers[1].weights.values())
    assert optimizers[1].missing_bytes == 0
    before = torch.cuda.memory_allocated()
    for _ in range(10):
        gradients = [torch.randn(shape, device="cuda").bfloat16() for shape in shapes]
        for weights, optimizer in zip(both, optimizers, strict=True):
            optimizer.begin_gradients()
            for weight, gradient in zip(weights.values(), gradients, strict=True):
                weight.backward(gradient)
            optimizer.collect_gradients()
            optimizer.step(1e-3)
    del gradients
    if moments == "fp32":
        # Two moments of the first, and the sums of both, which stay; of the second no moments.
        count = sum(map(math.prod, shapes))
        assert 16 * count <= torch.cuda.memory_allocated() - before < 20 * count
    close = {"rtol": 1e-5, "atol": 1e-6} if moments == "fp32" else {"rtol": 0.0, "atol": 1e-3}
    for name, master in optimizers[0].weights.items():
        torch.testing.assert_close(optimizers[1].weights[name], master.cpu(), **close)
        assert torch.equal(both[1][name].cpu(), optimizers[1].weights[name].bfloat16())


@pytest.mark.parametrize("moments", ["fp32", "8bit"])
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("value", [1e5, -math.inf, math.nan])
def test_a_weight_that_is_no_weight_is_noticed(moments: Any, offload: bool, value: float) -> None:
    weights = weights_of([(128, 96), (5000,), (300, 300)])
    optimizer = MasterAdamW(weights, OptimizerConfig(moments=moments, offload=offload))
    for weight in weights.values():
        weight.grad = torch.ones_like(weight)
    optimizer.collect_gradients()
    assert optimizer.step(1e-3)[1]
    optimizer.weights["2"][7, 7] = value
    with pytest.raises(UnusableWeights, match="the weight 2 has"):
        optimizer.step(1e-3)


def test_sums_are_offered_during_an_update_and_take_what_autograd_delivers() -> None:
    joined = torch.randn(6, 8, device="cuda").bfloat16()
    weights = {"a": Parameter(joined[:2]), "b": Parameter(joined[2:]), "c": Parameter(torch.ones(3).cuda().bfloat16())}
    optimizer = MasterAdamW(weights, OptimizerConfig(max_grad_norm=math.inf))
    assert all(optimizer.sums.of(weight) is None for weight in weights.values())
    optimizer.begin_gradients()
    sums: dict[str, Any] = {name: optimizer.sums.of(weight) for name, weight in weights.items()}
    assert {total.dtype for total in sums.values()} == {torch.float32}
    assert sums["b"].data_ptr() == sums["a"].data_ptr() + sums["a"].numel() * 4
    # 256 + 1 is 256 in bf16.
    for value in (256.0, 1.0, 1.0):
        (weights["a"].sum() * value).backward()
        optimizer.collect_gradients()
        assert weights["a"].grad is None
        sums["c"].add_(value)
    assert (sums["a"] == 258).all()
    norm, is_finite = optimizer.step(1e-3)
    assert is_finite
    assert norm == pytest.approx(258 * math.sqrt(16 + 3), rel=1e-5)
    assert all(optimizer.sums.of(weight) is None for weight in weights.values())


def test_resumed_on_the_gpu_it_goes_on_bit_for_bit() -> None:
    for moments in ("fp32", "8bit"):
        config = OptimizerConfig(moments=moments)  # type: ignore[arg-type]
        first, second = weights_of([(90, 50)])["0"], weights_of([(90, 50)])["0"]
        running, resumed = MasterAdamW({"w": first}, config), MasterAdamW({"w": second}, config)
        gradients = [torch.randn(90, 50, device="cuda").bfloat16() for _ in range(6)]

        def run(weight: Parameter, optimizer: MasterAdamW, part: list[torch.Tensor]) -> None:
            for gradient in part:
                optimizer.begin_gradients()
                weight.backward(gradient)
                optimizer.step(1e-2)

        run(first, running, gradients[:3])
        resumed.load_weights(running.weights)
        resumed.load_state(running.state())
        run(first, running, gradients[3:])
        run(second, resumed, gradients[3:])
        assert torch.equal(first, second), moments
