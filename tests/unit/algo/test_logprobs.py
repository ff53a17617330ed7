from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from groupwise.algo.logprobs import chunked_logprobs, head_logprobs, token_logprobs, token_measures


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


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_entropy_against_a_naive_sum(temperature: float) -> None:
    logits = 3 * torch.randn(7, 11, generator=torch.Generator().manual_seed(2))
    expected = []
    for row in logits.tolist():
        odds = [math.exp(x / temperature) for x in row]
        expected.append(-sum(o / sum(odds) * math.log(o / sum(odds)) for o in odds))
    assert entropy(logits, temperature).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_entropy_extremes() -> None:
    assert entropy(torch.zeros(1, 8), 1.0).item() == pytest.approx(math.log(8))
    assert entropy(torch.tensor([[0.0, -torch.inf, -torch.inf]]), 1.0).item() == 0.0
    assert entropy(torch.zeros(0, 8), 1.0).shape == (0,)


def entropy(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return token_measures(logits, torch.zeros(len(logits), dtype=torch.long), temperature)[1]


def test_entropy_gradient_by_hand() -> None:
    """Odds 1 : 3 at temperature 2: dH/dx = -p (log p + H) / 2. A token that cannot be sampled gets none."""
    logits = torch.tensor([[0.0, 2 * math.log(3), -torch.inf]], requires_grad=True)
    entropy(logits, 2.0).sum().backward()
    nats = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    expected = [-0.25 * (math.log(0.25) + nats) / 2, -0.75 * (math.log(0.75) + nats) / 2, 0]
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx(expected, rel=1e-5)


def naive_measures(logits: torch.Tensor, ids: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logprobs and entropies in float64, with autograd's own gradients."""
    log_p = (logits.double() / temperature).log_softmax(-1)
    return log_p.gather(1, ids[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 7, 100])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_chunks_are_the_whole(is_plain: bool, chunk_tokens: int, temperature: float) -> None:
    """Values and gradients, of the hidden states and of the head, against the logits of all tokens at once."""
    generator = torch.Generator().manual_seed(3)
    hidden, weight = (torch.randn(*shape, generator=generator).requires_grad_() for shape in ((7, 5), (11, 5)))
    ids, (grad, bonus) = torch.randint(11, (7,), generator=generator), torch.randn(2, 7, generator=generator)
    whole = naive_measures(hidden @ weight.t(), ids, temperature)
    if is_plain:
        logprobs, entropies = head_logprobs(hidden, weight, ids, temperature, chunk_tokens)
    else:
        logprobs, entropies = chunked_logprobs(
            lambda part: part @ weight.t(), hidden, ids, temperature, 11, chunk_tokens
        )
    for ours, theirs in zip((logprobs, entropies), whole, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5)
    # The gradient of the logprobs alone, of both, and of the entropies alone.
    for used in (slice(0, 1), slice(0, 2), slice(1, 2)):
        found = torch.autograd.grad(
            (logprobs, entropies)[used], (hidden, weight), (grad, bonus)[used], retain_graph=True
        )
        doubles = (grad.double(), bonus.double())[used]
        expected = torch.autograd.grad(whole[used], (hidden, weight), doubles, retain_graph=True)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_only_what_is_trained_gets_a_gradient() -> None:
    hidden, weight = torch.randn(4, 3, requires_grad=True), torch.randn(9, 3)
    head_logprobs(hidden, weight, torch.arange(4), 1.0)[0].sum().backward()
    assert hidden.grad is not None
    frozen, trained = torch.randn(4, 3), torch.randn(9, 3, requires_grad=True)
    head_logprobs(frozen, trained, torch.arange(4), 1.0)[0].sum().backward()
    assert trained.grad is not None


def test_a_chunk_has_the_same_size_in_bytes_whatever_the_vocabulary() -> None:
    """For 1,000 tokens no tensor is larger than a few chunks, and none is as large as all logits."""
    vocab, tokens = 40_000, 1_000
    hidden, weight = torch.randn(tokens, 2, requires_grad=True), torch.randn(vocab, 2)
    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            sizes.extend(t.untyped_storage().nbytes() for t in tree_leaves(out) if isinstance(t, torch.Tensor))
            return out

    with Watch():
        head_logprobs(hidden, weight, torch.zeros(tokens, dtype=torch.long), 1.0, 64)[0].sum().backward()
    assert max(sizes) == 64 * vocab * 4


def test_no_tokens_at_all() -> None:
    logprobs, entropies = head_logprobs(
        torch.zeros(0, 3, requires_grad=True), torch.zeros(9, 3), torch.zeros(0).long(), 1.0
    )
    assert logprobs.shape == entropies.shape == (0,)
    logprobs.sum().backward()
