"""Moments in 8 bit: what the codes keep, and that AdamW with them goes where AdamW goes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from groupwise.config import OptimizerConfig
from groupwise.models.moments import (
    BLOCK,
    SMALLEST,
    decode_first,
    decode_second,
    encode_first,
    encode_second,
)
from groupwise.models.optimizer import MasterAdamW


def optimizer_of(weight: Parameter, **changes: object) -> MasterAdamW:
    return MasterAdamW({"weight": weight}, OptimizerConfig(moments="8bit", **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [1e-27, 3.7e-9, 1.0, 2e5])
def test_what_was_decoded_encodes_to_the_same_codes(scale: float) -> None:
    """Every code there is, and the scale to the last bit: a checkpoint holds decoded moments."""
    signed = torch.arange(-127, 128).to(torch.int8)
    first = torch.cat([signed, torch.tensor([127], dtype=torch.int8)]).view(1, BLOCK)
    second = torch.arange(256).to(torch.uint8).view(1, BLOCK)
    scales = torch.tensor([scale])
    for codes, decode, encode in ((first, decode_first, encode_first), (second, decode_second, encode_second)):
        again, same_scales = encode(decode(codes, scales))
        assert torch.equal(again, codes)
        assert torch.equal(same_scales, scales)


def test_codes_are_as_precise_as_they_say() -> None:
    torch.manual_seed(0)
    values = torch.randn(200, BLOCK) * torch.logspace(-6, 3, 200)[:, None]
    largest = values.abs().amax(dim=1, keepdim=True)
    # Half a step between roots, at this root: d(r²) = 2r dr, d(r⁴) = 4r³ dr; and dr² more where r is small.
    root = (values.abs() / largest).sqrt()
    error = (decode_first(*encode_first(values)) - values).abs() / largest
    assert (error <= root / 127 + 0.26 / 127**2).all()
    squares = values.square()
    root = (squares / largest.square()) ** 0.25
    error = (decode_second(*encode_second(squares)) - squares).abs() / largest.square()
    assert (error <= 2 * root**3 / 255 * 1.05 + 8 * root / 255**2 + 1 / 255**4).all()


def test_a_second_moment_is_zero_only_for_zero() -> None:
    values = torch.full((1, BLOCK), 1e-20)
    values[0, 0], values[0, 1] = 1.0, 0.0
    codes, scales = encode_second(values)
    assert codes[0, 1] == 0
    assert (decode_second(codes, scales)[0, 2:] > 0).all()
    nothing, none = encode_second(torch.full((1, BLOCK), SMALLEST / 2))
    assert not nothing.any()
    assert not none.any()


def plain_adamw(start: Tensor, gradients: Tensor, rate: float, decay: float) -> Tensor:
    weight = Parameter(start.clone())
    adamw = torch.optim.AdamW([weight], lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    for gradient in gradients:
        weight.grad = gradient.clone()
        adamw.step()
    return weight.detach()


@pytest.mark.parametrize("shape", [(64, 80), (4097,), (3, 41, 37)])
@pytest.mark.parametrize(("orders", "mean_gap", "max_gap"), [(0, 0.02, 0.01), (1, 0.03, 0.03), (3, 0.12, 0.2)])
def test_fifty_steps_are_those_of_adamw_to_the_codes_precision(
    shape: tuple[int, ...], orders: int, mean_gap: float, max_gap: float
) -> None:
    """Gradients within a block differ by orders of magnitude; small ones have few codes. Gaps as shares of the way."""
    torch.manual_seed(0)
    count = math.prod(shape)
    start, sizes = torch.randn(shape), torch.logspace(-orders, 0, count)[torch.randperm(count)].view(shape)
    gradients = torch.randn(50, *shape) * sizes
    weight = Parameter(start.clone())
    optimizer = optimizer_of(weight, weight_decay=0.1, max_grad_norm=math.inf)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step(1e-2)
    expected = plain_adamw(start, gradients, 1e-2, 0.1 if len(shape) > 1 else 0.0)
    gap = (weight.detach() - expected).abs()
    assert gap.mean() < mean_gap * (expected - start).abs().mean()
    assert gap.max() < max_gap * 50 * 1e-2


def test_a_quadratic_ends_where_adamw_ends() -> None:
    torch.manual_seed(0)
    goal, curvature = torch.randn(128, 64), torch.logspace(-2, 1, 64)
    weights = {kind: Parameter(torch.zeros(128, 64)) for kind in ("fp32", "8bit")}
    for kind, weight in weights.items():
        config = OptimizerConfig(moments=kind, max_grad_norm=math.inf)  # type: ignore[arg-type]
        optimizer = MasterAdamW({"weight": weight}, config)
        for step in range(600):
            weight.grad = (weight.detach() - goal) * curvature
            optimizer.step(0.05 * (1 - step / 600))
        assert float((weight.detach() - goal).abs().max()) < 1e-2, kind
    assert float((weights["8bit"] - weights["fp32"]).detach().abs().max()) < 1e-2


@pytest.mark.parametrize(("kind", "other"), [("8bit", "8bit"), ("8bit", "fp32"), ("fp32", "8bit")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumed_it_goes_on_bit_for_bit_or_with_the_other_kind(kind: str, other: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(90, 50), torch.randn(8, 90, 50)

    def make(weight: Parameter, moments: str) -> MasterAdamW:
        return MasterAdamW({"weight": weight}, OptimizerConfig(moments=moments))  # type: ignore[arg-type]

    def run(weight: Parameter, running: MasterAdamW, part: Tensor) -> None:
        for gradient in part:
            weight.grad = gradient.to(weight.dtype, copy=True)
            running.collect_gradients()
            running.step(1e-2)

    weight, copy = Parameter(start.to(dtype)), Parameter(torch.zeros(90, 50, dtype=dtype))
    optimizer, resumed = make(weight, kind), make(copy, other)
    run(weight, optimizer, gradients[:4])
    resumed.load_weights(optimizer.weights)
    resumed.load_state(optimizer.state())
    run(weight, optimizer, gradients[4:])
    run(copy, resumed, gradients[4:])
    if kind == other:
        assert torch.equal(weight, copy)
        assert torch.equal(optimizer.weights["weight"], resumed.weights["weight"])
        assert all(torch.equal(value, resumed.state()[key]) for key, value in optimizer.state().items())
    else:
        torch.testing.assert_close(copy, weight, rtol=0, atol=2e-2)


def test_the_missing_bytes_are_those_that_come() -> None:
    parameters = {"large": Parameter(torch.ones(100, 50)), "small": Parameter(torch.ones(4095))}
    for kind, expected in (("fp32", 8 * 5000 + 8 * 4095), ("8bit", 2 * 20 * (256 + 4) + 8 * 4095)):
        optimizer = MasterAdamW(parameters, OptimizerConfig(moments=kind))  # type: ignore[arg-type]
        assert optimizer.missing_bytes == expected
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step(1e-3)
        assert optimizer.missing_bytes == 0
        assert {key for key in optimizer.state() if key.endswith("/large")} == {
            "step/large",
            "exp_avg/large",
            "exp_avg_sq/large",
        }
