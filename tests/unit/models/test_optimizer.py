"""fp32 masters: what a bf16 weight alone could not learn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from groupwise.config import OptimizerConfig
from groupwise.distributed.world import World
from groupwise.models import optimizer as optimizer_module
from groupwise.models.optimizer import MAX_WEIGHT, MasterAdamW, UnusableWeights


def optimizer_of(weight: Parameter, **changes: float) -> MasterAdamW:
    return MasterAdamW({"weight": weight}, OptimizerConfig(**changes))  # type: ignore[arg-type]


def test_a_small_learning_rate_moves_bf16_weights_in_the_end() -> None:
    """bf16 has 8 bits: 1 − 1e-4 rounds back to 1. In the master 100 such steps add up to 0.01, which does not."""
    weight = Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = optimizer_of(weight)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.collect_gradients()
        optimizer.step(1e-4)
    torch.testing.assert_close(optimizer.weights["weight"], torch.full((4, 4), 0.99), rtol=0, atol=1e-5)
    assert float(weight.detach()[0, 0]) == float(torch.tensor(0.99).bfloat16())
    naive = torch.ones(4, dtype=torch.bfloat16)
    for _ in range(100):
        naive -= 1e-4
    assert float(naive[0]) == 1.0


def test_gradients_of_microbatches_add_up_in_fp32() -> None:
    """256 + 1 = 256 in bf16; the sum of 1 and 256 ones has to be seen by the norm."""
    weight = Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = optimizer_of(weight, max_grad_norm=math.inf)
    for value in [256.0, *([1.0] * 16)]:
        weight.grad = torch.full_like(weight, value)
        optimizer.collect_gradients()
    norm, is_finite = optimizer.step(1e-3)
    assert norm == 272.0
    assert is_finite


def test_fp32_is_plain_adamw() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(3, 5), torch.randn(10, 3, 5)
    weight, other = Parameter(start.clone()), Parameter(start.clone())
    ours = optimizer_of(weight, weight_decay=0.1, max_grad_norm=1.0)
    theirs = torch.optim.AdamW([other], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for gradient in gradients:
        weight.grad, other.grad = gradient.clone(), gradient.clone()
        norm, _ = ours.step(1e-2)
        assert math.isclose(norm, float(gradient.norm()), rel_tol=1e-6)
        torch.nn.utils.clip_grad_norm_([other], 1.0)
        theirs.step()
    torch.testing.assert_close(weight, other)


def test_weight_decay_is_for_matrices_alone() -> None:
    matrix, vector = Parameter(torch.ones(2, 2)), Parameter(torch.ones(2))
    optimizer = MasterAdamW({"matrix": matrix, "vector": vector}, OptimizerConfig(weight_decay=0.5))
    for parameter in (matrix, vector):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.1)
    assert float(matrix.detach().max()) < 1
    assert torch.equal(vector.detach(), torch.ones(2))


def test_an_infinite_gradient_changes_nothing() -> None:
    weight = Parameter(torch.ones(3))
    optimizer = optimizer_of(weight)
    weight.grad = torch.ones(3)
    optimizer.step(1e-2)
    before, state = weight.detach().clone(), {name: value.clone() for name, value in optimizer.state().items()}
    weight.grad = torch.tensor([1.0, math.inf, 1.0])
    norm, is_finite = optimizer.step(1e-2)
    assert not is_finite
    assert math.isinf(norm)
    assert torch.equal(weight, before)
    assert all(torch.equal(optimizer.state()[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("value", "said"), [(1e5, "a magnitude of 1e\\+05"), (-math.inf, "NaN or infinite"), (math.nan, "NaN or infinite")]
)
def test_a_weight_that_is_no_weight_stops_every_rank(value: float, said: str) -> None:
    class OneOfTwo(World):
        """The other rank holds an empty slice, which is sound."""

        def gather(self, value: Any) -> Any:
            return [0.0 if isinstance(value, float) else [], value]

    parameters = {name: Parameter(torch.ones(size)) for name, size in (("a", 3), ("empty", 0), ("b", 5))}
    optimizer = MasterAdamW(parameters, OptimizerConfig(), OneOfTwo())
    parameters["b"].data[3] = MAX_WEIGHT
    parameters["a"].grad = torch.ones(3)
    assert optimizer.step(1e-3) == (pytest.approx(math.sqrt(3)), True)
    parameters["b"].data[3] = value
    with pytest.raises(UnusableWeights, match=f"the weight b has .*{said}"):
        optimizer.step(1e-3)


def test_state_round_trip_continues_bit_for_bit() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(6, 4, 4).bfloat16()
    weight = Parameter(torch.randn(4, 4).bfloat16())
    optimizer = optimizer_of(weight)

    def run(target: Parameter, running: MasterAdamW, part: torch.Tensor) -> None:
        for gradient in part:
            target.grad = gradient.clone()
            running.collect_gradients()
            running.step(1e-2)

    run(weight, optimizer, gradients[:3])
    copy = Parameter(torch.zeros(4, 4, dtype=torch.bfloat16))
    resumed = optimizer_of(copy)
    resumed.load_weights(optimizer.weights)
    resumed.load_state(optimizer.state())
    run(weight, optimizer, gradients[3:])
    run(copy, resumed, gradients[3:])
    assert torch.equal(weight, copy)
    assert torch.equal(optimizer.weights["weight"], resumed.weights["weight"])


def test_masters_are_taken_over_from_the_optimizer_before() -> None:
    """A new stage does not fall back to what bf16 has kept of the weights, and needs no second copy of them."""
    weight = Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    before = optimizer_of(weight)
    before.load_weights({"weight": torch.full((4, 4), 1.0001)})
    after = MasterAdamW({"weight": weight}, OptimizerConfig(), weights=before.weights)
    assert torch.equal(after.weights["weight"], torch.full((4, 4), 1.0001))
    assert after.weights["weight"].data_ptr() == before.weights["weight"].data_ptr()


def test_offloaded_steps_are_the_same_to_rounding() -> None:
    """The masters stay where they are on the CPU, and the step is torch's fused one."""
    torch.manual_seed(0)
    start, gradients = torch.randn(30, 20), torch.randn(20, 30, 20)
    weights = [Parameter(start.to(torch.bfloat16)) for _ in range(2)]
    optimizers = [
        MasterAdamW({"weight": weight}, OptimizerConfig(weight_decay=0.1, offload=offload))
        for weight, offload in zip(weights, (False, True), strict=True)
    ]
    for gradient in gradients:
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.to(torch.bfloat16)
            optimizer.collect_gradients()
            optimizer.step(1e-2)
    torch.testing.assert_close(optimizers[1].weights["weight"], optimizers[0].weights["weight"], rtol=1e-5, atol=1e-6)
    assert torch.equal(weights[0], weights[1])


