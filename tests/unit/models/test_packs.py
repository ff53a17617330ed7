"""Packs through attention in plain torch: the logprobs and gradients of rectangles, where nothing leaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from groupwise.data.batch import Example, make_microbatches
from groupwise.data.pack import Pack
from groupwise.kernels.seam import attending
from groupwise.models.fused import packed_hidden
from groupwise.models.head import Head, padded_hidden
from groupwise.models.optimizer import GradientSums
from groupwise.models.trial import has_right_packs
from tests.families import make_tiny_family

CPU = torch.device("cpu")
PROMPT = (5, 9, 2, 7, 7, 3, 8, 1, 4)
EXAMPLES = [
    Example(PROMPT, (11, 3, 5, 8, 13, 21, 34)),
    Example(PROMPT, (2,)),
    Example((6, 6), (1, 2, 3, 4, 5, 6, 7, 8, 9)),
    Example(PROMPT, (4, 4)),
]


def learn(model: Any, *, is_packed: bool) -> tuple[dict[int, torch.Tensor], dict[str, torch.Tensor]]:
    """(logprobs by example, gradients of their weighted sum)."""
    model.zero_grad()
    head, found = Head(model, GradientSums()), {}
    batches = make_microbatches(EXAMPLES, [1.0, 2.0, 3.0, 4.0], 100, CPU, is_packed=is_packed)
    assert len(batches) == 1
    for batch in batches:
        with attending(model) if is_packed else torch.enable_grad():
            inputs = batch.inputs
            hidden = packed_hidden(model, inputs) if isinstance(inputs, Pack) else padded_hidden(model, inputs)
            logprobs, _ = head.logprobs(model, hidden, batch.completion_ids, 0.7)
            (logprobs * batch.weights).sum().backward()
        found |= dict(zip(batch.example_indices, logprobs.detach().split(batch.lengths), strict=True))
    return found, {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma2", "gemma3_text", "deepseek_v3", "qwen3_moe"])
def test_packs_are_rectangles_to_rounding(name: str) -> None:
    model = make_tiny_family(name)
    packed, gradients = learn(model, is_packed=True)
    expected, others = learn(model, is_packed=False)
    for index, row in expected.items():
        assert packed[index].tolist() == pytest.approx(row.tolist(), abs=5e-6)
    assert gradients.keys() == others.keys()
    for key, gradient in others.items():
        assert torch.allclose(gradients[key], gradient, rtol=1e-4, atol=1e-5 * gradient.abs().max().item()), key


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        ("llama", True),
        ("gemma3_text", True),
        ("bloom", False),
        ("gpt_oss", False),
        ("qwen3_next", False),
        ("mamba", False),
    ],
)
def test_where_something_leaks_or_attention_cannot_be_exchanged_a_trial_shows_it(name: str, is_right: bool) -> None:
    model = make_tiny_family(name)
    assert has_right_packs(model, Head(model, GradientSums())) == is_right


def test_a_trial_leaves_the_model_as_it_was() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).eval()
    ids = torch.arange(10)[None]
    before, state = model(ids).logits, torch.get_rng_state()
    assert has_right_packs(model, Head(model, GradientSums()))
    assert torch.equal(model(ids).logits, before)
    assert torch.equal(torch.get_rng_state(), state)
