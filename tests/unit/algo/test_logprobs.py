from __future__ import annotations

import math

import pytest
import torch

from groupwise.algo.logprobs import token_entropy, token_logprobs


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_token_logprobs_is_log_softmax(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(13, 37, generator=generator)
    ids = torch.randint(37, (13,), generator=generator)
    expected = [(logits[row].double() / temperature).log_softmax(-1)[ids[row]].item() for row in range(13)]
    assert token_logprobs(logits, ids, temperature).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_token_logprobs_by_hand() -> None:
    """Odds 1 : 3 : 4 at temperature 1; at 0.5 they are squared, 1 : 9 : 16."""
    logits = torch.tensor([[0.0, math.log(3), math.log(4)]])
    ids = torch.tensor([1])
    assert token_logprobs(logits, ids, 1.0).item() == pytest.approx(math.log(3 / 8))
    assert token_logprobs(logits, ids, 0.5).item() == pytest.approx(math.log(9 / 26))


def test_token_logprobs_gradient_is_one_hot_minus_p_over_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, -2.0]], requires_grad=True)
    token_logprobs(logits, torch.tensor([2]), 2.0).sum().backward()
    p = [math.exp(x / 2) for x in (0.0, 1.0, -2.0)]
    expected = [(float(index == 2) - value / sum(p)) / 2 for index, value in enumerate(p)]
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_bf16_logits_are_scored_in_fp32() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    ids = torch.arange(4)
    assert token_logprobs(logits, ids, 1.0).dtype == torch.float32
    assert torch.equal(token_logprobs(logits, ids, 1.0), token_logprobs(logits.float(), ids, 1.0))


@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 100])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_entropy_against_a_naive_sum(chunk_tokens: int, temperature: float) -> None:
    logits = 3 * torch.randn(7, 11, generator=torch.Generator().manual_seed(2))
    expected = []
    for row in logits.tolist():
        odds = [math.exp(x / temperature) for x in row]
        expected.append(-sum(o / sum(odds) * math.log(o / sum(odds)) for o in odds))
    assert token_entropy(logits, temperature, chunk_tokens).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_entropy_extremes() -> None:
    assert token_entropy(torch.zeros(1, 8), 1.0).item() == pytest.approx(math.log(8))
    assert token_entropy(torch.tensor([[0.0, -torch.inf, -torch.inf]]), 1.0).item() == 0.0
    assert token_entropy(torch.zeros(0, 8), 1.0).shape == (0,)


def test_entropy_has_no_gradient() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    assert not token_entropy(logits, 1.0).requires_grad