def test_sums_are_offered_during_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of our own adds to the sums directly, as on a GPU, and what autograd delivers is added as it comes."""
    monkeypatch.setattr(optimizer_module, "offers_sum", lambda parameter: True)
    joined = torch.ones(6, 8, dtype=torch.bfloat16)
    weights: dict[str, Any] = {"a": Parameter(joined[:2]), "b": Parameter(joined[2:])}
    optimizer = MasterAdamW(weights, OptimizerConfig(max_grad_norm=math.inf))
    optimizer.begin_gradients()
    sums = {name: optimizer.sums.of(weight) for name, weight in weights.items()}
    assert sums["b"].data_ptr() == sums["a"].data_ptr() + sums["a"].numel() * 4
    for value in (256.0, 1.0, 1.0):
        (weights["a"].sum() * value).backward()
        assert weights["a"].grad is None
        optimizer.collect_gradients()
        sums["b"].add_(value)
    norm, _ = optimizer.step(1e-3)
    assert norm == pytest.approx(258 * math.sqrt(6 * 8), rel=1e-6)
    torch.testing.assert_close(optimizer.weights["b"], torch.full((4, 8), 1 - 1e-3))
    assert all(optimizer.sums.of(weight) is None for weight in weights.values())
    # The next update begins with nothing, in the same place; and without sums a gradient still counts.
    optimizer.begin_gradients()
    assert not sums["a"].any()
    assert optimizer.sums.of(weights["a"]) is sums["a"]
    optimizer.clear_gradients()
    weights["a"].sum().backward()
    optimizer.collect_gradients()
    assert optimizer.step(1e-3)[0] == pytest.approx(4.0)
