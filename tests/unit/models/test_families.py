"""The table of architectures against the classes of transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, Gemma2Config

from groupwise.models import families
from groupwise.models.families import FAMILIES, UNKNOWN, family_named, family_of, window_of

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_an_entry_says_what_transformers_has(model_type: str) -> None:
    family = family_named(model_type)
    config = AutoConfig.for_model(model_type, **SIZES, head_dim=8)
    model = AutoModelForCausalLM.from_config(config)
    layer = model.get_decoder().layers[0]
    assert family_of(model) is family
    assert type(layer).__name__ == family.layer
    assert hasattr(layer.self_attn, "q_norm") == family.has_head_norms
    assert (layer.self_attn.q_proj.bias is not None) == families.has_bias(config)
    assert families.has_silu(layer.mlp)
    assert families.has_rotary_by_position(model.get_decoder())
    assert families.has_plain_logits(config)
    assert families.fits_packed_attention(config)
    assert (families.num_kv_heads(config), families.head_size(config)) == (2, 8)


def test_mistral_keeps_its_window_in_the_configuration() -> None:
    config = AutoConfig.for_model("mistral", **SIZES, sliding_window=9)
    attention = AutoModelForCausalLM.from_config(config).get_decoder().layers[0].self_attn
    assert window_of(FAMILIES["mistral"], attention) == 9
    assert window_of(FAMILIES["llama"], attention) == 0


def test_an_unknown_architecture_runs_its_own_forward() -> None:
    config = Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=3.0, attn_logit_softcapping=2.0)
    model = AutoModelForCausalLM.from_config(config)
    assert family_of(model) is UNKNOWN is family_named("gemma2")
    assert not families.has_silu(model.get_decoder().layers[0].mlp)
    assert not families.has_plain_logits(config)
    assert not families.fits_packed_attention(config)
    assert (families.logit_softcap(config), families.logit_factor(config)) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("model_type", "changes", "state"),
    [
        ("qwen3_next", {"num_hidden_layers": 4}, "layers of type linear_attention"),
        ("qwen3_5_text", {"num_hidden_layers": 4}, "layers of type linear_attention"),
        ("lfm2", {"num_hidden_layers": 2, "full_attn_idxs": [1]}, "layers of type conv"),
        ("falcon_h1", {}, "layers of type hybrid"),
        ("mamba2", {}, "layers of type linear_attention"),
        ("recurrent_gemma", {}, "recurrent layers"),
        ("deepseek_v3", {}, "latent attention"),
        ("qwen3", {}, ""),
        ("gemma3_text", {}, ""),
        ("llama4_text", {}, "layers of type chunked_attention"),
    ],
)
def test_what_layers_keep_besides_keys_and_values(model_type: str, changes: dict[str, Any], state: str) -> None:
    assert families.other_state(AutoConfig.for_model(model_type, **changes)) == state
