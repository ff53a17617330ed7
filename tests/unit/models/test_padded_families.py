"""The trainer's rectangles, with prompts padded on the left, give what a pass over each sequence alone gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from groupwise.config.build import ConfigError
from groupwise.config.schema import ModelConfig
from groupwise.data.batch import Example
from groupwise.models.load import LoadedModel, load_model
from groupwise.models.policy import Policy
from groupwise.models.tiny import make_tokenizer
from tests.families import NAMES, make_tiny_family

REFUSED = ("cpmant", "prophetnet", "xlnet")
"""What these predict depends on tokens that follow."""
BOUNDS = {"minicpm3": 1e-4, "youtu": 1e-4}
"""Here logits are large, and 1e-5 is their rounding. Elsewhere 1e-5."""


def ids(num_tokens: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(3, 250, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist())


EXAMPLES = [Example(ids(9, 0), ids(3, 1)), Example(ids(4, 2), ids(6, 3)), Example(ids(12, 4), ids(2, 5))]


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_logprobs(name: str) -> None:
    model = make_tiny_family(name)
    loaded = LoadedModel(model, make_tokenizer(), 64, torch.device("cpu"), torch.float32)
    policy = Policy(loaded, ema_decay=0.0)
    if name in REFUSED:
        with pytest.raises(ConfigError, match=rf"model.path: {type(model).__name__} cannot be sampled from"):
            policy.old_logprobs(EXAMPLES, 1.0, 4096)
        return
    measured = policy.old_logprobs(EXAMPLES, 1.0, 4096)
    for example, logprobs in zip(EXAMPLES, measured, strict=True):
        whole = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
        count = len(example.completion_ids)
        with torch.no_grad():
            expected = model(input_ids=whole, use_cache=False).logits[0].log_softmax(dim=-1)[-count - 1 : -1]
        chosen = expected.gather(1, whole[0, -count:, None])[:, 0]
        assert logprobs.tolist() == pytest.approx(chosen.tolist(), abs=BOUNDS.get(name, 1e-5))


def test_a_model_without_scaled_dot_product_attention_is_loaded(tmp_path: Path) -> None:
    make_tiny_family("mamba").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    assert type(load_model(ModelConfig(path=str(tmp_path), device="cpu"), 0).model).__name__ == "MambaForCausalLM"
