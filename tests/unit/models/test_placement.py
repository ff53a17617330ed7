"""Where tensors lie, and a reference that changes places with the policy."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from groupwise.config import ConfigError, OptimizerConfig
from groupwise.data.batch import Example
from groupwise.models.placement import exchange, laid_out_alike, limit_memory, memory_limit_gib
from groupwise.models.policy import Policy, load_policy
from tests.factories import TINY_MODEL, tiny_recipe


def test_what_is_adjacent_stays_adjacent() -> None:
    joined = torch.arange(20.0).view(5, 4)
    parts = [joined[:2], joined[2:], torch.ones(3)]
    made = laid_out_alike(parts, lambda count, like: torch.zeros(count, dtype=torch.float64))
    assert [tensor.shape for tensor in made] == [part.shape for part in parts]
    assert {tensor.dtype for tensor in made} == {torch.float64}
    assert made[1].data_ptr() == made[0].data_ptr() + made[0].numel() * 8
    assert made[2].untyped_storage().data_ptr() != made[0].untyped_storage().data_ptr()
    made[0].fill_(1)
    assert not made[1].any()
    # In a piece of something larger, too.
    large = torch.zeros(100)
    made = laid_out_alike(parts[:2], lambda count, like: large[30 : 30 + count])
    made[0].fill_(1)
    assert large.nonzero().flatten().tolist() == list(range(30, 38))


def test_an_exchange_is_undone_by_another() -> None:
    some, others = {"a": torch.ones(2), "b": torch.zeros(3)}, {"b": torch.full((3,), 5.0), "a": torch.full((2,), 4.0)}
    exchange(some, others)
    assert some["a"].tolist() == [4, 4]
    assert others["b"].tolist() == [0, 0, 0]
    exchange(some, others)
    assert some["a"].tolist() == [1, 1]
    assert others["a"].tolist() == [4, 4]


def policy() -> Policy:
    return load_policy(tiny_recipe(model=TINY_MODEL | {"ema_decay": 0.5}))


def bits(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("offload", [False, True])
def test_the_reference_is_the_policy_as_it_was(offload: bool) -> None:
    ours, examples = policy(), [Example((1, 2, 3), (4, 5, 6)), Example((7,), (8, 9))]
    before = ours.old_logprobs(examples, 1.0, 100)
    ours.begin_stage(OptimizerConfig(), keep_reference=True, offload_reference=offload)
    ours.load_weights({name: weight * 1.5 for name, weight in ours.weights.items()})
    moved = bits(ours.weights)
    reference = ours.ref_logprobs(examples, 1.0, 100)
    assert all(torch.equal(left, right) for left, right in zip(reference, before, strict=True))
    assert all(torch.equal(moved[name], weight) for name, weight in ours.weights.items())
    assert not torch.equal(ours.old_logprobs(examples, 1.0, 100)[0], before[0])


def test_an_error_in_the_reference_pass_leaves_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = policy()
    ours.begin_stage(OptimizerConfig(), keep_reference=True)
    ours.load_weights({name: weight * 1.5 for name, weight in ours.weights.items()})
    moved = bits(ours.weights)
    monkeypatch.setattr(Policy, "logprobs", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours.ref_logprobs([Example((1,), (2,))], 1.0, 100)
    assert all(torch.equal(moved[name], weight) for name, weight in ours.weights.items())


def test_the_average_and_the_weights_change_places_and_back() -> None:
    ours = policy()
    average = bits(ours.weights)
    ours.load_weights({name: weight * 2 for name, weight in ours.weights.items()})
    weights = bits(ours.weights)
    with ours.averaged():
        assert all(torch.equal(average[name], weight) for name, weight in ours.weights.items())
    assert all(torch.equal(weights[name], weight) for name, weight in ours.weights.items())
    assert all(torch.equal(average[name], weight) for name, weight in ours.state()["ema"].items())


def test_a_limit_needs_a_gpu_that_has_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="--memory-gib 50: there is no GPU"):
        limit_memory(50)
    shares: list[float] = []
    properties = SimpleNamespace(total_memory=100 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    for wrong in (0.0, -1.0, 100.5):
        with pytest.raises(ConfigError, match=f"--memory-gib {wrong:g}: the GPU has 100.0 GiB"):
            limit_memory(wrong)
    limit_memory(25)
    assert shares == [0.25]
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: shares[0])
    assert memory_limit_gib(torch.device("cuda")) == 25
    shares[0] = 1.0
    assert memory_limit_gib(torch.device("cuda")) is None
    assert memory_limit_gib(torch.device("cpu")) is None
